"""`after`: once in each window in which all of the named jobs had a run that ended well.

Which windows are owed follows from runs of other jobs, so nothing can be known ahead: it yields no fire time by itself.
It says which window an instant lies in, and the fire time is that window's start. `rules.joins` does the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, timedelta
from enum import StrEnum
from itertools import islice
from typing import Any, ClassVar, Final

from horarium.clock import DAY, HOUR, INSTANT_MAX, SECOND, Instant
from horarium.errors import InvalidTrigger
from horarium.triggers.base import Trigger
from horarium.triggers.spec import Spec
from horarium.triggers.words import nearest, quote, say_duration, say_list
from horarium.triggers.zones import Gap, Zone, get_zone

JOBS_MAX: Final = 64
SECONDS_MAX: Final = 366 * 86_400
DEADLINE_SECONDS_MAX: Final = 3 * SECONDS_MAX
WINDOWS: Final = ("hour", "day", "week", "month")
_EPOCH: Final = date(1970, 1, 1)
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}", re.ASCII)


class JoinOutcome(StrEnum):
    """Which ends of a member count: `finished` is any end of a run that was not skipped."""

    COMPLETED = "completed"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class After(Trigger):
    """Fires once in each window in which all of `jobs` had a run with this outcome. `within`: a calendar window of the
    zone, or its length in seconds, counted from 1970. `deadline`: how many microseconds after its start a window in
    which one is missing is missed; None: it waits."""

    type: ClassVar[str] = "after"
    jobs: tuple[str, ...]
    outcome: JoinOutcome = JoinOutcome.COMPLETED
    within: str | int = "day"
    timezone: str = "UTC"
    deadline: int | None = None
    _zone: Zone = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check_jobs(self.jobs)
        if self.outcome not in list(JoinOutcome):
            expected = f"expected one of {', '.join(JoinOutcome)}"
            raise InvalidTrigger(f"outcome: {expected}, not {quote(self.outcome)}", field="outcome")
        object.__setattr__(self, "outcome", JoinOutcome(self.outcome))
        object.__setattr__(self, "within", _window(self.within))
        object.__setattr__(self, "_zone", get_zone(self.timezone))
        if not isinstance(self.within, str) and self._zone != get_zone("UTC"):
            raise InvalidTrigger("timezone: windows of seconds are counted from 1970, in no zone", field="timezone")

    @classmethod
    def from_spec(cls, spec: Spec) -> After:
        """Reads `{"type": "after", "jobs": [...], "outcome"?, "within"?, "timezone"?, "deadline_seconds"?}`."""
        if spec.depth > 1:
            raise InvalidTrigger(
                "what follows from runs of other jobs has no fire times of its own to combine; make "
                "a job of it, with starts_at and ends_at where it needs bounds"
            )
        deadline = spec.get("deadline_seconds")
        return cls(
            tuple(spec.list("jobs", "a list of names of jobs", JOBS_MAX)),
            spec.text("outcome", "completed or finished", JoinOutcome.COMPLETED),  # type: ignore[arg-type]
            spec.get("within") if spec.has("within") else "day",  # type: ignore[arg-type]
            spec.text("timezone", "an IANA time zone", "UTC"),
            None if deadline is None else _micros(deadline, DEADLINE_SECONDS_MAX, "deadline_seconds"),
        )

    def next_fire(self, after: Instant) -> Instant | None:
        return None

    def window_of(self, instant: Instant) -> Instant:
        """The start of the window in which an instant lies."""
        second = max(instant, 0) // SECOND
        if isinstance(self.within, int):
            return max(instant, 0) // self.within * self.within
        wall = self._zone.to_wall(second)
        if self.within == "hour":
            return (second - wall % 3600) * SECOND
        return self._start_of(wall // 86_400)

    def _start_of(self, day: int) -> Instant:
        """The start of the window that holds a day, counted from 1970."""
        if self.within == "week":
            day -= (day + 3) % 7  # 1970 began on a Thursday
        elif self.within == "month":
            day -= (_EPOCH + timedelta(days=day)).day - 1
        return max(0, self._zone.to_utc(day * 86_400, Gap.RUN_AT_TRANSITION)[0]) * SECOND

    @property
    def length(self) -> int:
        """About how long a window is."""
        lengths = {"hour": HOUR, "day": DAY, "week": 7 * DAY, "month": 30 * DAY}
        return self.within if isinstance(self.within, int) else lengths[self.within]

    def next_window(self, start: Instant) -> Instant | None:
        """The start of the window after the one that begins at `start`."""
        if isinstance(self.within, int):
            found = start + self.within
        else:
            step = {"hour": HOUR, "day": 36 * HOUR, "week": 8 * DAY, "month": 32 * DAY}[self.within]
            found = self.window_of(start + step)
        return found if start < found < INSTANT_MAX else None

    def spec(self) -> dict[str, Any]:
        seconds = self.within / SECOND if isinstance(self.within, int) else 0.0
        within = self.within if isinstance(self.within, str) else {"seconds": _plain(seconds)}
        spec: dict[str, Any] = {
            "type": self.type, "jobs": list(self.jobs), "outcome": str(self.outcome), "within": within,
        }  # fmt: skip
        if isinstance(self.within, str):
            spec["timezone"] = self.timezone
        return spec if self.deadline is None else {**spec, "deadline_seconds": _plain(self.deadline / SECOND)}

    def words(self) -> str:
        ended = "completed" if self.outcome is JoinOutcome.COMPLETED else "finished"
        who = f"{say_list(self.jobs)} {'has' if len(self.jobs) == 1 else 'have'} {ended}"
        if isinstance(self.within, int):
            window = say_duration(self.within)
            said = f"once in every {window.removeprefix('1 ') if window.count(' ') == 1 else window}"
        else:
            said = f"once every {self.within}"
        zone = f", {self.timezone}" if isinstance(self.within, str) else ""
        deadline = "" if self.deadline is None else f", missed {say_duration(self.deadline)} after its start"
        return f"{said}, after {who} in it{zone}{deadline}"


def _check_jobs(jobs: Iterable[object]) -> None:
    seen: set[str] = set()
    for index, name in enumerate(islice(jobs, JOBS_MAX + 1)):
        field = f"jobs[{index}]"
        if index >= JOBS_MAX:
            raise InvalidTrigger(f"jobs: at most {JOBS_MAX} jobs", field="jobs")
        if not isinstance(name, str) or not _JOB.fullmatch(name):
            raise InvalidTrigger(f"{field}: expected the name of a job, not {quote(name)}", field=field)
        if name in seen:
            raise InvalidTrigger(f"{field}: {quote(name)} is here twice", field=field)
        seen.add(name)
    if not seen:
        raise InvalidTrigger("jobs: name at least one job", field="jobs")


def _window(given: object) -> str | int:
    expected = "expected hour, day, week, month or {'seconds': n}"
    if isinstance(given, str):
        if given not in WINDOWS:
            raise InvalidTrigger(f"within: {expected}, not {quote(given)}{nearest(given, WINDOWS)}", field="within")
        return given
    if isinstance(given, dict):
        if set(given) != {"seconds"}:
            raise InvalidTrigger(f"within: {expected}", field="within")
        return _micros(given["seconds"], SECONDS_MAX, "within.seconds")
    if isinstance(given, timedelta):
        return _micros(given.total_seconds(), SECONDS_MAX, "within")
    if isinstance(given, int) and not isinstance(given, bool) and SECOND <= given <= SECONDS_MAX * SECOND:
        return given
    raise InvalidTrigger(f"within: {expected}, not {quote(given)}", field="within")


def _micros(given: object, most: int, field: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 1 <= given <= most:
        raise InvalidTrigger(f"{field}: expected a number of seconds from 1 to {most}, not {quote(given)}", field=field)
    return round(given * SECOND)


def _plain(seconds: float) -> float:
    return int(seconds) if seconds == int(seconds) else seconds


def after(
    *jobs: str,
    within: str | timedelta | dict[str, float] = "day",
    outcome: str = JoinOutcome.COMPLETED,
    timezone: str = "UTC",
    deadline: timedelta | float | None = None,
) -> After:
    """Once in each window (`hour`, `day`, `week`, `month`, or a length) in which all of these jobs had a run that
    completed (or `finished`, however it ended). Its fire time is the start of the window. `deadline`: so long after
    that start a window in which one is missing is missed. Raises InvalidTrigger."""
    if isinstance(deadline, timedelta):
        deadline = deadline.total_seconds()
    limit = None if deadline is None else _micros(deadline, DEADLINE_SECONDS_MAX, "deadline_seconds")
    if isinstance(within, int | float):
        within = {"seconds": within}
    return After(jobs, outcome, within, timezone, limit)  # type: ignore[arg-type]


__all__ = ["After", "JoinOutcome", "after"]
