"""Failed attempts in the log: a warning for each, an error with its traceback for the last one of a run.

Records have `job`, `run` and `attempt` as fields. An outage of an endpoint can fail thousands in a second: a few
lines a second are written, the rest are counted. Every failure is in its run's own history besides.

What an endpoint or a worker reports may hold anything: neither a terminal nor the reader of a log may take a part of it
for a command or for a line of ours.
"""

from __future__ import annotations

import logging

from horarium.clock import Instant
from horarium.model import EventKind, Run, State
from horarium.services.loop.quiet import QuietLog


class FailureLog:
    """Log lines about attempts that failed. `told_elsewhere`: queues whose reports have lines of their own."""

    def __init__(self) -> None:
        self.told_elsewhere: set[str] = set()
        self._attempts = QuietLog("attempts that failed")
        self._runs = QuietLog("runs that failed", logging.ERROR)

    def tell(self, after: Run, now: Instant) -> None:
        """An attempt was settled, here or by a worker elsewhere, and the run is as `after` says."""
        if after.queue in self.told_elsewhere:
            return
        last = after.history[-1] if after.history else None
        named = {"job": after.job, "run": after.id, "attempt": after.attempt}
        what = after.job or after.queue
        if after.state is State.FAILED:
            trace = f"\n{_on_lines(last.detail)}" if last is not None and last.detail else ""
            message = "%s failed, and no attempt is left: run %s, attempt %d: %s%s"
            self._runs.write(now, message, what, after.id, after.attempt, _on_a_line(after.error), trace, extra=named)
        elif after.state is State.PENDING and last is not None and last.kind is EventKind.FAILED:
            message = "%s failed and is tried again: run %s, attempt %d: %s"
            self._attempts.write(now, message, what, after.id, after.attempt, _on_a_line(after.error), extra=named)

    def tell_rest(self, now: Instant) -> None:
        """Say how many lines were left out."""
        self._attempts.tell_rest(now)
        self._runs.tell_rest(now)


def _on_a_line(text: str | None) -> str:
    """The text with nothing that moves a cursor or begins a line."""
    return "".join(c if c.isprintable() else " " if c in "\r\n\t" else "\ufffd" for c in text or "")


def _on_lines(text: str) -> str:
    """The same line by line."""
    return "\n".join(map(_on_a_line, text.splitlines()))
