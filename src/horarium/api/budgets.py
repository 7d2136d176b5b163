"""How many runs a request asks for, as the budget of a key counts them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from horarium.access.roles import Scope
from horarium.errors import Forbidden

ONE = frozenset({"addRun", "triggerJob", "retryRun"})
SEVERAL = frozenset({"backfillJob", "retryRuns"})
"""How many these make is known only when they are made, unless they name each."""


async def spend_runs(name: str, body: Any, spend: Callable[[int], Awaitable[None]]) -> None:
    """Count the runs that a call of this endpoint asks for. Raises OverBudget, or Forbidden where they can't be
    counted."""
    listed = getattr(body, "runs", None) or getattr(body, "ids", None)
    if name in ONE:
        await spend(1)
    elif isinstance(listed, list) and name != "cancelRuns":
        await spend(len(listed))
    elif name in SEVERAL:
        raise Forbidden("a key with a budget asks for runs one by one, or in a list", [Scope.RUNS_WRITE])
