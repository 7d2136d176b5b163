"""`--reload`: the worker runs in a child process, which is started again when a Python file of the project changes.

The child stops as on any deploy: runs under way finish first. A child that ends by itself (its code can't be imported,
say) has told why; the next change starts another one. Files are looked at, not watched: it needs nothing installed, and
works on every file system.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from horarium.interrupts import on_signals

POLL_SECONDS = 0.5
FILES_MAX = 20_000
PASSED_OVER = frozenset({"node_modules", "__pycache__", "site-packages"})

log = logging.getLogger("horarium")

Stamps = dict[str, tuple[int, int]]


def stamps(folder: Path) -> Stamps:
    """Every Python file below, and when it was changed; not those of virtual environments and hidden folders."""
    found: Stamps = {}
    for path in _python_files(folder):
        try:
            about = path.stat()
        except OSError:
            continue
        found[str(path)] = (about.st_mtime_ns, about.st_size)
        if len(found) >= FILES_MAX:
            break
    return found


def _python_files(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if _is_project(Path(place, name))]
        yield from (Path(place, name) for name in files if name.endswith(".py"))


def _is_project(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name in PASSED_OVER
    return not hidden and not (folder / "pyvenv.cfg").exists()


def changed(before: Stamps, after: Stamps) -> str | None:
    """A file that is new, gone or different; None: nothing is."""
    return min((path for path in before.keys() | after.keys() if before.get(path) != after.get(path)), default=None)


class Reloader:
    """Keeps one child running the present code."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._command = list(command)
        self._folder = folder
        self._child: subprocess.Popen[bytes] | None = None
        self._asked = False
        self._seen: Stamps = {}

    def run(self) -> int:
        """Until a signal asks to stop: the exit status of the last child. Signals are passed on to it, each once."""
        status = 0
        with on_signals(self._ask):
            try:
                while not self._asked:
                    status = self._generation()
                return status
            finally:
                if self._child is not None and self._child.poll() is None:
                    self._child.kill()
                    self._child.wait()

    def _ask(self) -> None:
        self._asked = True
        self._tell_child()

    def _tell_child(self) -> None:
        if self._child is not None and self._child.poll() is None:
            os.kill(self._child.pid, signal.SIGTERM)

    def _generation(self) -> int:
        """One child, from its start to its end, and to the change that calls for the next."""
        self._seen = stamps(self._folder)
        # A group of its own: Ctrl-C reaches this process only, which passes it on.
        self._child = subprocess.Popen(
            self._command, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, process_group=0
        )
        if self._asked:
            self._tell_child()
        told = False
        while (status := self._ended()) is None:
            if not told and (path := self._change()) is not None:
                log.info("%s changed: starting again once what runs has finished", os.path.relpath(path, self._folder))
                told = True
                self._tell_child()
        if not told and not self._asked:
            log.warning("the worker ended with status %d; waiting for a change of the code", status)
            while self._change() is None and not self._asked:
                time.sleep(POLL_SECONDS)
        return status

    def _ended(self) -> int | None:
        """The child's exit status, if it ends within a moment."""
        assert self._child is not None
        try:
            return self._child.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def _change(self) -> str | None:
        return changed(self._seen, stamps(self._folder))


def run_reloading(arguments: Sequence[str]) -> int:
    """Run `horarium` with these arguments, without `--reload`, again and again. The exit status."""
    kept = [argument for argument in arguments if argument != "--reload"]
    command = [sys.executable, "-m", "horarium", *kept, "--parent", str(os.getpid())]
    return Reloader(command, Path.cwd()).run()


def end_with(parent: int) -> None:
    """Stop when that process, which started this one, is gone: nothing is left to stop us."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="horarium-parent", daemon=True).start()
