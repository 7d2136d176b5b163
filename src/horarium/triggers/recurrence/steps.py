"""HOURLY, MINUTELY and SECONDLY rules while the offset of the zone stays the same.

Such a rule walks in units (hours, minutes, seconds) of elapsed time. As long as the offset holds, that is the plain
wall clock: unit n is in step when n = origin (mod INTERVAL), and the BYxxx parts say which units of which days are
open. A day has `per_day` units, so the units in step on day d depend on d modulo INTERVAL / gcd(INTERVAL, per_day)
alone: the days that have any open unit in step are residues that can be computed, and searched without trying units.

    unit n = day d * per_day + r      open(r)      allowed(d)      n = origin (mod interval)

Short lists of open units are kept by residue (`_Indexed`); long ones are sieved from hurdle to hurdle (`_Sieved`).
"""

from __future__ import annotations

from bisect import bisect_left
from math import gcd
from typing import Final, Protocol

from horarium.triggers.recurrence.civil import DAY_MAX, DAY_SECONDS, weekday_of
from horarium.triggers.recurrence.moments import Moments, Times, pick
from horarium.triggers.recurrence.parts import Freq, Parts
from horarium.triggers.recurrence.periods import DayFilter

INDEXED_MAX: Final = 1_500
"""Open units of a day that are written out; every rule by the hour or minute has fewer."""

UNIT_SECONDS: Final = {Freq.HOURLY: 3600, Freq.MINUTELY: 60, Freq.SECONDLY: 1}


class _Units(Protocol):
    """The open units of a day, asked for by their residue modulo the interval."""

    residues: tuple[int, ...] | None
    """The residues that have any, in no order; None where there are too many to tell."""

    def first(self, residue: int, low: int) -> int | None:
        """The first open unit >= `low` with this residue."""
        ...

    def count(self, residue: int, low: int, high: int) -> int:
        """How many open units in [low, high) have this residue."""
        ...


class _Indexed:
    __slots__ = ("_by_residue", "residues")

    def __init__(self, units: list[int], interval: int) -> None:
        self._by_residue: dict[int, list[int]] = {}
        for unit in units:
            self._by_residue.setdefault(unit % interval, []).append(unit)
        self.residues: tuple[int, ...] | None = tuple(self._by_residue)

    def first(self, residue: int, low: int) -> int | None:
        units = self._by_residue.get(residue)
        if units is None or units[-1] < low:
            return None
        return units[bisect_left(units, low)]

    def count(self, residue: int, low: int, high: int) -> int:
        units = self._by_residue.get(residue, ())
        return bisect_left(units, high) - bisect_left(units, low)


class _Sieved:
    """Many open units: seconds of the day, all combinations of the lists."""

    __slots__ = ("_interval", "_minutes", "_open", "_seconds", "residues")

    def __init__(self, parts: Parts, interval: int) -> None:
        hours, minutes = parts.by_hour or tuple(range(24)), parts.by_minute or tuple(range(60))
        self._seconds = parts.by_second or tuple(range(60))
        self._open = Times(hours, minutes, self._seconds)
        self._minutes = [hour * 3600 + minute * 60 for hour in hours for minute in minutes]
        self._interval = interval
        self.residues: tuple[int, ...] | None = None

    def first(self, residue: int, low: int) -> int | None:
        opened, interval = self._open, self._interval
        unit = low + (residue - low) % interval
        while unit < DAY_SECONDS:
            index = opened.index(unit)
            if index == opened.size:
                return None
            hurdle = opened.at(index)
            if hurdle == unit:
                return unit
            unit = hurdle + (residue - hurdle) % interval
        return None

    def count(self, residue: int, low: int, high: int) -> int:
        if self._interval == 1:
            return self._open.index(high) - self._open.index(low)
        if self._interval > 60:
            return self._count_walking(residue, low, high)
        seconds, interval, total = self._seconds, self._interval, 0
        fitting = [[s for s in seconds if s % interval == rest] for rest in range(interval)]
        first, last = bisect_left(self._minutes, low - 59), bisect_left(self._minutes, high)
        for minute in self._minutes[first:last]:
            found = fitting[(residue - minute) % interval]
            total += bisect_left(found, high - minute) - bisect_left(found, low - minute)
        return total

    def _count_walking(self, residue: int, low: int, high: int) -> int:
        total, unit = 0, self.first(residue, low)
        while unit is not None and unit < high:
            total, unit = total + 1, self.first(residue, unit + 1)
        return total


