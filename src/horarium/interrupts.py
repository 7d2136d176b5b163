"""The signals that ask a program to stop: SIGINT and SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HEEDED_SECONDS = 1.0
"""How long the main thread may wait at a time: its handlers run only while it does not. A signal ends its wait, but not
one that the system gave to another thread, as it may where a process has just been stopped and continued."""


@contextmanager
def on_signals(asked: Callable[[], object], heeded: int = 2) -> Iterator[None]:
    """Have `asked` called in the main thread at each of the first signals, `heeded` of them; the one after that does
    what it did before. `asked` runs between two instructions of the main thread: it must ask for no lock that this one
    may hold. In another thread than the main one signals belong to the program, and nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in SIGNALS}
    count = 0

    def on_signal(number: int, frame: object) -> None:
        nonlocal count
        count += 1
        if count == heeded:
            _restore(before)
        asked()

    for number in SIGNALS:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        _restore(before)


def ignore_signals() -> None:
    """A program that has done its work ends by itself now: a signal that comes while the interpreter is taken down
    changes nothing, and the exit status neither. For programs of our own; in a thread it does nothing."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
