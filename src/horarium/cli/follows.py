"""`--on EVENT=ACTION:NAME`: what follows from the runs of a job, as flags say it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from horarium.cli.fields import duration_seconds
from horarium.model import Occasion
from horarium.model.follows import TIMED

_EXAMPLE = "failed=notify:ops, late=notify:ops,seconds=5m or completed=trigger:report,payload=result"


def follows_of(texts: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The field `on`. Raises UsageError."""
    on: dict[str, list[dict[str, Any]]] = {}
    for text in texts:
        event, equals, rest = text.partition("=")
        if event not in list(Occasion):
            raise click.UsageError(f"--on: {event!r} is no event; give one of {', '.join(Occasion)}")
        action, *options = rest.split(",")
        kind, colon, name = action.partition(":")
        if not equals or not colon or not name or kind not in ("notify", "trigger"):
            raise click.UsageError(f"--on: {text!r} says no action; give one such as {_EXAMPLE}")
        found = dict(_option(option, text) for option in options)
        if event in TIMED and "seconds" not in found:
            raise click.UsageError(f"--on: {event} after how long? Such as {event}={kind}:{name},seconds=5m")
        on.setdefault(event, []).append({kind: name, **found})
    return on


def _option(option: str, text: str) -> tuple[str, Any]:
    name, _, value = option.partition("=")
    if name == "after" and value.isascii() and value.isdigit():
        return name, int(value)
    if name == "seconds" and (seconds := duration_seconds(value)) is not None:
        return name, seconds
    if name == "payload" and value == "result":
        return name, value
    raise click.UsageError(f"--on: {option!r} in {text!r} is none of after=3, seconds=5m and payload=result")


def follows_text(on: dict[Occasion, tuple[Any, ...]]) -> str | None:
    """The field `on` for people, as the flags have it."""
    lines = []
    for event, follows in on.items():
        for each in follows:
            options = [f",{name}={value:g}" for name, value in (("seconds", each.seconds),) if value is not None]
            if each.after > 1:
                options.append(f",after={each.after}")
            if each.payload is not None:
                options.append(",payload=...")
            lines.append(f"{event}={each.action}{''.join(options)}")
    return "; ".join(lines) or None
