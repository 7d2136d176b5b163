"""Async handlers that block the event loop. Meanwhile nothing else goes on in their process: no lease is renewed, no
request is answered. So a thread looks whether the loop still turns, and says which handler stops it, and where."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import FrameType

from horarium.delivery.context import RunContext

STILL_SECONDS = 3.0
"""A loop that does not turn for so long stands still."""
LATE_SECONDS = 0.25
"""A process that was stopped as a whole turns its loop within this, once it goes on."""
FRAMES_MAX = 8

log = logging.getLogger("horarium")


class LoopWatch:
    """Looks after the event loop on which it is started, until `close`. A handler that blocks it is found on the
    stack, so that none of them costs anything."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self.started = False

    def start(self) -> None:
        """Watch the loop of this thread from now on."""
        self.started = True
        given = asyncio.get_running_loop(), threading.get_ident()
        threading.Thread(target=self._watch, args=given, name="horarium-loop-watch", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        while not self._over.wait(STILL_SECONDS):
            if loop.is_closed():
                return
            turned, asked_at = threading.Event(), time.monotonic()
            try:
                loop.call_soon_threadsafe(turned.set)
            except RuntimeError:  # it is closed
                return
            if turned.wait(STILL_SECONDS) or turned.wait(LATE_SECONDS):
                continue
            _tell(sys._current_frames().get(thread_id))
            while not turned.wait(STILL_SECONDS):
                if loop.is_closed():
                    return
            log.warning("the event loop goes on; it stood still for %.0f s", time.monotonic() - asked_at)


def _tell(frame: FrameType | None) -> None:
    """Of the stack its end, without the frames that lead to a handler."""
    stack: list[FrameType] = []
    while frame is not None and not frame.f_globals.get("__name__", "").startswith(("horarium.delivery", "asyncio.")):
        stack.insert(0, frame)
        frame = frame.f_back
    run = None if frame is None else frame.f_locals.get("context")
    by = f"the handler {run.handler!r} blocks it (run {run.id})" if isinstance(run, RunContext) else "it is blocked"
    log.warning(
        "the event loop has stood still for %.0f s: %s. Meanwhile no lease is renewed and no other run goes on; "
        "where a lease ends, another node begins its run again. Await what takes long, or make the handler a plain "
        "function, which gets a thread of its own\n%s",
        STILL_SECONDS, by, "".join(traceback.format_list([_line(each) for each in stack[-FRAMES_MAX:]])).rstrip(),
    )  # fmt: skip


def _line(frame: FrameType) -> traceback.FrameSummary:
    return traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
