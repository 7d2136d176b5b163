"""Warnings that may come in thousands, one for each run: a few a second are written, the rest are counted.

An outage can cost every lease at once. The reader of the log then wants to know what happened and how often, not a
line for each run: those are in the runs' own histories.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from horarium.clock import SECOND, Instant

LINES_PER_SECOND_MAX = 3

log = logging.getLogger("horarium")


class QuietLog:
    """One kind of warning. `what` names the counted lines when some are left out."""

    def __init__(self, what: str, level: int = logging.WARNING) -> None:
        self._what = what
        self._level = level
        self._second: Instant = 0
        self._lines = 0
        self._left_out = 0

    def write(self, now: Instant, message: str, *values: object, extra: Mapping[str, object] | None = None) -> None:
        """Write the line, with fields for the record, or count it if this second has had enough of them."""
        self.tell_rest(now)
        if self._lines < LINES_PER_SECOND_MAX:
            self._lines += 1
            log.log(self._level, message, *values, extra=extra)
        else:
            self._left_out += 1

    @property
    def waits(self) -> bool:
        """Whether lines were left out of which nothing was said yet."""
        return bool(self._left_out)

    def tell_rest(self, now: Instant) -> None:
        """Say how many lines were left out, once their second is over. To be called now and then."""
        if now // SECOND == self._second:
            return
        if left := self._left_out:
            log.log(self._level, "%s: %d more like these", self._what, left, extra={"left_out": left})
        self._second, self._lines, self._left_out = now // SECOND, 0, 0
