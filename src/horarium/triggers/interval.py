"""`interval`: every so often, counted from an anchor.

Every fire time is `anchor + k * every`, never the last one plus a duration, so it does not drift. All questions are
answered by one division.

With `from: end` it is a fixed delay: a job's planner anchors it again at the end of each run, so that the next one
follows `every` after that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from horarium.clock import DAY, HOUR, INSTANT_MAX, INSTANT_MIN, MINUTE, SECOND, Instant, to_text
from horarium.errors import InvalidTrigger
from horarium.triggers.arguments import advise_every, explained
from horarium.triggers.base import Trigger
from horarium.triggers.budget import spend
from horarium.triggers.spec import Spec, read_instant
from horarium.triggers.words import quote, say_duration

EVERY_MIN = SECOND // 20
EVERY_MAX = 3_653 * DAY
"""Shortest and longest interval in microseconds: 50 milliseconds, and ten years with their leap days."""

_UNITS = {"w": 7 * DAY, "d": DAY, "h": HOUR, "m": MINUTE, "s": SECOND, "ms": SECOND // 1_000}
_DURATION = re.compile("".join(rf"(?:(\d{{1,9}}){unit})?" for unit in _UNITS), re.ASCII)
_DURATION_MAX = 60
_NUMBER = (int, float)


@dataclass(frozen=True, slots=True)
class Interval(Trigger):
    """Fires at the anchor and every `every` microseconds after it; without one, at the multiples since 1970."""

    type: ClassVar[str] = "interval"
    every: int
    anchor: Instant | None = None
    from_end: bool = False

    def __post_init__(self) -> None:
        if not EVERY_MIN <= self.every <= EVERY_MAX:
            raise InvalidTrigger(
                f"every_seconds: {quote(self.every / SECOND)}: expected from 0.05 to 315619200 seconds (3653 days)",
                field="every_seconds",
            )
        if self.anchor is not None and not INSTANT_MIN <= self.anchor <= INSTANT_MAX + EVERY_MAX:
            raise InvalidTrigger("anchor: expected an instant from 1970 to 2200", field="anchor")

    @classmethod
    def from_spec(cls, spec: Spec) -> Interval:
        """Reads `{"type": "interval", "every_seconds": 300, "anchor"?: "2026-01-01T00:00:00Z", "from"?: "end"}`."""
        if spec.only("every_seconds"):
            return cls(_from_seconds(spec.get("every_seconds")))
        every = _from_seconds(spec.need("every_seconds", "a number of seconds"))
        counted = spec.optional_text("from", "the text end")
        if counted not in (None, "end"):
            raise InvalidTrigger(f"from: expected end, not {quote(counted)}; leave it out otherwise", field="from")
        return _checked(cls(every, spec.optional_instant("anchor"), counted == "end"))

    @property
    def after_end(self) -> int | None:
        return self.every if self.from_end else None

    def anchored(self, anchor: Instant) -> Interval:
        return self if self.anchor is not None else Interval(self.every, anchor + self.every, self.from_end)

    def next_fire(self, after: Instant) -> Instant | None:
        start = self.anchor or 0
        fire = start + max(0, (after - start) // self.every + 1) * self.every
        return fire if fire < INSTANT_MAX else None

    def list_fires(self, after: Instant, until: Instant, limit: int) -> list[Instant]:
        first = self.next_fire(after)
        if first is None or limit < 1:
            return []
        last = min(until, INSTANT_MAX - 1, first + (limit - 1) * self.every)
        found = list(range(first, last + 1, self.every))
        spend(len(found) + 1)
        return found

    def count_fires(self, after: Instant, until: Instant, limit: int) -> int:
        return max(0, min(limit, self._index(until) - self._index(after)))

    def last_fire(self, after: Instant, until: Instant) -> Instant | None:
        if self._index(until) <= self._index(after):
            return None
        return (self.anchor or 0) + (self._index(until) - 1) * self.every

    def _index(self, instant: Instant) -> int:
        """How many fire times lie at or before an instant."""
        return max(0, (min(instant, INSTANT_MAX - 1) - (self.anchor or 0)) // self.every + 1)

    def spec(self) -> dict[str, Any]:
        seconds = self.every / SECOND if self.every % SECOND else self.every // SECOND
        spec: dict[str, Any] = {"type": self.type, "every_seconds": seconds}
        if self.from_end:
            return {**spec, "from": "end"}
        return spec if self.anchor is None else {**spec, "anchor": to_text(self.anchor)}

    def words(self) -> str:
        said = say_duration(self.every)
        every = f"every {said.removeprefix('1 ') if said.count(' ') == 1 else said}"
        if self.from_end:
            return f"{every} after the end of the last run"
        return every if self.anchor is None else f"{every}, counted from {to_text(self.anchor)}"


@explained(advise_every)
def every(
    duration: timedelta | str | float, anchor: datetime | str | None = None, *, from_end: bool = False
) -> Interval:
    """Every so often: a timedelta, seconds, or a text: `250ms`, `90s`, `5m`, `1h30m`, `2d`, `1w` (long units first).

    `anchor`, if given, is itself a fire time; otherwise a job counts from when it is defined. `from_end`: it counts
    from the end of its last run, so that there is always that much time between two runs. Raises InvalidTrigger.
    """
    fixed = None if anchor is None else read_instant(anchor, "anchor")
    if isinstance(duration, timedelta):
        return _checked(Interval(duration // timedelta(microseconds=1), fixed, from_end))
    length = _from_text(duration) if isinstance(duration, str) else _from_seconds(duration)
    return _checked(Interval(length, fixed, from_end))


def _checked(interval: Interval) -> Interval:
    if interval.from_end and interval.anchor is not None:
        raise InvalidTrigger("anchor: what counts from the end of its last run has no anchor", field="anchor")
    return interval


def _from_seconds(given: object) -> int:
    expected = "expected a number of seconds from 0.05 to 315619200 (3653 days)"
    if isinstance(given, bool) or not isinstance(given, _NUMBER):
        raise InvalidTrigger(f"every_seconds: {expected}, not {quote(given)}", field="every_seconds")
    if not EVERY_MIN <= given * SECOND <= EVERY_MAX:
        raise InvalidTrigger(f"every_seconds: {quote(given)}: {expected}", field="every_seconds")
    return round(given * SECOND)


def _from_text(given: str) -> int:
    text = given.strip().lower().replace(" ", "") if len(given) <= _DURATION_MAX else ""
    found = _DURATION.fullmatch(text)
    if not text or found is None:
        raise InvalidTrigger(
            f"{quote(given)} is not a duration: expected e.g. 250ms, 90s, 5m, 1h30m, 2d or 1w", field="every_seconds"
        )
    return sum(int(n) * size for n, size in zip(found.groups(), _UNITS.values(), strict=True) if n)
