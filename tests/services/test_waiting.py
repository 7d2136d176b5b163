"""Who waits for the end of a run is answered: at once from this process, by word from another, by a look without."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf

import pytest
from msgspec.structs import replace

from horarium.errors import NotFound
from horarium.model import Run, RunChange, State
from horarium.operations.facade import Operations
from horarium.operations.runs import waiting as module
from horarium.ports import ENDED
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing import Fault, FaultyStore
from tests.services.conftest import Setting
from tests.waiting import until


class CountingStore(MemoryStore):
    """Counts how often runs are read."""

    reads = 0

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        self.reads += 1
        return await super().get_runs(ids)


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look happens within a test."""
    monkeypatch.setattr(module, "LOOK_SECONDS_MIN", 1e6)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)


def waiting_for(operations: Operations, id: str = "run", seconds: float | None = None) -> asyncio.Task[Run]:
    return asyncio.create_task(operations.waiting.until_over(id, seconds))


async def waits(operations: Operations, callers: int = 1) -> None:
    await until(lambda: operations.waiting._watching is not None and operations.waiting._waiting == callers)


@pytest.mark.usefixtures("seldom")
async def test_an_end_in_this_process_is_the_answer_without_a_look(setting: Setting) -> None:
    setting.store = store = CountingStore()
    await setting.add_run()
    told = waiting_for(setting.operations)
    await waits(setting.operations)
    before = store.reads
    await setting.operations.runs.cancel_run("run", "no longer")
    assert (await told).state is State.CANCELLED
    assert store.reads == before + 1  # the cancel's own


async def test_one_that_is_over_is_answered_at_once(setting: Setting) -> None:
    await setting.add_run(state=State.COMPLETED)
    assert (await setting.operations.waiting.until_over("run", 60)).finished
    with pytest.raises(NotFound):
        await setting.operations.waiting.until_over("another", 60)


async def test_after_its_time_a_caller_gets_the_run_as_it_is(setting: Setting) -> None:
    await setting.add_run()
    assert (await setting.operations.waiting.until_over("run", 0.01)).state is State.PENDING
    assert not setting.operations.waiting._waiters


@pytest.mark.usefixtures("seldom")
async def test_another_node_says_what_ends_while_one_waits(setting: Setting) -> None:
    other = setting.operations_on(setting.store)
    await setting.add_run("before")
    setting.signal.wake_all()  # it listens again, as after every start
    await other.runs.cancel_run("before")
    assert other.waiting._told_until < setting.clock.monotonic()  # no one waited
    await setting.add_run()
    told = waiting_for(setting.operations)
    await waits(setting.operations)
    await until(lambda: other.waiting._told_until > setting.clock.monotonic())
    await other.runs.cancel_run("run")
    assert (await told).state is State.CANCELLED


@pytest.mark.usefixtures("often")
async def test_with_every_word_lost_a_look_finds_it(setting: Setting) -> None:
    other = Operations(setting.store, setting.clock, LocalSignal(), lambda size: bytes(size), lambda target: None)
    await setting.add_run()
    told = waiting_for(other)
    await waits(other)
    await setting.operations.runs.cancel_run("run")
    assert (await told).state is State.CANCELLED


async def test_an_end_before_its_node_heard_that_one_waits_is_found_soon(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 1e6)
    other = setting.operations_on(setting.store)
    await setting.add_run()
    told = waiting_for(setting.operations)
    await waits(setting.operations)
    await until(lambda: other.waiting._told_until > 0)
    monkeypatch.setattr(other.waiting, "_told_until", -inf)  # the word comes too late
    await other.runs.cancel_run("run")
    assert (await told).state is State.CANCELLED


@pytest.mark.usefixtures("often")
async def test_an_outage_ends_no_wait(setting: Setting) -> None:
    failing = [False]
    setting.store = FaultyStore(setting.store, lambda call: Fault.BEFORE if failing[0] else None)
    other = setting.operations_on(setting.store)
    await setting.add_run()
    told = waiting_for(other)
    await waits(other)
    failing[0] = True
    for _ in range(5):
        await asyncio.sleep(0)
    failing[0] = False
    await setting.operations.runs.cancel_run("run")
    assert (await told).finished


@pytest.mark.usefixtures("often")
async def test_a_run_that_is_deleted_is_not_found(setting: Setting) -> None:
    other = Operations(setting.store, setting.clock, LocalSignal(), lambda size: bytes(size), lambda target: None)
    await setting.add_run()
    told = waiting_for(other)
    await waits(other)
    over = replace(await setting.run(), state=State.COMPLETED, prune_at=0)
    assert await setting.store.settle_runs([RunChange(over, 0, State.PENDING)], setting.steady) == [True]
    assert await setting.store.prune_runs(setting.now, 1) == 1
    with pytest.raises(NotFound):
        await told


