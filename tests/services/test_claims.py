"""Long-polled claims: who waits, who is served, and what becomes of those who leave."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from typing import Any, cast

import pytest

from horarium.clock import SECOND
from horarium.errors import StoreUnavailable
from horarium.model import State
from horarium.model.holds import HoldScope
from horarium.model.records import Record
from horarium.ports import Claimed, Page, Store, Topic
from horarium.services.polling import claims as module
from horarium.services.polling.claims import Claims
from horarium.testing import Fault, FaultyStore, by_script
from horarium.wire.holds import HoldDefinition
from tests.services.conftest import START, Setting
from tests.waiting import PATIENCE, until


@pytest.fixture
def claims(setting: Setting) -> Claims:
    return Claims(setting.operations.claiming, setting.clock, setting.signal)


async def test_what_is_due_is_handed_out_at_once(setting: Setting, claims: Claims) -> None:
    await setting.add_run()
    claimed = await claims.claim(["pull/q"], 5, "w")
    assert [run.id for run in claimed.runs] == ["run"]


async def test_nothing_due_and_no_wait_is_an_empty_answer(claims: Claims) -> None:
    assert (await claims.claim(["pull/q"], 5, "w")).runs == ()


async def test_a_waiter_gets_what_becomes_due(setting: Setting, claims: Claims) -> None:
    waiting = asyncio.create_task(claims.claim(["pull/q"], 5, "w", 60))
    await until(lambda: claims.waiting == 1)
    await setting.add_run(due_at=START + SECOND)
    assert await claims.step(setting.now) == START + SECOND
    setting.clock.advance(1)
    await claims.step(setting.now)
    assert [run.id for run in (await waiting).runs] == ["run"]


async def test_waiters_of_one_line_are_served_in_order(setting: Setting, claims: Claims) -> None:
    waiting = [asyncio.create_task(claims.claim(["pull/q"], 1, f"w{index}", 60)) for index in range(3)]
    await until(lambda: claims.waiting == 3)
    for index in range(2):
        await setting.add_run(f"run-{index}")
    await claims.step(setting.now)
    answers = await asyncio.gather(*waiting[:2])
    assert [answer.runs[0].worker for answer in answers] == ["w0", "w1"]
    assert claims.waiting == 1
    waiting[2].cancel()
    await asyncio.wait([waiting[2]])


async def test_a_drained_worker_is_in_the_way_of_no_other(setting: Setting, claims: Claims) -> None:
    waiting = [asyncio.create_task(claims.claim(["pull/q"], 1, name, 60)) for name in ("old", "new")]
    await until(lambda: claims.waiting == 2)
    definition = HoldDefinition(scope=HoldScope(worker="old"), reason="new kernel")
    await setting.operations.holds.add(definition)
    await setting.operations.claiming.holding.look()
    await setting.add_run("run")
    await claims.step(setting.now)
    assert (await waiting[0]).runs == (), "it asks again"
    assert [run.worker for run in (await waiting[1]).runs] == ["new"]
    again = asyncio.create_task(claims.claim(["pull/q"], 1, "old", 60))
    await until(lambda: claims.waiting == 1)
    await setting.add_run("other")
    await claims.step(setting.now)
    assert (await claims.claim(["pull/q"], 1, "new", 60)).runs[0].id == "other"
    claims.close()
    assert (await again).runs == ()


async def test_a_line_that_was_served_makes_way_for_others(setting: Setting, claims: Claims) -> None:
    greedy = [asyncio.create_task(claims.claim(["pull/q"], 1, "greedy", 60)) for _ in range(2)]
    await until(lambda: claims.waiting == 2)
    modest = asyncio.create_task(claims.claim(["pull/q", "pull/other"], 1, "modest", 60))
    await until(lambda: claims.waiting == 3)
    for index in range(2):
        await setting.add_run(f"run-{index}")
        setting.signal.publish(Topic("queue:pull/q"))
        await claims.step(setting.now)
    assert (await modest).runs[0].worker == "modest"
    claims.close()
    await asyncio.gather(*greedy)


async def test_a_waiter_that_left_costs_nothing(setting: Setting, claims: Claims) -> None:
    waiting = asyncio.create_task(claims.claim(["pull/q"], 1, "w", 60))
    await until(lambda: claims.waiting == 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    await setting.add_run()
    await claims.step(setting.now)
    assert (claims.waiting, await setting.state()) == (0, State.PENDING)


async def test_what_was_claimed_for_one_who_leaves_is_given_back(setting: Setting, claims: Claims) -> None:
    waiting = asyncio.create_task(claims.claim(["pull/q"], 1, "w", 60))
    await until(lambda: claims.waiting == 1)
    await setting.add_run()
    await claims.step(setting.now)
    waiting.cancel()
    await asyncio.wait([waiting])
    run = await setting.run()
    assert (run.state, run.attempt, run.token) == (State.PENDING, 0, 1)


async def test_closing_sends_everybody_home_and_lets_nobody_wait(claims: Claims) -> None:
    waiting = asyncio.create_task(claims.claim(["pull/q"], 1, "w", 60))
    await until(lambda: claims.waiting == 1)
    claims.close()
    assert (await claims.claim(["pull/q"], 1, "late", 60)).runs == ()
    assert (await waiting).runs == ()


async def test_beyond_the_limit_of_waiters_nobody_waits(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITERS_MAX", 1)
    waiting = asyncio.create_task(claims.claim(["pull/q"], 1, "w", 60))
    await until(lambda: claims.waiting == 1)
    assert (await claims.claim(["pull/q"], 1, "late", 60)).runs == ()
    claims.close()
    await waiting


class Counting:
    """A store that counts claims, and those that are under way at one time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.claims = self.at_once = self.most = 0
        self.failing = 0

    async def claim_runs(self, *args: Any) -> Claimed:
        self.claims += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.failing:
            self.failing -= 1
            raise StoreUnavailable("down")
        return await self._store.claim_runs(*args)

    async def settle_runs(self, *args: Any) -> list[bool]:
        return await self._store.settle_runs(*args)

    async def list_records(self, *args: Any) -> Page[Record]:
        return await self._store.list_records(*args)