class Steps:
    """The occurrences of a filled sub-daily rule in wall seconds, under one offset. They have neither first nor last.

    `start` is the rule's first second as the wall clock would show it under this offset.
    """

    __slots__ = (
        "_cycle",
        "_days",
        "_in_unit",
        "_interval",
        "_known",
        "_origin",
        "_per_day",
        "_residues",
        "_unit",
        "_units",
    )

    def __init__(self, parts: Parts, start: int, days: DayFilter) -> None:
        self._unit = UNIT_SECONDS[parts.freq]
        self._per_day = DAY_SECONDS // self._unit
        self._origin, self._interval = start // self._unit, parts.interval
        self._days = days
        self._known: dict[int, int] = {}
        self._in_unit = _moments_in_unit(parts)
        common = gcd(self._interval, self._per_day)
        self._cycle = self._interval // common
        self._units = _open_units(parts, common, self._origin % common) if _limits_units(parts, days) else None
        self._residues = self._days_in_step(common, parts)

    def after(self, wall: int) -> int | None:
        """The first occurrence strictly after a wall second, or None where there is none up to the year 2200."""
        moments, unit = self._in_unit, self._unit
        if not moments.size:
            return None
        number, second = divmod(wall, unit)
        found = self._next_unit(number)
        if found == number:
            index = moments.index(second + 1)
            if index < moments.size:
                return number * unit + moments.at(index)
            found = self._next_unit(number + 1)
        return None if found is None else found * unit + moments.at(0)

    def next_day(self, wall: int) -> int | None:
        """The first day that the day parts allow, from that of a wall second on: a bound for every offset."""
        return self._days.next(wall // DAY_SECONDS)

    def count(self, low: int, high: int) -> int:
        """How many occurrences lie in [low, high)."""
        return self._count_before(low, high) if low < high else 0

    def _next_unit(self, number: int) -> int | None:
        """The first unit from `number` on that is open and in step."""
        units, origin, interval = self._units, self._origin, self._interval
        if units is None:
            return number + (origin - number) % interval
        day, low = divmod(number, self._per_day)
        while (found := self._next_day(day)) is not None:
            low = low if found == day else 0
            unit = units.first((origin - found * self._per_day) % interval, low)
            if unit is not None:
                return found * self._per_day + unit
            day, low = found + 1, 0
        return None

    def _next_day(self, day: int) -> int | None:
        """The first day from `day` on that is allowed and may have a unit in step."""
        residues, cycle = self._residues, self._cycle
        while day < DAY_MAX:
            if residues is not None:
                if not residues:
                    return None
                phase = day % cycle
                at = bisect_left(residues, phase)
                day += residues[at] - phase if at < len(residues) else residues[0] + cycle - phase
            allowed = self._days.next(day)
            if allowed is None or allowed == day or residues is None:
                return allowed
            day = allowed
        return None

    def _days_in_step(self, common: int, parts: Parts) -> list[int] | None:
        """The days, modulo the cycle, on which an open unit is in step; None: any may be."""
        if self._units is None or self._units.residues is None:
            return None
        inverse = pow(self._per_day // common, -1, self._cycle)
        days = {(self._origin - r) // common * inverse % self._cycle for r in self._units.residues}
        weekdays = {weekday for _, weekday in parts.by_day}
        if self._cycle % 7 == 0 and weekdays:
            days = {day for day in days if weekday_of(day) in weekdays}
        return None if len(days) == self._cycle else sorted(days)

    def _count_before(self, low: int, high: int) -> int:
        size, unit = self._in_unit.size, self._unit
        first, second = divmod(low, unit)
        last, end = divmod(high, unit)
        total = self._count_units(first, last) * size
        if self._next_unit(first) == first:
            total -= self._in_unit.index(second)
        if self._next_unit(last) == last:
            total += self._in_unit.index(end)
        return total

    def _count_units(self, low: int, high: int) -> int:
        """How many open units in [low, high) are in step."""
        if self._units is None:
            return (high - 1 - self._origin) // self._interval - (low - 1 - self._origin) // self._interval
        first, first_unit = divmod(low, self._per_day)
        last, last_unit = divmod(high, self._per_day)
        if first == last:
            return self._count_on(first, first_unit, last_unit)
        total = self._count_on(first, first_unit, self._per_day) + self._count_on(last, 0, last_unit)
        return total + self._count_days(first + 1, last)

    def _count_on(self, day: int, low: int, high: int) -> int:
        assert self._units is not None
        if self._days.next(day) != day:
            return 0
        return self._units.count((self._origin - day * self._per_day) % self._interval, low, high)

    def _count_days(self, low: int, high: int) -> int:
        """How many open units in step the whole days in [low, high) have."""
        assert self._units is not None
        if self._cycle == 1:
            return self._days.count(low, high) * self._units.count(self._origin % self._interval, 0, self._per_day)
        known = self._known
        total, day = 0, self._next_day(low)
        while day is not None and day < high:
            residue = (self._origin - day * self._per_day) % self._interval
            if residue not in known:
                known[residue] = self._units.count(residue, 0, self._per_day)
            total += known[residue]
            day = self._next_day(day + 1)
        return total


def _moments_in_unit(parts: Parts) -> Moments:
    minutes = parts.by_minute if parts.freq is Freq.HOURLY else (0,)
    seconds = parts.by_second if parts.freq is not Freq.SECONDLY else (0,)
    return pick(Times((0,), minutes, seconds), parts.by_set_pos)


def _limits_units(parts: Parts, days: DayFilter) -> bool:
    minutes = parts.by_minute and parts.freq is not Freq.HOURLY
    seconds = parts.by_second and parts.freq is Freq.SECONDLY
    return bool(not days.open or parts.by_hour or minutes or seconds)


def _open_units(parts: Parts, common: int, rest: int) -> _Units:
    """The units of a day that the time parts open and that have the one remainder which is ever in step."""
    hours, minutes = parts.by_hour or range(24), parts.by_minute or range(60)
    if parts.freq is Freq.HOURLY:
        units = [hour for hour in hours if hour % common == rest]
    elif parts.freq is Freq.MINUTELY:
        units = [u for hour in hours for minute in minutes if (u := hour * 60 + minute) % common == rest]
    else:
        units = _open_seconds(parts, common, rest)
    return _Sieved(parts, parts.interval) if len(units) > INDEXED_MAX else _Indexed(units, parts.interval)


def _open_seconds(parts: Parts, common: int, rest: int) -> list[int]:
    """As `_open_units`, but it stops when there are too many to list."""
    by_rest: dict[int, list[int]] = {}
    for second in parts.by_second or range(60):
        by_rest.setdefault(second % common, []).append(second)
    units: list[int] = []
    for hour in parts.by_hour or range(24):
        for minute in parts.by_minute or range(60):
            base = hour * 3600 + minute * 60
            units += [base + second for second in by_rest.get((rest - base) % common, ())]
        if len(units) > INDEXED_MAX:
            break
    return units
