"""One server process: started, watched, paused, killed, restarted, stopped."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

START_SECONDS = 180.0
HALT_SECONDS = 30.0
PORTS = range(12_000, 30_000)
"""Below what systems give to connections that go out (from 32768 on Linux): none of those may take the port of a server
that starts in a moment, or that was killed and comes back; nor can one that asks for it meet itself there."""
LOCKS = Path(tempfile.gettempdir()) / f"horarium-test-ports-{os.getuid()}"
_chance = random.SystemRandom()
_given: set[int] = set()


@functools.cache
def _locks() -> int:
    """A file in which each byte is the lock of a port. The system lets go of a process's locks when it ends."""
    return os.open(LOCKS, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)


def free_port() -> int:
    """A port that nobody listens on, and that no other test gets as long as this process lives."""
    while True:
        port = _chance.choice(PORTS)
        if port in _given:
            continue
        with contextlib.suppress(OSError), socket.socket() as probe:
            fcntl.lockf(_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port


class ServerProcess:
    """A server under test. `folder` holds its data and its log, and survives `kill` and `start`."""

    def __init__(
        self,
        name: str,
        command: Callable[[Path, int], Sequence[str]],
        *,
        environment: Callable[[Path, int], dict[str, str]] = lambda folder, port: {},
        user: int | None = None,
        group: int | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        end_signal: signal.Signals = signal.SIGKILL,
    ) -> None:
        self.name = name
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"horarium-{name}-"))
        if user is not None:
            os.chown(self.folder, user, group if group is not None else -1)
        self._command = command
        self._environment = environment
        self._user, self._group = user, group
        self._stop_signal, self._end_signal = stop_signal, end_signal
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it serves: its outage is over then, and not before."""
        log = (self.folder / "server.log").open("ab")
        self.process = subprocess.Popen(
            self._command(self.folder, self.port),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self.folder,
            env={**os.environ, **self._environment(self.folder, self.port)},
            user=self._user,
            group=self._group,
            extra_groups=[] if self._user is not None else None,
            start_new_session=True,
        )
        log.close()
        self._wait_until_it_serves()

    def _wait_until_it_serves(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended at once:\n{self.log()}")
            with contextlib.suppress(OSError):
                if self.serves():
                    return
            time.sleep(0.02)
        raise RuntimeError(f"{self.name} did not serve within {START_SECONDS:g} s:\n{self.log()}")

    def serves(self) -> bool:
        """Whether it takes requests, and not connections alone. May raise OSError."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True

    def log(self) -> str:
        """The end of its log."""
        return (self.folder / "server.log").read_text(errors="replace")[-4000:]

    def family(self) -> list[psutil.Process]:
        """The process and all that it started, whatever groups they made for themselves."""
        assert self.process is not None
        try:
            leader = psutil.Process(self.process.pid)
            return [leader, *leader.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to it and to all that it started."""
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def pause(self) -> None:
        """SIGSTOP: it neither answers nor hangs up."""
        self.signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal_all(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, and wait for its end."""
        if self.process is not None:
            family = self.family()
            self.signal_all(signal.SIGKILL)
            self.process.wait()
            psutil.wait_procs(family, timeout=HALT_SECONDS)

    def restart(self) -> None:
        """kill -9, and start again on the same data."""
        self.kill()
        self.start()

    def halt(self, number: signal.Signals | None = None) -> None:
        """Stop it in order, or as this signal says, and keep its data: `start` goes on with them."""
        if self.process is not None and self.process.poll() is None:
            self.signal_all(signal.SIGCONT)
            self.process.send_signal(number or self._stop_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=HALT_SECONDS)
            self.kill()

    def stop(self) -> None:
        """End it at once, since nothing of it is kept, and remove its folder."""
        if self._end_signal == signal.SIGKILL:
            self.kill()
        else:
            self.halt(self._end_signal)
        shutil.rmtree(self.folder, ignore_errors=True)
