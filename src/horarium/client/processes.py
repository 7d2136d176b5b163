"""One command as a process group: started, fed, read, and ended whole.

Owns the mechanics alone; what a command may be and what its end means is `commands`. The output is read as it comes and
kept bounded: its beginning and its end, with a count of what lies between. Everything is done by the calling thread.

A command is over when its own process is. The rest of its group is then ended too, and the worker does not wait for a
pipe that a process outside of the group still holds. Being asked to stop, and running out of time, end the whole group:
SIGTERM, and SIGKILL after the grace.
"""

from __future__ import annotations

import os
import pwd
import selectors
import signal
import subprocess
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

import msgspec

READ_BYTES = 64 * 1024
HEAD_BYTES, TAIL_BYTES = 4 * 1024, 12 * 1024
"""How much of each stream's beginning and end is kept."""
TEXT_BYTES_MAX = 28 * 1024
"""How long one stream may be as JSON text: bytes that are no text take up to six times their room there."""
POLL_SECONDS = 0.1
"""How often a stop and the time are looked at, while nothing is read."""
DRAIN_SECONDS = 0.5
"""How long is read on after the process ended, where another one still holds its pipes."""
GONE_POLL_SECONDS = 0.02
GIVE_UP_SECONDS = 1.0
"""How long after SIGKILL a process that can't be killed (it waits for a disk) is waited for."""


