"""Placeholders in a request: `{{run.id}}` and a few others, replaced as plain text.

Only the fixed names below are known. Anything else between braces is data and stays as it is: nothing is ever
evaluated, and a replaced value is not looked at again. The pattern has no nested repetition, so time is linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

NAMES = (
    "run.id", "run.fire_at", "run.due_at", "run.attempt", "run.token", "job.name", "report.url", "report.key"
)  # fmt: skip
DEPTH_MAX = 64
"""Lists and objects within one another; strings deeper down are sent as they are."""


def placeholders(names: Iterable[str]) -> re.Pattern[str]:
    """What finds these names between braces."""
    return re.compile(r"\{\{ ?(" + "|".join(map(re.escape, names)) + r") ?\}\}")


_PLACEHOLDER = placeholders(NAMES)

Values = Mapping[str, str]
"""A value for every name that is known."""


def render_text(text: str, values: Values, known: re.Pattern[str] = _PLACEHOLDER) -> str:
    """The text with every known placeholder replaced."""
    if "{{" not in text:
        return text
    return known.sub(lambda found: values[found[1]], text)


def render(value: Any, values: Values, depth: int = DEPTH_MAX, known: re.Pattern[str] = _PLACEHOLDER) -> Any:
    """The JSON value with the placeholders in its strings replaced; keys stay as they are."""
    if isinstance(value, str):
        return render_text(value, values, known)
    if depth == 0:
        return value
    if isinstance(value, dict):
        return {key: render(item, values, depth - 1, known) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [render(item, values, depth - 1, known) for item in value]
    return value
