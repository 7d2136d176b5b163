"""The wall clock of a phrase: which instants `tomorrow at 9`, `in 3 days` and `until friday` are, seen from one."""

from __future__ import annotations

from datetime import date, timedelta
from typing import NoReturn

from horarium.clock import SECOND, Instant
from horarium.errors import InvalidTrigger
from horarium.triggers.phrase_parts import MIDNIGHT, DayRef, Moment, Time
from horarium.triggers.zones import Gap, Repeat, get_zone

DAY_SECONDS = 86_400
SECONDS = {"second": 1, "minute": 60, "hour": 3600}
"""Units that are lengths of time; the others are counted by the calendar."""
_EPOCH = date(1970, 1, 1).toordinal()


class Wall:
    """Days and times of day in one zone. Wall times that the clock skips or repeats are treated as RFC 5545 says."""

    def __init__(self, zone_name: str, reference: Instant) -> None:
        self._zone = get_zone(zone_name)
        self._reference = reference

    def day_of(self, instant: Instant) -> date:
        """The day on which the instant falls."""
        return self._day_and_second(instant)[0]

    def instant(self, day: date, time: Time) -> Instant:
        """That time of that day."""
        return self._from_wall(day, in_seconds(time))

    def resolve(self, day: DayRef, time: Time) -> Instant:
        """That time of a day that is named from today."""
        today, now = self._day_and_second(self._reference)
        return self.instant(day.resolve(today, in_seconds(time) <= now), time)

    def moment(self, moment: Moment) -> Instant:
        """A day and perhaps a time; without one, its midnight."""
        if moment.time is not None:
            return self.resolve(moment.day, moment.time)
        return self.instant(moment.day.resolve(self.day_of(self._reference), False), MIDNIGHT)

    def end(self, moment: Moment) -> Instant:
        """The end of a phrase is included: the whole day, or the very second, unless it says `before`."""
        if moment.time is not None:
            return self.moment(moment) + (0 if moment.open else SECOND)
        return self.instant(moment.day.resolve(self.day_of(self._reference), False) + timedelta(days=1), MIDNIGHT)

    def begun(self, moment: Moment) -> Instant:
        """`from december 20 to january 5`, said between the two: it began this year."""
        if not moment.day.month or moment.day.year is not None:
            return self.moment(moment)
        year = moment.day.resolve(self.day_of(self._reference), False).year - 1
        return self.instant(date(year, moment.day.month, moment.day.day), moment.time or MIDNIGHT)

    def after(self, begin: Instant, offsets: list[tuple[int, str]]) -> Instant:
        """Some days or longer on by the calendar, hours and finer exactly."""
        day, second = self._day_and_second(begin)
        then = day
        for count, unit in offsets:
            then = then if unit in SECONDS else _later(then, count, unit)
        start = begin if then == day else self._from_wall(then, second) + begin % SECOND
        return start + sum(count * SECONDS.get(unit, 0) for count, unit in offsets) * SECOND

    def _day_and_second(self, instant: Instant) -> tuple[date, int]:
        day, second = divmod(self._zone.to_wall(instant // SECOND), DAY_SECONDS)
        return date.fromordinal(day + _EPOCH), second

    def _from_wall(self, day: date, second: int) -> Instant:
        wall = (day.toordinal() - _EPOCH) * DAY_SECONDS + second
        return self._zone.to_utc(wall, Gap.SHIFT, Repeat.FIRST)[0] * SECOND


def in_seconds(time: Time) -> int:
    """Since midnight."""
    return time[0] * 3600 + time[1] * 60 + time[2]


def in_clock(second: int) -> Time:
    """Of a second since midnight."""
    return second // 3600, second // 60 % 60, second % 60


def fail(why: str) -> NoReturn:
    """Raise InvalidTrigger: the parts of a phrase do not go together."""
    raise InvalidTrigger(f"text: {why}", field="text")


def _later(day: date, count: int, unit: str) -> date:
    """The same day of the month some months on, or that month's last; some days on."""
    if unit in ("day", "week"):
        return day + timedelta(days=count * (7 if unit == "week" else 1))
    months = day.year * 12 + day.month - 1 + count * (12 if unit == "year" else 1)
    year, month = divmod(months, 12)
    if year > 2199:
        fail("that lies beyond the year 2199")
    following = date(year + (month == 11), (month + 1) % 12 + 1, 1)
    return date(year, month + 1, min(day.day, (following - timedelta(days=1)).day))
