"""One handler, called with a real context and no store: the smallest test of a job.

    assert await perform(scheduler, "report", {"month": 3}) == {"pages": 12}

The args make the way that they make in a run: they are written as JSON, read back, and converted to the types of the
parameters. An error of the handler, `Retry`, `Discard` and `Defer` too, is raised as it is.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, overload

from horarium.clock import to_instant
from horarium.delivery.context import InThread, RunContext
from horarium.delivery.handler import Handler, HandlerFunction, result_of
from horarium.errors import InvalidRequest, NotFound
from horarium.library.one_offs import encode_args
from horarium.library.scheduler import Scheduler
from horarium.library.sync import SyncScheduler
from horarium.model import Cause, Failed, Outcome, Run, State
from horarium.testing.swapping import at_once
from horarium.testing.travelling import moment_of

RUN = "00000000-0000-7000-8000-000000000001"


class _Control:
    """What the attempt may ask and tell: it is cancelled or not from the beginning, and its lease is never lost."""

    def __init__(self, cancelled: bool) -> None:
        self.cancelled = cancelled

    def when_cancelled(self, call: Callable[[], None]) -> None:
        if self.cancelled:
            call()

    async def heartbeat(self, progress: bytes | None = None) -> None:
        """Nothing is kept."""

    def done(self) -> None:
        """Nothing ends it."""

    def goes_on(self, over: asyncio.Future[Any]) -> None:
        """No attempt ends before its handler."""


class _Here(InThread):
    """A plain handler is called where the test is."""

    def __init__(self, control: _Control) -> None:
        self._control: _Control = control

    def call(self, work: Coroutine[Any, Any, None]) -> None:
        at_once(work)

    def wait_cancelled(self, timeout: float | None) -> bool:
        return self._control.cancelled


class _Logs:
    """The lines go to the logger `horarium.handler` alone."""

    def add(self, run: Run, stream: str, text: str) -> None:
        """Not kept."""

    async def written(self, run: Run) -> None:
        """At once."""


@overload
def perform(
    scheduler: SyncScheduler,
    handler: str | HandlerFunction,
    args: Mapping[str, Any] | None = None,
    *,
    attempt: int = 1,
    fire_at: datetime | str | None = None,
    cancelled: bool = False,
) -> Any: ...


@overload
def perform(
    scheduler: Scheduler,
    handler: str | HandlerFunction,
    args: Mapping[str, Any] | None = None,
    *,
    attempt: int = 1,
    fire_at: datetime | str | None = None,
    cancelled: bool = False,
) -> Coroutine[Any, Any, Any]: ...


def perform(
    scheduler: Scheduler | SyncScheduler,
    handler: str | HandlerFunction,
    args: Mapping[str, Any] | None = None,
    *,
    attempt: int = 1,
    fire_at: datetime | str | None = None,
    cancelled: bool = False,
) -> Any:
    """Call one handler (its name, or its function) as a run with these args would: what it returned. To be awaited with
    a `Scheduler`, called with a `SyncScheduler`. `cancelled`: it is to stop from the beginning. Raises what the handler
    raises, WrongArguments, and InvalidRequest for a result that can't be kept."""
    inner = scheduler._scheduler if isinstance(scheduler, SyncScheduler) else scheduler
    registered = inner._program.registered(handler)
    if registered is None:
        raise NotFound(f"perform: no handler {handler!r} is registered with this scheduler")
    at = to_instant(moment_of(fire_at or datetime.now(UTC)))
    run = Run(
        id=RUN, queue=f"handler/{registered.name}", fire_at=at, due_at=at, created_at=at, started_at=at,
        state=State.RUNNING, attempt=attempt, token=1, cause=Cause.ENQUEUED, payload=encode_args(args or {}),
    )  # fmt: skip
    control = _Control(cancelled)
    context = RunContext(run, None, control, _Logs(), None if registered.is_async else _Here(control))
    performing = _perform(registered, context)
    if isinstance(scheduler, Scheduler):
        return performing
    waits = registered.is_async or registered.rules.arounds
    return asyncio.run(performing) if waits else at_once(performing)


async def _perform(handler: Handler, context: RunContext) -> Any:
    answer: Any = None
    async with AsyncExitStack() as stack:
        for around in handler.rules.arounds:
            await stack.enter_async_context(around(context))
        with handler.rules.inside(context):
            answer = handler.call(context)
            if inspect.isawaitable(answer):
                answer = await answer
    outcome: Outcome = result_of(answer)
    if isinstance(outcome, Failed):
        raise InvalidRequest(outcome.error)
    return answer
