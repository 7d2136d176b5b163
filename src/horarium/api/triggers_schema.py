"""How triggers look in JSON, for the OpenAPI document. `triggers` reads and checks them; nothing here does.

A test reads an example of each through `parse_trigger`, and compares the names of the types with those that it knows.
Packages may bring more types; those are not described.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Zone = Annotated[str, Meta(max_length=64, description="An IANA time zone.", examples=["Europe/Berlin"])]
Gap = Annotated[
    Literal["shift", "skip", "run_at_transition"],
    Meta(description="What becomes of a fire time that the clock skips when daylight saving begins."),
]
Repeat = Annotated[
    Literal["first", "second", "both"],
    Meta(description="Which of two equal wall times fires when daylight saving ends."),
]


class TriggerBase(Struct, tag_field="type", omit_defaults=True):
    """What all triggers have in common."""


class CronTrigger(TriggerBase, tag="cron"):
    """5 fields, 6 (seconds first) or 7 (year last), or `@daily` and its family."""

    expression: Annotated[str, Meta(max_length=256, examples=["0 3 * * *"])]
    timezone: Zone = "UTC"
    day_match: Annotated[
        Literal["any", "all"], Meta(description="Day of month and day of week both given: either, or both.")
    ] = "any"
    gap: Gap = "run_at_transition"
    repeat: Repeat = "first"
    seed: Annotated[str, Meta(max_length=200, description="Spreads `H`; left out: the job's name.")] | None = None


class IntervalTrigger(TriggerBase, tag="interval"):
    """Every so many seconds, counted from `anchor` (left out: from when the job is defined), so it does not drift."""

    every_seconds: Annotated[float, Meta(ge=1, le=3653 * 24 * 3600)]
    anchor: datetime | None = None


class OnceTrigger(TriggerBase, tag="once"):
    """A single instant."""

    at: datetime


class RruleTrigger(TriggerBase, tag="rrule"):
    """RFC 5545: `FREQ=...`, `RRULE:...`, or several lines with DTSTART, RRULE, RDATE, EXDATE, EXRULE."""

    rrule: Annotated[str, Meta(max_length=8192, examples=["FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=15;BYMINUTE=15"])]


class PhraseTrigger(TriggerBase, tag="phrase"):
    """Plain English. What was understood stands in `words`; a word that is left over is refused."""

    text: Annotated[str, Meta(max_length=512, examples=["every other tuesday at 9:34am"])]
    timezone: Zone = "UTC"
    anchor: datetime | None = None


class AnyOfTrigger(TriggerBase, tag="any_of"):
    """Fires whenever one of them does."""

    triggers: Annotated[list[AnyTrigger], Meta(min_length=1, max_length=64)]


class ExceptTrigger(TriggerBase, tag="except", rename={"excluded": "except"}):
    """Fires as `trigger` does, but not at what `except` lists: triggers, dates, windows."""

    trigger: AnyTrigger
    excluded: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=64)]


class BetweenTrigger(TriggerBase, tag="between", rename={"start": "from"}):
    """Fires as `trigger` does, from `from` (included) to `until` (excluded)."""

    trigger: AnyTrigger
    start: datetime | None = None
    until: datetime | None = None


AnyTrigger = (
    CronTrigger
    | IntervalTrigger
    | OnceTrigger
    | RruleTrigger
    | PhraseTrigger
    | AnyOfTrigger
    | ExceptTrigger
    | BetweenTrigger
)
