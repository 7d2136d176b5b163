"""Triggers: pure rules that yield fire times."""

from __future__ import annotations

from typing import Any

from horarium.errors import InvalidTrigger
from horarium.triggers.base import FIRES_MAX, Trigger


def parse_trigger(spec: dict[str, Any]) -> Trigger:
    """The trigger of a spec. Raises InvalidTrigger."""
    raise InvalidTrigger(f"type: there is no trigger type {spec.get('type')!r}", field="trigger.type")


__all__ = ["FIRES_MAX", "Trigger", "parse_trigger"]
