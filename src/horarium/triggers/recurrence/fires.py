"""From occurrences on the wall clock to instants: where rules meet time zones.

`WallFires` serves DAILY and slower rules, which keep the wall time; `ElapsedFires` serves faster ones, which keep the
distance. Both work on segments, stretches of one offset in which wall clock and UTC run in step. Around a clock change
a skipped wall time is shifted past later ones and a repeated one may fire twice, and yet the fire times must rise
strictly. So near a change a segment is asked for all it can yield; far from one, which is nearly always, the first
answer of the wall clock is right.

All instants here are UTC seconds, unlike everywhere else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from horarium.clock import INSTANT_MAX, SECOND
from horarium.triggers.recurrence.civil import DAY_SECONDS, WALL_MAX
from horarium.triggers.recurrence.parts import Freq, Parts, fill_parts
from horarium.triggers.recurrence.periods import DayFilter, Pattern, make_pattern
from horarium.triggers.recurrence.steps import UNIT_SECONDS, Steps
from horarium.triggers.zones import Gap, Repeat, Segment, Zone

END: Final = INSTANT_MAX // SECOND
"""The first UTC second at which nothing fires any more: 2201-01-01."""

_REACH: Final = 26 * 3600  # longer than any change of an offset, and than any offset
_WINDOW: Final = 1 << 25  # seconds that are counted at once


class Fires(ABC):
    """The instants of one recurrence rule, in UTC seconds."""

    __slots__ = ("_until",)

    def __init__(self, until: int | None) -> None:
        self._until = END - 1 if until is None else min(until, END - 1)

    def next(self, after: int) -> int | None:
        """The first instant strictly after a UTC second."""
        if after >= self._until:
            return None
        found = self._next(max(after, -1))
        return found if found is not None and found <= self._until else None

    def is_possible(self) -> bool:
        """Whether the rule fires at all. COUNT is left aside, for it leaves at least the first."""
        found = self._next(-1)
        return found is not None and found <= self._until

    @abstractmethod
    def _next(self, after: int) -> int | None: ...

    def count(self, after: int, until: int) -> int | None:
        """How many instants lie in (after, until], where arithmetic alone knows; else None."""
        return None


def make_fires(
    parts: Parts,
    zone: Zone,
    start: int,
    *,
    until: int | None = None,
    gap: Gap = Gap.SHIFT,
    repeat: Repeat = Repeat.FIRST,
    begins_after_start: bool = False,
) -> Fires:
    """The instants of a rule that starts at the wall second `start`; nothing before it is an occurrence.

    With `begins_after_start` the start itself is none either: the periods count from it, the occurrences after it.
    """
    if parts.freq >= Freq.HOURLY:
        return ElapsedFires(parts, zone, zone.to_utc(start)[0], until, begins_after_start)
    pattern = make_pattern(fill_parts(parts, start), start, start + begins_after_start)
    if parts.count is not None:
        pattern = _Counted(pattern, parts.count, zone if gap is Gap.SKIP else None)
    return WallFires(pattern, zone, until, gap, repeat)


class WallFires(Fires):
    """A rule that keeps the wall time through every change of the offset."""

    __slots__ = ("_gap", "_pattern", "_repeat", "_zone")

    def __init__(self, pattern: Pattern, zone: Zone, until: int | None, gap: Gap, repeat: Repeat) -> None:
        super().__init__(until)
        self._pattern, self._zone, self._gap, self._repeat = pattern, zone, gap, repeat

    def is_possible(self) -> bool:
        if not isinstance(self._pattern, _Counted):
            return super().is_possible()
        return WallFires(self._pattern.whole, self._zone, self._until, self._gap, self._repeat).is_possible()

    def _next(self, after: int) -> int | None:
        segment = self._zone.segment_at(after)
        local = after + segment.offset
        if after - segment.start < _REACH or local >= segment.unclear:
            return self._search(after)
        wall = self._pattern.after(local)
        if wall is None or wall < segment.unclear:
            return wall if wall is None else wall - segment.offset
        there = self._zone.segment_at(wall - segment.offset)
        return wall - there.offset if there.clear <= wall < there.unclear else self._search(after)

    def _search(self, after: int) -> int | None:
        """The careful way: segment by segment, leaving out those in which nothing can fall."""
        at = after
        while at < END:
            segment = self._zone.segment_at(at)
            found = self._first_in(segment, after)
            if found is not None:
                return found
            wall = self._pattern.after(min(segment.end + segment.offset - _REACH, WALL_MAX))
            if wall is None:
                return None
            at = max(segment.end, wall - _REACH)
        return None

    def _first_in(self, segment: Segment, after: int) -> int | None:
        start, end, offset, clear, unclear = segment
        low = clear if self._repeat is Repeat.FIRST else start + offset
        high = unclear if self._repeat is Repeat.SECOND else end + offset
        wall = self._pattern.after(max(low - 1, after + offset))
        late = self._first_from_gap(segment, after)
        if wall is None or wall >= high:
            return late
        return wall - offset if late is None else min(wall - offset, late)

    def _first_from_gap(self, segment: Segment, after: int) -> int | None:
        """The first instant that the wall times skipped at the beginning of the segment mean."""
        if self._gap is Gap.SKIP:
            return None
        before = self._zone.segment_at(segment.start - 1).offset
        if before >= segment.offset or (self._gap is Gap.RUN_AT_TRANSITION and segment.start <= after):
            return None
        wall = self._pattern.after(max(segment.start - 1, after) + before)
        if wall is None or wall >= segment.start + segment.offset:
            return None
        return wall - before if self._gap is Gap.SHIFT else segment.start


class _Counted(Pattern):
    """A pattern that ends with occurrence number `count`; with `zone`, those that its clock skips do not count."""

    __slots__ = ("_count", "_last", "_zone", "first", "whole")

    def __init__(self, pattern: Pattern, count: int, zone: Zone | None) -> None:
        self.whole, self._count, self._zone = pattern, count, zone
        self.first = pattern.first
        self._last: int | None = None

    def after(self, wall: int) -> int | None:
        if self._last is None:
            self._last = self._find_last()
        if wall >= self._last:
            return None
        found = self.whole.after(wall)
        return found if found is not None and found <= self._last else None

    def nth(self, number: int) -> int | None:
        return self.whole.nth(number) if number <= self._count else None

    def count_within(self, low: int, high: int) -> int:
        return self.whole.count_within(low, high)

    def _find_last(self) -> int:
        wanted = self._count
        while (last := self.whole.nth(wanted)) is not None:
            found = self._count + self._count_skipped(last)
            if found == wanted:
                return last
            wanted = found
        return WALL_MAX

    def _count_skipped(self, last: int) -> int:
        if self._zone is None:
            return 0
        total, segment = 0, self._zone.segment_at(self.first - _REACH)
        while segment.end < min(last + _REACH, END):
            following = self._zone.segment_at(segment.end)
            skipped = following.start + following.offset
            total += self.whole.count_within(segment.end + segment.offset, min(skipped, last + 1))
            segment = following
        return total


class ElapsedFires(Fires):
    """A rule by the hour, minute or second: in step with elapsed time, limited by what the wall clock shows."""

    __slots__ = ("_count", "_days", "_first", "_parts", "_start", "_step", "_steps", "_zone")

    def __init__(self, parts: Parts, zone: Zone, start: int, until: int | None, begins_after_start: bool) -> None:
        super().__init__(until)
        self._parts, self._zone, self._start = parts, zone, start
        self._first = start + begins_after_start
        self._days = DayFilter(parts)
        self._steps: dict[int, Steps] = {}
        self._step = parts.interval * UNIT_SECONDS[parts.freq] if _is_plain(parts) else None
        self._count = parts.count

    def next(self, after: int) -> int | None:
        if self._count is not None:
            self._until = min(self._until, self._find_last(self._count))
            self._count = None
        return super().next(after)

    def _next(self, after: int) -> int | None:
        at = max(after + 1, self._first)
        if self._step is not None:
            return at + (self._start - at) % self._step
        while at < END:
            segment = self._zone.segment_at(at)
            offset = segment.offset
            wall = self._steps_at(offset).after(at + offset - 1)
            if wall is not None and wall - offset < segment.end:
                return wall - offset
            day = self._days.next((min(segment.end, END) + offset) // DAY_SECONDS - 1)
            if day is None:
                return None
            at = max(segment.end, day * DAY_SECONDS - _REACH)
        return None

    def count(self, after: int, until: int) -> int | None:
        if self._step is None or self._count is not None:
            return None
        low, high = max(after, self._first - 1) - self._start, min(until, self._until) - self._start
        return max(0, high // self._step - low // self._step)

    def _steps_at(self, offset: int) -> Steps:
        steps = self._steps.get(offset)
        if steps is None:
            self._steps[offset] = steps = self._make_steps(offset)
        return steps

    def _make_steps(self, offset: int) -> Steps:
        start = self._start + offset
        return Steps(fill_parts(self._parts, start), start, self._days)

    def _find_last(self, count: int) -> int:
        """The instant of occurrence number `count`, or END; counted a window at a time, so its cost is bounded."""
        if self._step is not None:
            return self._first + (self._start - self._first) % self._step + (count - 1) * self._step
        known: dict[int, Steps] = {}  # counting fills caches that are not needed afterwards
        at = self._first
        while at < END:
            segment = self._zone.segment_at(at)
            end, offset = min(segment.end, at + _WINDOW), segment.offset
            steps = known.setdefault(offset, self._make_steps(offset))
            within = steps.count(at + offset, end + offset)
            if within >= count:
                return _nth_within(steps, at + offset, end + offset, count) - offset
            count -= within
            at = end
        return END


def _nth_within(steps: Steps, low: int, high: int, number: int) -> int:
    """The occurrence number `number` in [low, high), which has that many, by halving."""
    begin = low
    while high - low > 1:
        middle = (low + high) // 2
        if steps.count(begin, middle) >= number:
            high = middle
        else:
            low = middle
    return low


def _is_plain(parts: Parts) -> bool:
    """Whether the rule is only a step: no part limits or expands it."""
    bare = Parts(parts.freq, parts.interval, parts.count, parts.until, wkst=parts.wkst, skip=parts.skip)
    return parts == bare
