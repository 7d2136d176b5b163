"""A scheduler in a Starlette application, which FastAPI's are too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from horarium import InvalidRequest, Scheduler
from horarium.contrib.starlette import lifespan, scheduler_of


def app() -> Any:
    return SimpleNamespace(state=SimpleNamespace())


@pytest.mark.parametrize("work", [True, False])
async def test_the_scheduler_lives_as_long_as_the_application(work: bool) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def inner(given: Any) -> AsyncIterator[dict[str, int]]:
        seen.append("begin")
        yield {"a": 1}
        seen.append("end")

    scheduler, given = Scheduler("memory://"), app()
    async with lifespan(scheduler, work=work, inner=inner)(given) as state:
        assert (state, seen, scheduler._runtime.running) == ({"a": 1}, ["begin"], work)
        request: Any = SimpleNamespace(app=given)
        assert scheduler_of(request) is scheduler
        await scheduler.enqueue("h")
    assert (seen, scheduler.loop, scheduler._runtime.running) == (["begin", "end"], None, False)


def test_an_application_without_a_scheduler_is_told_what_to_do() -> None:
    request: Any = SimpleNamespace(app=app())
    with pytest.raises(InvalidRequest, match="lifespan"):
        scheduler_of(request)
