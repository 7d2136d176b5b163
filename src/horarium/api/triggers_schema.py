"""How triggers look in JSON, for the OpenAPI document. `triggers` reads and checks them; nothing here does.

A test reads an example of each through `parse_trigger`, and compares the names of the types with those that it knows.
Packages may bring more types; those are not described. Null is the same as left out everywhere.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

_DAY = r"(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-9]|3[01])"
_DATE = rf"[0-9]{{4}}-{_DAY}"
_CRON = r"[0-9A-Za-z*?/,#~+-]+"
_MACROS = "|".join(
    "".join(f"[{letter.upper()}{letter}]" for letter in name)
    for name in ("hourly", "daily", "midnight", "weekly", "monthly", "yearly", "annually")
)
CronText = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=256,
        pattern=rf"^[ \t]*(@({_MACROS})|{_CRON}([ \t]+{_CRON}){{4,6}})[ \t]*$",
        examples=["0 3 * * *"],
    ),
]
Zone = Annotated[str, Meta(min_length=1, max_length=64, description="An IANA time zone.", examples=["Europe/Berlin"])]
Gap = Annotated[
    Literal["shift", "skip", "run_at_transition"],
    Meta(description="What happens to a fire time that the clock skips when daylight saving begins."),
]
Repeat = Annotated[
    Literal["first", "second", "both"],
    Meta(description="Which of two equal wall times fires when daylight saving ends."),
]
Weekday = Annotated[
    str,
    Meta(
        pattern=r"^([Ss][Uu][Nn]|[Mm][Oo][Nn]|[Tt][Uu][Ee]|[Ww][Ee][Dd]|[Tt][Hh][Uu]|[Ff][Rr][Ii]|[Ss][Aa][Tt])$",
        examples=["sat"],
    ),
]
Dates = Annotated[str, Meta(pattern=rf"^({_DATE}|{_DATE}/{_DATE}|{_DAY})$")]
TimeOfDay = Annotated[str, Meta(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?$", examples=["22:00"])]


class _Trigger(Struct, tag_field="type", forbid_unknown_fields=True):
    """The common fields of all triggers."""


class CronTrigger(_Trigger, tag="cron"):
    """5 fields, 6 (seconds first) or 7 (year last), or `@daily` and its family."""

    expression: CronText
    timezone: Zone | None = None
    day_match: (
        Annotated[Literal["any", "all"], Meta(description="Day of month and of week both given: either, or both.")]
        | None
    ) = None
    gap: Gap | None = None
    repeat: Repeat | None = None
    seed: Annotated[str, Meta(max_length=200, description="Spreads `H`; left out: the job's name.")] | None = None


class IntervalTrigger(_Trigger, tag="interval"):
    """Every `every_seconds`, counted from `anchor` (left out: from when the job is defined), so it does not drift.
    With `from` `end`, and no anchor: from the end of the last run."""

    every_seconds: Annotated[float, Meta(ge=0.05, le=3653 * 24 * 3600, examples=[300, 0.25])]
    anchor: datetime | None = None
    from_: Literal["end"] | None = field(default=None, name="from")


class OnceTrigger(_Trigger, tag="once"):
    """A single instant."""

    at: datetime


class RruleTrigger(_Trigger, tag="rrule"):
    """RFC 5545: `FREQ=...`, `RRULE:...`, or several lines with DTSTART, RRULE, RDATE, EXDATE, EXRULE; RFC 7529's SKIP.
    A rule without DTSTART is anchored to `anchor`, or to when the job is defined."""

    rrule: Annotated[
        str, Meta(min_length=1, max_length=8192, examples=["FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=15;BYMINUTE=15"])
    ]
    timezone: Zone | None = None
    gap: Gap | None = None
    repeat: Repeat | None = None
    anchor: datetime | None = None


class PhraseTrigger(_Trigger, tag="phrase"):
    """Plain English. The understood meaning is in `words`; a word that is left over is refused."""

    text: Annotated[str, Meta(min_length=1, max_length=512, examples=["every other tuesday at 9:34am"])]
    timezone: Zone | None = None
    anchor: datetime | None = None


class AnyOfTrigger(_Trigger, tag="any_of"):
    """Fires whenever one of them does."""

    triggers: Annotated[list[AnyTrigger], Meta(min_length=1, max_length=64)]


class ExceptTrigger(_Trigger, tag="except", rename={"excluded": "except"}):
    """Fires as `trigger` does, but not at what `except` lists: dates, weekdays, windows of time, other triggers."""

    trigger: AnyTrigger
    excluded: Annotated[list[Any], Meta(min_length=1, max_length=64)]


class BetweenTrigger(_Trigger, tag="between", rename={"start": "from"}):
    """Fires as `trigger` does, from `from` (included) to `until` (excluded)."""

    trigger: AnyTrigger
    start: datetime | None = None
    until: datetime | None = None


class BusinessDayTrigger(_Trigger, tag="business_day"):
    """Fires as `trigger` does, on the business days of a calendar (left out: Monday to Friday). A convention moves a
    fire time whose local date is none; the wall time stays; then `offset` business days on, or back."""

    trigger: AnyTrigger
    calendar: Annotated[str, Meta(min_length=1, max_length=200, examples=["target2"])] | None = None
    convention: (
        Literal["unadjusted", "skip", "following", "preceding", "modified_following", "modified_preceding", "nearest"]
        | None
    ) = None
    offset: Annotated[int, Meta(ge=-366, le=366)] | None = None


class Seconds(Struct, forbid_unknown_fields=True):
    """The length of a window, counted from 1970."""

    seconds: Annotated[float, Meta(ge=1, le=31622400)]


class AfterTrigger(_Trigger, tag="after"):
    """Fires once in each window in which all of these jobs had a run that completed (or `finished`: ended in any way).
    The fire time is the start of the window; a run counts in the window of its own fire time, a retry in that of the
    run that it repeats. `deadline_seconds` after that start a window in which one is missing is `missed`. Stands alone:
    no other trigger may hold it."""

    jobs: Annotated[list[str], Meta(min_length=1, max_length=64, examples=[["extract-a", "extract-b"]])]
    outcome: Literal["completed", "finished"] | None = None
    within: Literal["hour", "day", "week", "month"] | Seconds | None = None
    timezone: Zone | None = None
    deadline_seconds: Annotated[float, Meta(ge=1, le=94867200)] | None = None


AnyTrigger = (
    CronTrigger
    | IntervalTrigger
    | OnceTrigger
    | RruleTrigger
    | PhraseTrigger
    | AnyOfTrigger
    | ExceptTrigger
    | BetweenTrigger
    | BusinessDayTrigger
    | AfterTrigger
)


class ExcludedDates(Struct, forbid_unknown_fields=True):
    """Whole days: `2026-12-25`, `2026-12-24/2027-01-01`, or `12-25` for every year."""

    dates: Annotated[list[Dates], Meta(min_length=1, max_length=1000, examples=[["12-25", "2026-12-24/2027-01-01"]])]
    timezone: Zone | None = None


class ExcludedWeekdays(Struct, forbid_unknown_fields=True):
    """Whole days of the week."""

    weekdays: Annotated[list[Weekday], Meta(min_length=1, max_length=7)]
    timezone: Zone | None = None


class ExcludedHours(Struct, forbid_unknown_fields=True, rename={"start": "from"}):
    """Every day from one time of day to another (`22:00` to `06:00` passes midnight)."""

    start: TimeOfDay
    until: TimeOfDay
    weekdays: Annotated[list[Weekday], Meta(min_length=1, max_length=7)] | None = None
    timezone: Zone | None = None


class ExcludedWindow(Struct, forbid_unknown_fields=True, rename={"start": "from"}):
    """Once, from one instant on, until another if one is given."""

    start: datetime
    until: datetime | None = None


class ExcludedUntil(Struct, forbid_unknown_fields=True):
    """Everything before an instant."""

    until: datetime


class ExcludedAfter(Struct, forbid_unknown_fields=True):
    """`for_seconds` seconds from each fire time of a trigger on."""

    trigger: AnyTrigger
    for_seconds: Annotated[float, Meta(gt=0)]


EXCLUSIONS = (ExcludedDates, ExcludedWeekdays, ExcludedHours, ExcludedWindow, ExcludedUntil, ExcludedAfter)
"""Members of `except`, besides triggers."""