class Waiting:
    """Claims on a counting store, and workers that wait."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.store = Counting(setting.store)
        operations = setting.operations_on(cast(Store, self.store))
        self.claims = Claims(operations.claiming, setting.clock, setting.signal)
        self.tasks: list[asyncio.Task[Claimed]] = []

    async def join(self, *queues: str, limit: int = 1) -> None:
        worker = f"w{len(self.tasks)}"
        self.tasks.append(asyncio.create_task(self.claims.claim(queues, limit, worker, 60)))
        await until(lambda: self.claims.waiting == sum(not task.done() for task in self.tasks))

    async def step(self, seconds: float = 0.0) -> int:
        """Let time pass, then one step. How many claims that took."""
        self.setting.clock.advance(seconds)
        before = self.store.claims
        await self.claims.step(self.setting.now)
        return self.store.claims - before

    async def home(self) -> list[str]:
        """Send those that still wait home. Who got which run, in the order in which they came."""
        self.claims.close()
        answers = await asyncio.gather(*self.tasks)
        return [f"{run.worker}:{run.id}" for answer in answers for run in answer.runs]


@pytest.fixture
def crowd(setting: Setting) -> Waiting:
    return Waiting(setting)


async def test_waiters_that_come_to_a_line_ask_nothing(crowd: Waiting) -> None:
    for _ in range(20):
        await crowd.join("pull/q")
    assert crowd.store.claims == 1
    assert await crowd.step() == 1, "whoever opens a line has it looked at once more"
    assert await crowd.step(0.5) == 0
    assert await crowd.step(0.5) == 1, "a lost signal costs a second"
    assert await crowd.home() == []


async def test_only_the_line_that_was_signalled_is_looked_at(crowd: Waiting) -> None:
    for number in range(20):
        await crowd.join(f"pull/{number}", "pull/shared")
    await crowd.step()
    await crowd.setting.add_run(queue="pull/7")
    crowd.setting.signal.publish(Topic("queue:pull/7"))
    assert await crowd.step() == 1
    assert await crowd.home() == ["w7:run"]


async def test_a_line_is_looked_at_when_its_next_run_falls_due(crowd: Waiting) -> None:
    await crowd.setting.add_run(due_at=START + SECOND // 2)
    await crowd.join("pull/q")
    await crowd.join("pull/other")
    await crowd.step()
    assert await crowd.claims.step(crowd.setting.now) == START + SECOND // 2
    assert await crowd.step(0.5) == 1
    assert await crowd.home() == ["w0:run"]


async def test_a_burst_is_claimed_for_many_at_once_and_in_order(crowd: Waiting) -> None:
    for _ in range(100):
        await crowd.join("pull/q")
    await crowd.step()
    for number in range(70):
        await crowd.setting.add_run(f"run-{number:02}")
    crowd.setting.signal.publish(Topic("queue:pull/q"))
    assert await crowd.step() < 70 + module.AT_ONCE_MAX + 1
    assert crowd.store.most == module.AT_ONCE_MAX
    assert crowd.claims.waiting == 30
    assert await crowd.home() == [f"w{number}:run-{number:02}" for number in range(70)]


async def test_lines_that_share_a_queue_get_equal_shares(crowd: Waiting) -> None:
    for _ in range(40):
        await crowd.join("pull/q")
        await crowd.join("pull/q", "pull/r")
    await crowd.step()
    for number in range(40):
        await crowd.setting.add_run(f"run-{number:02}")
    crowd.setting.signal.publish(Topic("queue:pull/q"))
    await crowd.step()
    workers = [int(got.split(":")[0][1:]) for got in await crowd.home()]
    assert len(workers) == 40
    assert sum(worker % 2 for worker in workers) in range(12, 29)


async def test_a_line_in_which_work_never_ends_keeps_no_other_waiting(
    crowd: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_ONCE_MAX", 1)
    setting, claims = crowd.setting, crowd.claims

    async def worker(name: str) -> None:
        for number in count():
            await setting.add_run(f"{name}-{number}")
            await claims.claim(["pull/q"], 1, name, 60)
            if name == "w0" and number == 3:
                await setting.add_run("rare", queue="pull/rare")
                setting.signal.publish(Topic("queue:pull/rare"))

    rare = asyncio.create_task(claims.claim(["pull/rare"], 1, "patient", 60))
    await until(lambda: claims.waiting == 1)
    idle = asyncio.create_task(claims.claim(["pull/q"], 1, "first", 60))
    await until(lambda: claims.waiting == 2)
    workers = [asyncio.create_task(worker(f"w{number}")) for number in range(4)]
    async with asyncio.timeout(PATIENCE):
        for _ in range(10):
            await claims.step(setting.now)
    for task in workers:
        task.cancel()
    claims.close()
    await asyncio.wait([idle, *workers])
    assert [run.id for run in (await rare).runs] == ["rare"]


async def test_what_was_claimed_is_handed_over_even_if_the_store_fails_for_others(crowd: Waiting) -> None:
    for _ in range(4):
        await crowd.join("pull/q")
    await crowd.step()
    for number in range(4):
        await crowd.setting.add_run(f"run-{number}")
    crowd.setting.signal.publish(Topic("queue:pull/q"))
    crowd.store.failing = 1
    with pytest.raises(StoreUnavailable):
        await crowd.step()
    await crowd.step()
    assert sorted(got.split(":")[1] for got in await crowd.home()) == [f"run-{number}" for number in range(4)]


async def test_a_clock_that_went_back_makes_nobody_wait(crowd: Waiting) -> None:
    await crowd.join("pull/q")
    await crowd.step()
    crowd.setting.clock.step(-3600)
    await crowd.setting.add_run()
    assert await crowd.step() > 0
    assert await crowd.home() == ["w0:run"]


async def test_no_waiter_leaves_anything_behind(crowd: Waiting) -> None:
    for number in range(50):
        await crowd.join(f"pull/{number % 5}")
    for task in crowd.tasks:
        task.cancel()
    await asyncio.wait(crowd.tasks)
    assert (crowd.claims.waiting, crowd.claims._lines) == (0, {})
    assert not [topic for topic in crowd.setting.signal._wakes if topic.startswith("queue:")]


@pytest.mark.parametrize("faults", [1, 3])
async def test_what_was_claimed_for_one_who_leaves_in_an_outage_is_given_back_after_it(
    setting: Setting, faults: int
) -> None:
    store = FaultyStore(setting.store, by_script(*[("settle_runs", Fault.BEFORE)] * faults))
    claims = Claims(setting.operations_on(store).claiming, setting.clock, setting.signal)
    poll = asyncio.create_task(claims.claim(["pull/q"], 1, "w", 60))
    await until(lambda: claims.waiting == 1)
    await setting.add_run()
    await claims.step(setting.now)
    poll.cancel()
    await asyncio.wait([poll])
    assert await setting.state() is State.RUNNING
    for _ in range(faults + 1):
        with suppress(StoreUnavailable):
            await claims.step(setting.now)
    run = await setting.run()
    assert (run.state, run.attempt) == (State.PENDING, 0)


async def test_one_who_is_sent_away_twice_while_the_store_claims_takes_nothing_with_him(setting: Setting) -> None:
    """As where a server ends a request whose client has gone already."""
    await setting.add_run()
    claiming, goes_on = asyncio.Event(), asyncio.Event()
    claim_runs = setting.store.claim_runs

    async def slow(*given: Any) -> Claimed:
        claimed = await claim_runs(*given)
        claiming.set()
        await goes_on.wait()
        return claimed

    setting.store.claim_runs = slow  # type: ignore[assignment]
    claims = Claims(setting.operations.claiming, setting.clock, setting.signal)
    poll = asyncio.create_task(claims.claim(["pull/q"], 1, "w", 60))
    await claiming.wait()
    for _ in range(2):
        poll.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([poll])
    goes_on.set()
    await until(lambda: claims.wake.is_set)
    setting.store.claim_runs = claim_runs  # type: ignore[method-assign]
    await claims.step(setting.now)
    run = await setting.run()
    assert (run.state, run.attempt) == (State.PENDING, 0)
