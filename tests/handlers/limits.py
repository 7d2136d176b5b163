"""What attempts that are stopped have in common."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from horarium import Scheduler
from horarium.library.values import Run
from tests.handlers.conftest import ONCE, ended
from tests.passing import PassingClock
from tests.waiting import until

LIMIT_SECONDS = 600
LIMIT: dict[str, Any] = {"timeouts": {"execution_seconds": LIMIT_SECONDS, "heartbeat_seconds": 2 * LIMIT_SECONDS}}
"""Over when a test lets it pass: a busy machine must not end an attempt before it began."""


async def out_of_time(scheduler: Scheduler, clock: PassingClock, name: str, begun: Sized, **how: Any) -> Run:
    """A run of this handler whose time is over as soon as there is one more in `begun`, which the handler adds to."""
    before = len(begun)
    run = await scheduler.enqueue(name, **{**ONCE, **LIMIT, **how})
    await until(lambda: len(begun) > before)
    clock.let_pass(LIMIT_SECONDS)
    return await ended(scheduler, run)


def said(run: Run) -> str:
    return " / ".join([*(event.message for event in run.history), run.error or ""])


def unstoppable(scheduler: Scheduler) -> int:
    """Places taken by work that does not stop."""
    assembly = scheduler._runtime._assembly
    assert assembly is not None
    return sum(len(performing.unstoppable) for performing in assembly._performing)
