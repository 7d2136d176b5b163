"""`business_day`: a trigger around a trigger, whose fire times lie on the business days of a calendar.

The day of a fire time is its local date in the trigger's zone. A convention moves it to a business day, an offset goes
on from there, and the wall time stays. A move never brings a later day before an earlier one, so the days that go to
one day lie together: each of them is asked once. Fire times of several days that come to lie on one day are merged by
their wall time; two on one instant are one. Where the clock changes on a day that something moves to or from, all fire
times of that day are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple

from horarium.clock import INSTANT_MAX, SECOND, Instant
from horarium.errors import InvalidTrigger
from horarium.triggers.base import Trigger
from horarium.triggers.budget import spend
from horarium.triggers.business_days import (
    LAST_DAY,
    MONDAY_TO_FRIDAY,
    Content,
    Convention,
    Days,
    days_of,
    plain,
    read_content,
)
from horarium.triggers.compose import check_tree, check_trigger, walk, zone_of
from horarium.triggers.spec import Spec
from horarium.triggers.words import quote
from horarium.triggers.zones import Gap, Repeat, Zone, get_zone

DAY: Final = 86_400
OFFSET_MAX: Final = 366
SPANS_KEPT: Final = 4
SPANS_MAX: Final = 60
"""Days that go to one day; of more, each is looked at in turn."""
DENSE_MAX: Final = 100_000
"""Fire times of one day that are looked at where the clock changes on it: more than one a second."""


class Span(NamedTuple):
    """A day from which fire times go to another one, or a part of it in which the clock does not change: how far they
    go, its first instant and the one after its last. In microseconds."""

    shift: int
    begin: Instant
    end: Instant


@dataclass(frozen=True, slots=True)
class BusinessDay(Trigger):
    """Fires when its trigger does, moved to business days. `content`: the days of the calendar named `calendar`; None:
    they are not known yet, and nothing can be asked."""

    type: ClassVar[str] = "business_day"
    trigger: Trigger
    calendar: str | None = None
    convention: Convention = Convention.SKIP
    offset: int = 0
    content: Content | None = None
    _zone: Zone = field(init=False, compare=False, repr=False)
    _gap: Gap = field(init=False, compare=False, repr=False)
    _repeat: Repeat = field(init=False, compare=False, repr=False)
    _known: list[Days] = field(init=False, compare=False, repr=False)
    _kept: dict[int, list[Instant]] = field(init=False, compare=False, repr=False)
    _spans: dict[int, tuple[Span, ...] | None] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_trigger(self.trigger, "trigger")
        if self.trigger.after_end is not None:
            raise InvalidTrigger("trigger: what counts from the end of the last run has no days of its own")
        if self.convention not in list(Convention):
            expected = f"expected one of {', '.join(Convention)}"
            raise InvalidTrigger(f"convention: {expected}, not {quote(self.convention)}", field="convention")
        if isinstance(self.offset, bool) or not isinstance(self.offset, int) or abs(self.offset) > OFFSET_MAX:
            raise InvalidTrigger(f"offset: expected a whole number of days up to {OFFSET_MAX}", field="offset")
        check_tree(self)
        if self.content is None and self.calendar is None:
            object.__setattr__(self, "content", MONDAY_TO_FRIDAY)
        object.__setattr__(self, "convention", Convention(self.convention))
        object.__setattr__(self, "_zone", get_zone(zone_of(self.trigger)))
        gap, repeat = _policies(self.trigger)
        object.__setattr__(self, "_gap", gap)
        object.__setattr__(self, "_repeat", repeat)
        object.__setattr__(self, "_known", [])
        object.__setattr__(self, "_kept", {})
        object.__setattr__(self, "_spans", {})

    @classmethod
    def from_spec(cls, spec: Spec) -> BusinessDay:
        """Reads `{"type": "business_day", "trigger", "calendar"?, "convention"?, "offset"?}`; `days` beside a calendar
        is its content, looked up when the trigger is stored."""
        offset: Any = spec.get("offset")
        if spec.has("days") and not spec.has("calendar"):
            raise InvalidTrigger("days: give the name of a calendar", field="days")
        return cls(
            spec.trigger("trigger"),
            spec.optional_text("calendar", "the name of a calendar"),
            spec.text("convention", "a business day convention", Convention.SKIP),  # type: ignore[arg-type]
            0 if offset is None else offset,
            read_content(spec.get("days")) if spec.has("days") else None,
        )

    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = {"type": self.type, "trigger": self.trigger.spec()}
        if self.calendar is not None:
            spec["calendar"] = self.calendar
        if self.convention is not Convention.SKIP:
            spec["convention"] = str(self.convention)
        if self.offset:
            spec["offset"] = self.offset
        if self.calendar is not None and self.content is not None:
            spec["days"] = plain(self.content)
        return spec

    def children(self) -> tuple[Trigger, ...]:
        return (self.trigger,)

    def anchored(self, anchor: Instant) -> BusinessDay:
        return self._around(self.trigger.anchored(anchor))

    def seeded(self, seed: str) -> BusinessDay:
        return self._around(self.trigger.seeded(seed))

    def _around(self, trigger: Trigger) -> BusinessDay:
        if trigger is self.trigger:
            return self
        return BusinessDay(trigger, self.calendar, self.convention, self.offset, self.content)

    def words(self) -> str:
        place = "Monday to Friday" if self.calendar is None else f"calendar {self.calendar}"
        said = {Convention.SKIP: "on business days only", Convention.UNADJUSTED: ""}.get(
            self.convention, f"moved to the {str(self.convention).replace('_', ' ')} business day"
        )
        after = "after" if self.offset > 0 else "before"
        days = f"{abs(self.offset)} business day{'' if abs(self.offset) == 1 else 's'} {after}" if self.offset else ""
        how = ", ".join(part for part in (said, days) if part)
        return f"{self.trigger.words()}, {how} ({place})" if how else self.trigger.words()

    @property
    def only_skips(self) -> bool:
        """True if it moves nothing."""
        return self.convention is Convention.SKIP and not self.offset

    def goes_to(self, fire: Instant) -> list[Instant]:
        """The instants to which a fire time of its trigger goes; none if it falls away."""
        day = _day_of(self._zone, fire)
        if self.convention is Convention.SKIP and not self._days().is_business(day):
            return []
        target = self._days().move(day, self.convention, self.offset)
        return [fire] if day == target else sorted(self._shifted(fire, target))

    # ---- fire times

    def next_fire(self, after: Instant) -> Instant | None:
        if self.convention is Convention.UNADJUSTED and not self.offset:
            return self.trigger.next_fire(after)
        after = max(after, -1)
        today = _day_of(self._zone, after)
        spans = self._spans_of(today)
        if spans is None:
            return self._searched(max(today - _mixes(self._zone, today), 0), after)
        found, fire = _first_of(self.trigger, spans, after, None)
        if found is not None:
            return _in_time(found)
        if not spans:
            fire = self._first_since(self._days().first_source(today, self.convention, self.offset))
        if (fire := self._kept_of(fire)) is None or (target := self._goes_to(fire)) > LAST_DAY:
            return None
        spans = self._spans_of(target)
        if spans is None:
            return self._searched(target, after)
        found, _ = _first_of(self.trigger, spans, -INSTANT_MAX, fire)
        return None if found is None else _in_time(found)

    def _spans_of(self, target: int) -> tuple[Span, ...] | None:
        """The days that go to a day; none where no day does. None where the clock changes on that day and others go to
        it, or so near to midnight that its fire times mix with those of the day before or after."""
        found = self._spans.get(target)
        if found is None and target not in self._spans:
            if len(self._spans) >= SPANS_KEPT:
                self._spans.clear()
            found = self._spans[target] = _spans_to(self._days(), self._zone, target, self.convention, self.offset)
        return found

    def _searched(self, target: int, after: Instant) -> Instant | None:
        """The first fire time after `after` of those that go to this day or a later one."""
        best: Instant | None = None
        last = LAST_DAY
        while target <= last:
            fire = self._on_or_after(max(self._days().first_source(target, self.convention, self.offset), 0))
            if fire is None:
                break
            target = self._goes_to(fire)
            if target > last:
                break
            found, fire = self._first_on(target, fire, after)
            if found is not None and (best is None or found < best):
                best = found
                # Where the clock changes, the end of a day may lie behind the begin of the next one.
                last = min(last, target + 1 if _changes_on(self._zone, target) else target)
            target += 1
        return None if best is None else _in_time(best)

    def _first_on(self, target: int, fire: Instant | None, after: Instant) -> tuple[Instant | None, Instant | None]:
        """The first fire time after `after` of those that go to a day, `fire` being the first of them as it was; and
        the first that goes to a later day."""
        best: Instant | None = None
        dense = _changes_on(self._zone, max(target, 0))
        while fire is not None and self._goes_to(fire) == target:
            spend()
            day = _day_of(self._zone, fire)
            if dense or _changes_on(self._zone, day):
                found = next((each for each in self._moved(day, target) if each > after), None)
            else:
                shift = _start_of(self._zone, target) - _start_of(self._zone, day)
                if fire + shift <= after:
                    fire = self.trigger.next_fire(after - shift)
                found = fire + shift if fire is not None and _day_of(self._zone, fire) == day else None
            if found is not None and (best is None or found < best):
                best = found
            fire = self._on_or_after(day + 1)
        return best, fire

    def _days(self) -> Days:
        if not self._known:
            if self.content is None:
                raise InvalidTrigger(f"calendar: the days of {self.calendar!r} are not known here", field="calendar")
            self._known.append(days_of(self.content))
        return self._known[0]

    def _on_or_after(self, day: int) -> Instant | None:
        """The first fire time of the trigger on this day or later that does not fall away."""
        return self._kept_of(self._first_since(day))

    def _first_since(self, day: int) -> Instant | None:
        """The first fire time of the trigger on this day or later. Where the clock goes back over midnight, the end of
        the day before is shown again once this day has begun: that is no fire time of this day."""
        fire = None if day > LAST_DAY else self.trigger.next_fire(_start_of(self._zone, day) - 1)
        while fire is not None and _day_of(self._zone, fire) < day:
            spend()
            fire = self.trigger.next_fire(fire)
        return fire

    def _kept_of(self, fire: Instant | None) -> Instant | None:
        """This fire time, or the first after it that does not fall away."""
        while fire is not None and self.convention is Convention.SKIP:
            spend()
            day = _day_of(self._zone, fire)
            if self._days().is_business(day):
                break
            fire = self._first_since(self._days().move(day, Convention.FOLLOWING, 0))
        return fire

    def _goes_to(self, fire: Instant) -> int:
        return self._days().move(_day_of(self._zone, fire), self.convention, self.offset)

    def _moved(self, day: int, target: int) -> list[Instant]:
        """All fire times of a day as they lie on another one, ascending."""
        if day not in self._kept:
            # A change of the clock at midnight may show the end of a day again, after the next one has begun.
            starts = [_start_of(self._zone, each) for each in (day, day + 1, day + 2)]
            offsets = [self._zone.segment_at(start // SECOND).offset for start in starts]
            until = starts[1] + (max(offsets) - min(offsets)) * SECOND
            around = self.trigger.list_fires(starts[0] - 1, until - 1, DENSE_MAX)
            fires = [fire for fire in around if _day_of(self._zone, fire) == day]
            moved = fires if day == target else sorted({each for fire in fires for each in self._shifted(fire, target)})
            if len(self._kept) >= 4:
                self._kept.clear()
            self._kept[day] = moved
        return self._kept[day]

    def _shifted(self, fire: Instant, target: int) -> Iterator[Instant]:
        wall = target * DAY + self._zone.to_wall(fire // SECOND) % DAY
        return (utc * SECOND + fire % SECOND for utc in self._zone.to_utc(wall, self._gap, self._repeat))


def _in_time(fire: Instant) -> Instant | None:
    return fire if 0 <= fire < INSTANT_MAX else None


def _day_of(zone: Zone, instant: Instant) -> int:
    return zone.to_wall(instant // SECOND) // DAY


def _start_of(zone: Zone, day: int) -> Instant:
    """The first instant of a day, or where the clock passes over it."""
    return zone.to_utc(day * DAY, Gap.RUN_AT_TRANSITION)[0] * SECOND


def _changes_on(zone: Zone, day: int) -> bool:
    """True if the clock changes on that day, or near enough that its wall times mean anything else."""
    segment = zone.segment_at(_start_of(zone, day) // SECOND)
    return not (segment.clear <= day * DAY and (day + 1) * DAY <= segment.unclear)


def _spans_to(days: Days, zone: Zone, target: int, convention: Convention, offset: int) -> tuple[Span, ...] | None:
    """The days that go to a day, as `BusinessDay` asks for them."""
    if target < 0:
        return None
    if not days.is_business(target):
        return None if _mixes(zone, target) else ()
    begin, end = days.sources(target, convention, offset)
    if end - begin > SPANS_MAX or begin <= 0 or end > LAST_DAY:
        return None
    segment = zone.segment_at(target * DAY)
    if segment.clear <= (min(begin, target) - 1) * DAY and max(end, target + 1) * DAY <= segment.unclear:
        starts = [(day * DAY - segment.offset) * SECOND for day in range(begin, end + 1)]
        start = (target * DAY - segment.offset) * SECOND
        return tuple(Span(start - one, one, two) for one, two in pairwise(starts))
    alone = (begin, end) == (target, target + 1)
    if any(_mixes(zone, day) for day in (target, target + 1, begin, end)) or (_changes_on(zone, target) and not alone):
        return None
    start = _start_of(zone, target)
    found = [
        Span(0 if day == target else start - (day * DAY - offset) * SECOND, first * SECOND, last * SECOND)
        for day in range(begin, end)
        for first, last, offset in _pieces(zone, day)
    ]
    return tuple(sorted(found, key=attrgetter("begin")))


def _first_of(
    trigger: Trigger, spans: tuple[Span, ...], after: Instant, fire: Instant | None
) -> tuple[Instant | None, Instant | None]:
    """The first fire time after `after` of those that come from these days, and the first of the trigger that comes
    after all of them. `fire`: the first of the trigger, where that is known."""
    best: Instant | None = None
    asked = -INSTANT_MAX
    for shift, begin, end in spans:
        since = max(after - shift, begin - 1)
        if fire is None or not asked <= since < fire:
            spend()
            fire, asked = trigger.next_fire(since), since
            if fire is None:
                break
        if fire < end and (best is None or fire + shift < best):
            best = fire + shift
    return best, fire


def _pieces(zone: Zone, day: int) -> Iterator[tuple[int, int, int]]:
    """The stretches of UTC seconds in which the wall clock shows a day, with the offset in each."""
    utc, until = (day - 1) * DAY, (day + 2) * DAY
    while utc < until:
        segment = zone.segment_at(utc)
        begin = max(segment.start, day * DAY - segment.offset)
        end = min(segment.end, (day + 1) * DAY - segment.offset)
        if begin < end:
            yield begin, end, segment.offset
        utc = segment.end


def _mixes(zone: Zone, day: int) -> bool:
    """True if the clock changes so near to the begin of a day that fire times of the day before may lie behind it."""
    segment = zone.segment_at(_start_of(zone, day) // SECOND)
    if segment.unclear < day * DAY:  # the end of the day before is shown again
        return True
    if segment.clear <= (day - 1) * DAY:
        return False
    before = zone.segment_at(segment.start - 1).offset
    return segment.clear + abs(segment.offset - before) > day * DAY


def _policies(trigger: Trigger) -> tuple[Gap, Repeat]:
    """The policies for wall times that the clock skips and repeats: those of the first member that has any."""
    for part in walk(trigger):
        if part.type in ("cron", "rrule"):
            spec = part.spec()
            usual = Gap.SHIFT if part.type == "rrule" else Gap.RUN_AT_TRANSITION
            return Gap(spec.get("gap", usual)), Repeat(spec.get("repeat", Repeat.FIRST))
    return Gap.RUN_AT_TRANSITION, Repeat.FIRST


def business_day(
    trigger: Trigger,
    calendar: str | None = None,
    *,
    convention: Convention | str = Convention.SKIP,
    offset: int = 0,
    content: Content | None = None,
) -> BusinessDay:
    """A trigger on the business days of a calendar that is stored under this name (None: Monday to Friday). `offset`:
    that many business days on, or back. `content`: its days, where they are at hand; the store's are taken once a job
    is defined. Raises InvalidTrigger."""
    return BusinessDay(trigger, calendar, convention, offset, content)  # type: ignore[arg-type]


__all__ = ["BusinessDay", "Content", "Convention", "business_day"]
