"""What attempts that are stopped have in common."""

from __future__ import annotations

from typing import Any

from horarium import Scheduler
from horarium.library.values import Run

LIMIT: dict[str, Any] = {"timeouts": {"execution_seconds": 1}}


def said(run: Run) -> str:
    return " / ".join([*(event.message for event in run.history), run.error or ""])


def unstoppable(scheduler: Scheduler) -> int:
    """Places taken by work that does not stop."""
    assembly = scheduler._runtime._assembly
    assert assembly is not None
    return sum(len(performing.unstoppable) for performing in assembly._performing)
