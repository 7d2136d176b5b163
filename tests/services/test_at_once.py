"""Work that is begun without a task: done at once where it waits for nothing, else gone on with in a task."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar

import pytest

from horarium.clock import Instant
from horarium.model import State
from horarium.ports import Claimed
from horarium.services.at_once import begin
from horarium.services.claims import Claims
from horarium.stores.memory import MemoryStore

from .conftest import Setting

SAID: ContextVar[str] = ContextVar("said", default="nothing")


async def test_what_waits_for_nothing_is_done_when_it_has_begun() -> None:
    async def work() -> str:
        SAID.set("something")
        return f"in {asyncio.current_task()}"

    task = asyncio.current_task()
    assert begin(work()) == (f"in {task}",)
    assert SAID.get() == "nothing"


async def test_what_it_raises_is_raised() -> None:
    async def work() -> None:
        raise LookupError("no")

    with pytest.raises(LookupError, match="no"):
        begin(work())


async def test_what_waits_goes_on_in_a_task_of_its_own() -> None:
    first: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    second: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> tuple[str, str, str, bool]:
        before = SAID.set("something")
        said = await first
        await asyncio.sleep(0)
        try:
            await second
        except LookupError as error:
            said += str(error)
        kept = SAID.get()
        SAID.reset(before)
        return said, kept, SAID.get(), asyncio.current_task() is going_on

    going_on = begin(work())
    assert isinstance(going_on, asyncio.Task)
    first.set_result("a")
    second.set_exception(LookupError("b"))
    assert await going_on == ("ab", "something", "nothing", True)
    assert SAID.get() == "nothing"


@pytest.mark.parametrize("failure", [LookupError("no"), None])
async def test_what_it_waits_for_first_may_fail(failure: LookupError | None) -> None:
    first: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            await first
        except LookupError:
            return "failed"
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            raise
        return "done"

    going_on = begin(work())
    assert isinstance(going_on, asyncio.Task)
    await asyncio.sleep(0)  # it has begun to wait
    if failure is None:
        going_on.cancel()
        await asyncio.wait([going_on])
        assert going_on.cancelled()
        assert first.cancelled()
    else:
        first.set_exception(failure)
        assert await going_on == "failed"


class WaitsAfterAll(MemoryStore):
    """Says that it answers at once, and its claims wait."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()

    async def claim_runs(self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant) -> Claimed:
        claimed = await super().claim_runs(queues, limit, worker, now, until)
        await self.go_on.wait()
        return claimed


async def test_a_caller_that_leaves_a_claim_that_waits_after_all_takes_nothing(setting: Setting) -> None:
    store = setting.store = WaitsAfterAll()
    claims = Claims(setting.operations.claiming, setting.clock, setting.signal)
    run = await setting.add_run()
    asking = asyncio.create_task(claims.claim([run.queue], 1, "worker"))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.sleep(0)
    assert await setting.state() is State.RUNNING
    store.go_on.set()
    await asyncio.wait([asking])
    assert asking.cancelled()
    assert await setting.state() is State.PENDING
