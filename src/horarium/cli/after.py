"""`--after JOB,JOB --within day`: a job that follows from runs of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from horarium.cli.fields import DURATION, TRIGGER_FLAGS, duration_seconds

WINDOWS = ("hour", "day", "week", "month")
BELONGING = ("within", "outcome", "deadline")
AFTER_OPTIONS = [
    click.option("--after", metavar="JOB,JOB", help="Once in each window in which all of these jobs had a run."),
    click.option("--within", metavar="WINDOW", help="With --after: hour, day (left out: day), week, month, or 15m."),
    click.option(
        "--outcome",
        type=click.Choice(["completed", "finished"]),
        help="With --after: runs that completed (if left out), or that ended in any way.",
    ),
    click.option(
        "--deadline",
        type=DURATION,
        metavar="DURATION",
        help="With --after: a window is missed so long after its start.",
    ),
]


def after_of(flags: Mapping[str, Any]) -> dict[str, Any] | None:
    """The trigger that these flags give; None if they give none. Raises UsageError beside those of another one."""
    if flags.get("after") is None:
        alone = next((name for name in BELONGING if flags.get(name) is not None), None)
        if alone is not None:
            raise click.UsageError(f"--{alone} belongs to --after")
        return None
    other = next((name for name in (*TRIGGER_FLAGS, "calendar", "convention", "offset") if flags.get(name)), None)
    if other is not None:
        raise click.UsageError(f"--after stands alone; --{other} belongs to another trigger")
    jobs = [name.strip() for name in flags["after"].split(",") if name.strip()]
    trigger: dict[str, Any] = {"type": "after", "jobs": jobs, "within": _window(flags.get("within") or "day")}
    given = {"outcome": flags.get("outcome"), "timezone": flags.get("timezone")}
    given |= {"deadline_seconds": flags.get("deadline")}
    return trigger | {name: value for name, value in given.items() if value is not None}


def _window(text: str) -> str | dict[str, float]:
    if text in WINDOWS:
        return text
    seconds = duration_seconds(text)
    if seconds is None:
        raise click.UsageError(f"--within: {text!r} is none of {', '.join(WINDOWS)}, and no duration such as 15m")
    return {"seconds": seconds}
