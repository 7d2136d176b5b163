"""Handlers in processes of their own, for work that computes: `@scheduler.handler(pool="process")`.

A call is made in a thread, which hands it to a process and waits. A process performs one call at a time, is used again,
and can be ended: so a time limit or a cancel stops the work itself. It imports the handler's module, as `spawn` of
multiprocessing has it; what it prints goes where the program's goes. Processes end when their parent does.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from horarium.errors import InvalidJob

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Function = Callable[..., Any]


BEGUN = b"begun"
UNGUARDED = 'the file of the program is imported there; what it starts belongs under `if __name__ == "__main__":`'


class ProcessEnded(Exception):
    """The process of the handler ended before its call was over."""

    _place = None


def place_of(error: BaseException) -> str | None:
    """The file and the line that raised it; for an error from a process of a pool, those there."""
    frames = traceback.extract_tb(error.__traceback__)
    here = f"{frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else None
    place: str | None = getattr(error, "_place", here)
    return place


class _Process:
    """One process, and the way to it."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), name="horarium-pool", daemon=True)
        self._process.start()
        theirs.close()
        self.killed = self._has_begun = False
        atexit.register(self._end_with, os.getpid())

    def call(self, function: Function, given: Mapping[str, Any]) -> Any:
        """Have it called there, and wait. Raises its error, or ProcessEnded."""
        try:
            self._has_begun = self._has_begun or self._ours.recv_bytes() == BEGUN
            self._ours.send_bytes(pickle.dumps((function, dict(given))))
            done, answer = pickle.loads(self._ours.recv_bytes())
        except (EOFError, OSError):
            self._process.join()
            ended = f"its process ended with the status {self._process.exitcode}"
            raise ProcessEnded(ended if self._has_begun else f"{ended} before it began: {UNGUARDED}") from None
        if done:
            return answer
        raise answer

    def kill(self) -> None:
        self.killed = True
        self._process.kill()

    def _end_with(self, parent: int) -> None:
        """The program ends. Without this, multiprocessing would send a SIGTERM, which is ignored, and wait for ever. A
        fork of the program leaves its processes alone."""
        if os.getpid() == parent:
            self.kill()

    @property
    def alive(self) -> bool:
        return not self.killed and self._process.is_alive()

    def close(self) -> None:
        """End it, if it still is there."""
        atexit.unregister(self._end_with)
        self.kill()
        self._process.join()
        self._ours.close()


class Pool:
    """Processes, made as they are needed. May be used by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Process] = []

    def call(
        self, function: Function, given: Mapping[str, Any], under_way: Callable[[Callable[[], None]], None]
    ) -> Any:
        """Have a function called in a process: its answer. `under_way` is told first how to end it. Raises the
        function's error, or ProcessEnded."""
        with self._lock:
            process = self._idle.pop() if self._idle else None
        if process is None or not process.alive:
            process = _Process()
        over = False

        def end() -> None:
            with self._lock:
                if not over:  # else the process may have another call by now
                    process.kill()

        under_way(end)
        try:
            return process.call(function, given)
        finally:
            with self._lock:
                over = True
                if process.alive:
                    self._idle.append(process)
            if not process.alive:
                process.close()

    def close(self) -> None:
        """End the idle ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.close()


def check_poolable(name: str, function: Function, asks_for_run: bool, is_async: bool) -> None:
    """Raises InvalidJob for a function that can't be called in another process."""
    if asks_for_run or is_async:
        kind = "asks for the run" if asks_for_run else "is async"
        raise InvalidJob(f"handler {name!r}: it {kind}, and pool='process' is for plain functions of their args alone")
    if "<" in getattr(function, "__qualname__", "<") or "." in function.__qualname__:
        raise InvalidJob(f"handler {name!r}: pool='process' needs a function at the top of a module")


def _serve(connection: Connection) -> None:
    """In the process: perform calls until the other side is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent drains first
        signal.signal(number, signal.SIG_IGN)
    connection.send_bytes(BEGUN)
    while True:
        try:
            asked = connection.recv_bytes()
        except (EOFError, OSError):
            return
        connection.send_bytes(_answer(asked))


def _answer(asked: bytes) -> bytes:
    try:
        function, given = pickle.loads(asked)
        return pickle.dumps((True, function(**given)))
    except BaseException as error:
        vars(error)["_place"] = place_of(error)
        error.add_note("in a process of the pool:\n" + "".join(traceback.format_exception(error)).rstrip())
        for sent in (error, _Bare(error)):
            try:
                answer = pickle.dumps((False, sent))
                pickle.loads(answer)  # many an error can be written, and not be read
            except Exception:
                continue
            return answer
        return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))


class _Bare:
    """An error that is read without a call of its constructor, which may want more than its `args`."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> Any:
        return _bare, (type(self._error), self._error.args, vars(self._error))


def _bare(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
