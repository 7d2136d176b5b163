"""Calendars and the triggers that use them: which, with which days, and how a change of the days changes fire times.

A stored trigger carries the days of its calendar as they were when it was stored (`days`), so that a job's fire times
follow from the job alone, and an old version of it says what was then. What writes a job looks the days up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from horarium.clock import DAY, Instant, to_text
from horarium.errors import InvalidRequest, InvalidTrigger, TooExpensive
from horarium.model import Job
from horarium.model.calendars import RULES_MAX, Calendar
from horarium.rules.compiled import trigger_of
from horarium.rules.differing import NEAR, FireChanges, Moved, fires_compared
from horarium.rules.overriding import still_yielded
from horarium.triggers.business_days import WEEKDAYS, Content, date_of, day_of, days_of, plain, rule_days
from horarium.triggers.phrase_calendars import calendar_named

TYPE = "business_day"
PHRASE = "phrase"
LOOKED_AHEAD = 400 * DAY
FIRES_MAX = 1_000
"""Fire times of one job that a comparison looks at."""
ENDS_SOON = 60
"""A calendar that knows fewer days than this from today on needs attention."""
EVERY_DAY = Content(weekend=())
FIRES_OF_A_YEAR = 500
"""Fire times of one job that are looked at to say what a calendar does to them: one a day, and some."""


def content_of(calendar: Calendar) -> Content:
    """The calendar as far as it decides anything. Raises InvalidRequest that names a wrong holiday."""
    dates, rules = [], []
    for index, holiday in enumerate(calendar.listed):
        field = f"holidays[{index}]"
        if (holiday.date is None) == (holiday.rrule is None):
            raise InvalidRequest(f"{field}: give either a date or an rrule", field=field)
        if holiday.rrule is not None:
            _check_rule(holiday.rrule, field)
            rules.append(holiday.rrule)
        elif holiday.date is not None:
            dates.append(_checked(holiday.date, field))
    if len(rules) > RULES_MAX:
        raise InvalidRequest(f"holidays: at most {RULES_MAX} rules, not {len(rules)}; give dates", field="holidays")
    for index, day in enumerate(calendar.business_days):
        _checked(day, f"business_days[{index}]")
    if calendar.ends_on is not None:
        _checked(calendar.ends_on, "ends_on")
    content = Content(
        weekend=tuple(name for name in WEEKDAYS if name in calendar.weekend),
        dates=tuple(sorted(set(dates))),
        rules=tuple(sorted(set(rules))),
        business_days=tuple(sorted(set(calendar.business_days))),
        ends_on=calendar.ends_on,
    )
    try:
        is_empty = days_of(content).is_empty
    except TooExpensive:
        message = "holidays: the rules yield too many days; one that is free each week belongs in weekend"
        raise InvalidRequest(message, field="holidays") from None
    if is_empty:
        raise InvalidRequest("weekend: no day is left that is a business day", field="weekend")
    return content


def _checked(text: str, field: str) -> str:
    try:
        day_of(text)
    except ValueError:
        raise InvalidRequest(f"{field}: there is no day {text}", field=field) from None
    return text


def _check_rule(rule: str, field: str) -> None:
    try:
        rule_days(rule)
    except InvalidTrigger as error:
        raise InvalidRequest(f"{field}.rrule: {error.message}", field=f"{field}.rrule") from None


def ends_soon(ends_on: str | None, now: Instant) -> bool:
    """Whether a calendar that ends on that day knows few more."""
    return ends_on is not None and day_of(ends_on) < now // DAY + ENDS_SOON


# ---- in triggers ------------------------------------------------------------------------------------------------


def calendars_in(trigger: Any) -> Iterator[str]:
    """The names of the calendars that the JSON form of a trigger asks for, in it and in its members."""
    for node in _nodes(trigger):
        if isinstance(name := _named(node), str):
            yield name


def with_days(trigger: Mapping[str, Any], known: Mapping[str, Content]) -> dict[str, Any]:
    """The trigger with the days of its calendars. Raises InvalidTrigger for one that is not known."""
    for name in calendars_in(trigger):
        if name not in known:
            field = "text" if trigger.get("type") == PHRASE else "calendar"
            message = f"{field}: there is no calendar named {name[:200]!r}; define it first"
            raise InvalidTrigger(message, field=f"trigger.{field}")
    changed: dict[str, Any] = _changed(trigger, lambda name: {"days": plain(known[name])})
    return changed


def without_days(trigger: Mapping[str, Any]) -> dict[str, Any]:
    """The trigger as its owner wrote it."""
    return _changed(trigger, lambda name: {}) if uses_days(trigger) else dict(trigger)


def uses_days(trigger: Any) -> bool:
    """True if the trigger, or a member of it, is one of business days."""
    return next(_nodes(trigger), None) is not None


def _named(node: Mapping[str, Any]) -> Any:
    """The calendar that the JSON form of one trigger names; of a phrase, in its words."""
    if node.get("type") == PHRASE:
        return calendar_named(node.get("text"))
    return node.get("calendar") if node.get("type") == TYPE else None


def _nodes(value: Any) -> Iterator[Mapping[str, Any]]:
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if part.get("type") == TYPE or _named(part) is not None:
                yield part
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part


def _changed(value: Any, days: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_changed(part, days) for part in value]
    if not isinstance(value, Mapping):
        return value
    name = _named(value)
    is_ours = value.get("type") == TYPE or name is not None
    changed = {key: _changed(part, days) for key, part in value.items() if not (is_ours and key == "days")}
    return {**changed, **days(name)} if is_ours and isinstance(name, str) else changed


# ---- a change of days -------------------------------------------------------------------------------------------


class FireChange(Struct, frozen=True):
    """The fire times of a job within the next 400 days that a change of its calendar adds, removes and moves.
    `overrides_dropped`: those of them that were skipped or moved by hand, and are no fire times of the rule then."""

    job: str
    added: Sequence[str]
    removed: Sequence[str]
    moved: Sequence[Moved]
    overrides_dropped: Sequence[str] | UnsetType = UNSET


def compare(job: Job, name: str, content: Content, now: Instant) -> FireChange | None:
    """How the fire times of a job change with the days of a calendar; None: they stay. Raises TooExpensive."""
    changed = replace(job, trigger=_with(job.trigger, name, content))
    before, after = (
        trigger_of(each).list_fires(now, now + LOOKED_AHEAD, FIRES_MAX) if each.enabled else []
        for each in (job, changed)
    )
    changes = fires_compared(before, after)
    dropped = [*map(to_text, still_yielded(changed, now).overrides_dropped)]
    return FireChange(job.name, *changes.texts(), dropped or UNSET) if any(changes) or dropped else None


def effect(job: Job, name: str, weekend: Sequence[str], since: Instant, until: Instant) -> tuple[FireChanges, bool]:
    """What a calendar does to the fire times of a job in [since, until), compared with a calendar of which each day is
    a business day; where it moves none and leaves some out alone, with one that has weekends alone. And whether they
    were too many to look at all."""

    def fires(content: Content | None) -> list[Instant]:
        asked = job if content is None else replace(job, trigger=_with(job.trigger, name, content))
        return trigger_of(asked).list_fires(max(since - NEAR, 0) - 1, until + NEAR, FIRES_OF_A_YEAR)

    base, real = fires(EVERY_DAY), fires(None)
    changes = _within(base, real, since, until)
    if not changes.added and not changes.moved:
        base = fires(Content(weekend=tuple(weekend)))
        changes = _within(base, real, since, until, near=0)
    return changes, FIRES_OF_A_YEAR in (len(base), len(real))


def _within(
    base: Sequence[Instant], real: Sequence[Instant], since: Instant, until: Instant, near: int = NEAR
) -> FireChanges:
    ends = [fires[-1] for fires in (base, real) if len(fires) == FIRES_OF_A_YEAR]
    until, known = min([until, *ends]), min(ends, default=until + NEAR)
    found = fires_compared([fire for fire in base if fire <= known], [fire for fire in real if fire <= known], near)
    return FireChanges(
        [fire for fire in found.added if since <= fire < until],
        [fire for fire in found.removed if since <= fire < until],
        [(before, after) for before, after in found.moved if since <= before < until],
    )


def _with(trigger: Any, name: str, content: Content) -> Any:
    """The trigger with other days for one calendar, and its own for all others."""
    known = {named: node.get("days") for node in _nodes(trigger) if isinstance(named := _named(node), str)}
    days = {**known, name: plain(content)}
    return _changed(trigger, lambda each: {"days": days[each]})


def holiday_names(calendar: Calendar, since: int, until: int) -> dict[int, str]:
    """The names of the holidays from one day to another (both included), by day."""
    names: dict[int, str] = {}
    for holiday in calendar.listed:
        if holiday.rrule is not None:
            fires = rule_days(holiday.rrule).list_fires(since * DAY - 1, (until + 1) * DAY - 1, until - since + 1)
            found = [fire // DAY for fire in fires]
        else:
            found = [day_of(holiday.date or "")]
        names.update({day: holiday.name for day in found if holiday.name is not None and since <= day <= until})
    return names


def text_of_day(day: int) -> str:
    return date_of(day).isoformat()