class Captured:
    """The beginning and the end of a stream, however long it is. `tell` gets all of it, as it comes."""

    def __init__(self) -> None:
        self.bytes_count = 0
        self.tell: Callable[[bytes], None] | None = None
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, chunk: bytes) -> None:
        self.bytes_count += len(chunk)
        if self.tell is not None:
            self.tell(chunk)
        room = HEAD_BYTES - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        if len(self._tail) > TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]

    def text(self) -> str:
        """As text, with a mark where something was left out. Other bytes than UTF-8 show as U+FFFD."""
        head, tail = bytes(self._head), bytes(self._tail)
        while True:
            left_out = self.bytes_count - len(head) - len(tail)
            if left_out == 0:
                text = (head + tail).decode(errors="replace")
            else:
                text = f"{_before_cut(head)}\n[{left_out:,} bytes left out]\n{_after_cut(tail)}"
            if len(msgspec.json.encode(text)) <= TEXT_BYTES_MAX:
                return text
            head, tail = head[: len(head) * 3 // 4], tail[len(tail) // 4 + 1 :]


def _before_cut(head: bytes) -> str:
    """Without the character that the cut went through."""
    return getincrementaldecoder("utf-8")("replace").decode(head, final=False)


def _after_cut(tail: bytes) -> str:
    cut = 0
    while cut < min(3, len(tail)) and tail[cut] & 0xC0 == 0x80:
        cut += 1
    return tail[cut:].decode(errors="replace")


class ProcessGroup:
    """A started command. `run` performs it to its end; `kill` may be called from anywhere, a signal handler too."""

    def __init__(
        self,
        argv: Sequence[str],
        program: str,
        *,
        env: Mapping[str, str],
        cwd: str | None,
        stdin: str | None,
        account: pwd.struct_passwd | None = None,
    ) -> None:
        """`account`: whom it runs as, with their groups; for root alone. Raises OSError where it can't be started."""
        self.stdout, self.stderr = Captured(), Captured()
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            argv,
            executable=program,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=cwd,
            env=env,
            start_new_session=True,
            user=None if account is None else account.pw_uid,
            group=None if account is None else account.pw_gid,
            extra_groups=None if account is None else os.getgrouplist(account.pw_name, account.pw_gid),
        )
        self._input = memoryview((stdin or "").encode())
        self._selector = selectors.DefaultSelector()
        self._pidfd = _pidfd(self._process.pid)
        self._open = 0
        self._kill_at = 0.0

    @property
    def exit_code(self) -> int:
        """As a shell tells it: 128 + N where signal N ended it."""
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    @property
    def ended_by(self) -> str | None:
        """The name of the signal that ended it, if one did."""
        code = self._process.returncode
        if code >= 0:
            return None
        with suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"

    def run(self, why_stop: Callable[[], str | None], grace_seconds: float) -> str | None:
        """Read until it is over. `why_stop` is asked again and again; from its first answer on the group is ended. That
        answer, or None if it ended by itself."""
        try:
            self._register()
            return self._watch(why_stop, grace_seconds)
        finally:
            self._close()
            self._end_rest(self._kill_at or time.monotonic() + grace_seconds)

    def kill(self) -> None:
        """End the whole group at once."""
        self._signal(signal.SIGKILL)

    # ---- the run

    def _watch(self, why_stop: Callable[[], str | None], grace_seconds: float) -> str | None:
        stopped: str | None = None
        while self._process.poll() is None:
            if stopped is None:
                stopped = why_stop()
                if stopped is not None:
                    self._signal(signal.SIGTERM)
                    self._kill_at = time.monotonic() + grace_seconds
            elif time.monotonic() >= self._kill_at:
                self.kill()
            self._pump(POLL_SECONDS)
        drained_at = time.monotonic() + DRAIN_SECONDS
        while self._open and (left := drained_at - time.monotonic()) > 0:
            self._pump(left)
        return stopped

    def _register(self) -> None:
        process = self._process
        for stream, captured in ((process.stdout, self.stdout), (process.stderr, self.stderr)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, captured)
            self._open += 1
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            self._selector.register(process.stdin, selectors.EVENT_WRITE)
        if self._pidfd is not None:
            self._selector.register(self._pidfd, selectors.EVENT_READ)

    def _pump(self, seconds: float) -> None:
        """Move the readable bytes; wait for them at most that long."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj == self._pidfd:
                self._selector.unregister(key.fileobj)
            elif key.data is None:
                self._feed(key.fileobj)
            else:
                self._read(key.fileobj, key.data)

    def _read(self, stream: Any, captured: Captured) -> None:
        try:
            chunk = os.read(stream.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        if chunk:
            captured.add(chunk)
        else:
            self._drop(stream)
            self._open -= 1

    def _feed(self, stream: Any) -> None:
        try:
            self._input = self._input[os.write(stream.fileno(), self._input[:READ_BYTES]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._input = self._input[:0]
        if not self._input:
            self._drop(stream)

    def _drop(self, stream: IO[bytes]) -> None:
        self._selector.unregister(stream)
        stream.close()

    # ---- the end

    def _close(self) -> None:
        self._selector.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def _end_rest(self, kill_at: float) -> None:
        """End the rest of the group. Its number is not given away while a process of it lives."""
        number = int(signal.SIGTERM)
        while self._signal(number) and _lives(self._process.pid):
            if time.monotonic() >= kill_at + GIVE_UP_SECONDS:
                return
            number = signal.SIGKILL if time.monotonic() >= kill_at else 0
            time.sleep(GONE_POLL_SECONDS)

    def _signal(self, number: int) -> bool:
        """Whether there was a process left to get it."""
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):  # the latter: all that is left runs as another user
            return False
        return True


def _lives(group: int) -> bool:
    """Whether a process of the group still runs: one that ended stays in it until it is reaped, which in a
    container may be never. True where the system does not tell."""
    try:
        entries = [entry for entry in os.listdir("/proc") if entry.isdigit()]
    except OSError:
        return True
    for entry in entries:
        with suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{entry}/stat", "rb") as stat:
                state, _, pgrp = stat.read().rpartition(b") ")[2].split()[:3]
            if int(pgrp) == group and state not in (b"Z", b"X"):
                return True
    return False


def _pidfd(pid: int) -> int | None:
    """What tells of the process's end at once, where the system has it."""
    with suppress(AttributeError, OSError):
        return os.pidfd_open(pid)
    return None