class NotingStore(MemoryStore):
    """Notes of how many runs a read is."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        self.sizes.append(len(ids))
        return await super().get_runs(ids)


@pytest.mark.usefixtures("seldom")
async def test_each_of_many_ends_is_read_alone_and_none_waits_for_a_pause_between_looks(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS_EACH", 1e6)
    setting.store = store = NotingStore()
    ids = [f"run-{number:03}" for number in range(100)]
    for id in ids:
        await setting.add_run(id)
    told = [waiting_for(setting.operations, id) for id in ids]
    await waits(setting.operations, 100)
    other = setting.operations_on(store)
    other.waiting._heard_awaited()
    store.sizes.clear()
    for number in range(0, 100, 2):
        await other.runs.cancel_run(ids[number])
        assert (await told[number]).finished
    assert store.sizes == [1] * 100  # the cancel's own, and that of the run that is over
    setting.operations.waiting.close()
    await asyncio.gather(*told)


@pytest.mark.usefixtures("seldom")
async def test_an_end_that_is_named_during_a_look_at_all_comes_with_the_next_read(setting: Setting) -> None:
    class EndsMeanwhile(NotingStore):
        async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
            if len(ids) == module.LOOKED_AT and not self.sizes:
                self.sizes.append(0)
                await other.runs.cancel_run("run-0999")
            return await super().get_runs(ids)

    setting.store = store = EndsMeanwhile()
    ids = [f"run-{number:04}" for number in range(1_000)]
    for id in ids:
        await setting.add_run(id)
    told = [waiting_for(setting.operations, id) for id in ids]
    await waits(setting.operations, 1_000)
    other = setting.operations_on(store)
    other.waiting._heard_awaited()
    store.sizes.clear()
    setting.signal.publish(ENDED)
    assert (await told[-1]).finished
    assert store.sizes[:4] == [0, 1, module.LOOKED_AT, module.LOOKED_AT + 1]  # the cancel's own is of one
    setting.operations.waiting.close()
    await asyncio.gather(*told)


@pytest.mark.usefixtures("seldom")
async def test_many_ends_at_once_are_one_word(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(setting.signal, "publish", said.append)
    setting.operations.waiting._heard_awaited()
    ended = [await setting.add_run(f"run-{number}", state=State.COMPLETED) for number in range(module.NAMED_MAX + 1)]
    setting.operations.waiting.settled(ended[1:])
    assert said == [module.ended_topic(run.id) for run in ended[1:]]
    setting.operations.waiting.settled(ended)
    assert said[module.NAMED_MAX :] == ["ended"]


@pytest.mark.usefixtures("seldom")
async def test_words_without_names_are_looked_at_with_a_pause(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS_EACH", 1e6)
    setting.store = store = CountingStore()
    await setting.add_run()
    told = waiting_for(setting.operations)
    await waits(setting.operations)
    await until(lambda: store.reads == 1)
    setting.signal.publish(ENDED)
    await until(lambda: store.reads == 2)
    setting.signal.publish(ENDED)
    for _ in range(5):
        await asyncio.sleep(0)
    assert store.reads == 2
    setting.operations.waiting.close()
    await told


@pytest.mark.usefixtures("seldom")
async def test_a_thousand_callers_cost_one_read_for_each_word(setting: Setting) -> None:
    setting.store = store = CountingStore()
    ids = [f"run-{number:04}" for number in range(1_000)]
    for id in ids:
        await setting.add_run(id)
    told = [waiting_for(setting.operations, id) for id in ids]
    await waits(setting.operations, 1_000)
    other = setting.operations_on(store)
    other.waiting._heard_awaited()
    before = store.reads
    await other.runs.cancel_run("run-0500")
    assert (await told[500]).finished
    assert store.reads == before + 2  # the cancel's own, and one for all
    setting.operations.waiting.close()
    assert sum(run.state is State.PENDING for run in await asyncio.gather(*told)) == 999
    await until(lambda: setting.operations.waiting._watching is None or not setting.operations.waiting._waiters)


async def test_one_more_than_may_wait_is_answered_at_once(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUN_WAITERS_MAX", 1)
    await setting.add_run()
    first = waiting_for(setting.operations)
    await waits(setting.operations)
    assert (await setting.operations.waiting.until_over("run", 60)).state is State.PENDING
    setting.operations.waiting.close()
    await first
    assert (await setting.operations.waiting.until_over("run", None)).state is State.PENDING
