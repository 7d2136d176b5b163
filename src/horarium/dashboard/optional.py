"""Fields of the form of a job that most jobs leave empty; their text is laid over the JSON of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from horarium.triggers import every
from horarium.wire.faults import Fault

UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))
LENGTHS = {
    "jitter": ("", "jitter_seconds"),
    "start_by": ("timeouts", "start_seconds"),
    "lease": ("timeouts", "heartbeat_seconds"),
}
FOLLOWS = {"tell": ("failed", "notify"), "then_run": ("completed", "trigger")}
"""For follow-ups that are no more than a name; a list with any other is left to the JSON."""
OPTIONAL = ("priority", *LENGTHS, *FOLLOWS)
PLACES = {
    "priority": "priority",
    "jitter_seconds": "jitter",
    "timeouts.start_seconds": "start_by",
    "timeouts.heartbeat_seconds": "lease",
}
TWICE = "Stands here and in the JSON below, with another value."


def taken_from(others: dict[str, Any]) -> dict[str, str]:
    """These fields of a stored job, which are taken out of the rest of its definition."""
    taken = {"priority": str(others.pop("priority", ""))}
    for field, (group, name) in LENGTHS.items():
        seconds = (others.get(group, {}) if group else others).pop(name, None)
        taken[field] = "" if seconds is None else length_text(seconds)
    on = others.get("on", {})
    for field, (occasion, action) in FOLLOWS.items():
        plain = all(set(one) == {action} for one in on.get(occasion, ()))
        taken[field] = ", ".join(one[action] for one in on.pop(occasion, ())) if plain else ""
    for group in ("timeouts", "on"):
        if not others.get(group, True):
            del others[group]
    return taken


def lay_over(made: dict[str, Any], form: Mapping[str, str], faults: list[Fault]) -> None:
    """Lay the typed text over the definition."""

    def put(place: dict[str, Any], name: str, value: float | str, field: str) -> None:
        if place.setdefault(name, value) != value:
            faults.append(Fault(field, TWICE))

    given = {name: text for name in OPTIONAL if (text := form.get(name, "").strip())}
    if number := given.get("priority"):
        if number.removeprefix("-").isdecimal() and len(number) < 10:
            put(made, "priority", int(number), "priority")
        else:
            faults.append(Fault("priority", f"{number[:50]!r} is no whole number"))
    for field, (group, name) in LENGTHS.items():
        if field in given:
            put(made.setdefault(group, {}) if group else made, name, read_length(given[field], faults, field), field)
    for field, (occasion, action) in FOLLOWS.items():
        if names := [name for part in given.get(field, "").split(",") if (name := part.strip())]:
            on = made.setdefault("on", {})
            on[occasion] = [*on.get(occasion, ()), *({action: name} for name in names)]


def length_text(seconds: float) -> str:
    """`90m`, `5d`."""
    unit, letter = next((each for each in UNITS if seconds % each[0] == 0 and seconds), (1, ""))
    return f"{seconds / unit:.15g}{letter}"


def read_length(text: str, faults: list[Fault], field: str = "rule") -> float | str:
    """An interval as people type it: `90`, `90s`, `5m`, `1h30m`. One that can't be read stays as it is."""
    try:
        return float(every(float(text) if text.replace(".", "", 1).isdigit() else text).spec()["every_seconds"])
    except ValueError as error:
        faults.append(Fault(field, str(error)))
        return text
