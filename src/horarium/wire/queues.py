"""Queues as callers name them."""

from __future__ import annotations

QUEUE_CHARS_MAX = 220
"""A kind, a slash and a name."""


def named_queue(given: str) -> str | None:
    """The queue that is meant: a plain name is a worker's; None: no queue has this name."""
    if not 0 < len(given) <= QUEUE_CHARS_MAX:
        return None
    return given if "/" in given or given == "http" else f"pull/{given}"
