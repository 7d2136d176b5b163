"""A scheduler in a Starlette or FastAPI application: a lifespan, and a dependency.

app = FastAPI(lifespan=lifespan(scheduler))

@app.post("/orders/{order}")
async def buy(order: int, jobs: Annotated[Scheduler, Depends(scheduler_of)]): ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from starlette.requests import HTTPConnection

from horarium.errors import InvalidRequest
from horarium.library.scheduler import Scheduler

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespan(scheduler: Scheduler, *, work: bool = True, inner: Lifespan | None = None) -> Lifespan:
    """The scheduler is open while the application is, and drained when it stops. `work`: it performs runs too; where
    workers of their own do that, the application only adds them. `inner`: the application's own lifespan, within."""

    @asynccontextmanager
    async def living(app: Any) -> AsyncIterator[Any]:
        async with scheduler:
            app.state.horarium = scheduler
            if work:
                await scheduler.start()
            if inner is None:
                yield
            else:
                async with inner(app) as state:
                    yield state

    return living


def scheduler_of(request: HTTPConnection) -> Scheduler:
    """The application's scheduler. Raises InvalidRequest where no `lifespan` of ours gave it one."""
    scheduler = getattr(request.app.state, "horarium", None)
    if not isinstance(scheduler, Scheduler):
        raise InvalidRequest("this application has no scheduler: give it lifespan=lifespan(scheduler)")
    return scheduler


__all__ = ["lifespan", "scheduler_of"]
