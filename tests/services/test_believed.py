"""A node that starts while the clock is wrong saw no step, and forgets nothing all the same."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from horarium.access.sessions import Sessions
from horarium.clock import DAY, SECOND, Instant, to_text
from horarium.errors import StoreUnavailable
from horarium.model import Node, State, uuid7
from horarium.model.logs import LogLine
from horarium.model.plans import PLAN
from horarium.model.records import Record, RecordChange, RecordFilter, instant_key
from horarium.policies import Retention
from horarium.rules.finishing import looked_at
from horarium.services.loop.believed import CALM_SECONDS, FAR, NOTED, NOTED_SECONDS, STANDS_SECONDS, BelievedClock
from horarium.services.metrics.tallies import PREFIX, Tallies, Tally
from horarium.services.upkeep.finisher import Finisher
from horarium.services.upkeep.log_pruner import LogPruner
from horarium.services.upkeep.pruner import Pruner
from horarium.stores.memory import MemoryStore
from tests.services.conftest import Setting

DAY_SECONDS = DAY / SECOND
TEN_YEARS = 3_650 * DAY_SECONDS


class Clock:
    """A second machine's, wrong by so many seconds, beside that of the setting."""

    machine = "here"
    steady_offset = 0

    def __init__(self, setting: Setting, ahead: float) -> None:
        self._clock = setting.clock
        self.ahead = ahead

    def now(self) -> Instant:
        return self._clock.now() + round(self.ahead * SECOND)

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def steady(self) -> Instant:
        return self.now()


def a_pruner(setting: Setting, clock: Clock | None = None) -> Pruner:
    return Pruner(setting.store, setting.telemetry, clock or setting.clock)


async def finished(setting: Setting, keep_seconds: float = DAY_SECONDS) -> None:
    now = setting.now
    await setting.add_run(state=State.COMPLETED, finished_at=now, prune_at=now + round(keep_seconds * SECOND))


async def kept(setting: Setting) -> bool:
    return await setting.store.get_runs(["run"]) != [None]


async def work(setting: Setting, seconds: float, *pruners: Pruner) -> None:
    """Time passes, half a minute at a time."""
    for _ in range(round(seconds / 30)):
        setting.clock.advance(30)
        for pruner in pruners:
            await pruner.step(pruner._clock.now())


async def test_a_node_that_starts_under_a_wrong_clock_forgets_nothing(setting: Setting) -> None:
    await finished(setting)
    before = a_pruner(setting)
    await before.step(setting.now)
    setting.clock.step(TEN_YEARS)
    after = a_pruner(setting)
    await work(setting, STANDS_SECONDS - 60, before, after)
    setting.clock.step(-TEN_YEARS)
    anew = a_pruner(setting)
    await work(setting, 600, before, after, anew)
    assert await kept(setting)
    await work(setting, DAY_SECONDS, after)
    assert not await kept(setting)


async def test_it_forgets_an_hour_after_its_start(setting: Setting) -> None:
    """As after a long downtime, which looks the same."""
    await finished(setting)
    await a_pruner(setting).step(setting.now)
    setting.clock.advance(2 * DAY_SECONDS)
    pruner = a_pruner(setting)
    await pruner.step(setting.now)
    await work(setting, STANDS_SECONDS - 30, pruner)
    assert await kept(setting)
    await work(setting, 30, pruner)
    assert not await kept(setting)


async def test_the_hour_is_counted_over_restarts(setting: Setting) -> None:
    await finished(setting)
    await a_pruner(setting).step(setting.now)
    for day in range(6):
        assert await kept(setting) or day > 3
        setting.clock.advance(DAY_SECONDS)
        pruner = a_pruner(setting)
        await pruner.step(setting.now)
        await work(setting, 900, pruner)
    assert not await kept(setting)


async def test_what_was_counted_of_one_doubt_is_not_counted_for_another(setting: Setting) -> None:
    await finished(setting)
    await a_pruner(setting).step(setting.now)
    setting.clock.step(TEN_YEARS)
    pruner = a_pruner(setting)
    await pruner.step(setting.now)
    await work(setting, 3_000, pruner)
    setting.clock.step(DAY_SECONDS - TEN_YEARS)
    pruner = a_pruner(setting)
    await pruner.step(setting.now)
    await work(setting, 3_000, pruner)
    assert await kept(setting)


async def test_a_node_that_starts_again_soon_forgets_at_once(setting: Setting) -> None:
    await finished(setting)
    for _ in range(24 * 4):
        await a_pruner(setting).step(setting.now)
        assert await kept(setting)
        setting.clock.advance(900)
    await a_pruner(setting).step(setting.now)
    assert not await kept(setting)


async def test_what_is_not_far_is_believed(setting: Setting) -> None:
    await a_pruner(setting).step(setting.now)
    await finished(setting, 60)
    setting.clock.advance(FAR / SECOND)
    await a_pruner(setting).step(setting.now)
    assert not await kept(setting)


@pytest.mark.parametrize("first", ["right", "wrong"])
async def test_of_two_clocks_the_one_behind_decides(setting: Setting, first: str) -> None:
    """As long as both nodes live. The one that is ahead deletes an hour after the other one has gone."""
    await finished(setting, 10 * DAY_SECONDS)
    await a_pruner(setting).step(setting.now)
    right, wrong = a_pruner(setting), a_pruner(setting, Clock(setting, TEN_YEARS))
    both = (right, wrong) if first == "right" else (wrong, right)
    await work(setting, 3 * STANDS_SECONDS, *both)
    assert await kept(setting)
    await work(setting, STANDS_SECONDS - NOTED_SECONDS - 60, wrong)
    assert await kept(setting)
    await work(setting, NOTED_SECONDS + 120, wrong)
    assert not await kept(setting)


async def test_a_note_from_a_wrong_future_comes_down_with_the_clock(setting: Setting) -> None:
    """It was believed since it was the first. A node that then starts by the right clock takes it back, and the next
    one that starts wrong is doubted."""
    wrong = a_pruner(setting, Clock(setting, TEN_YEARS))
    await wrong.step(wrong._clock.now())
    await finished(setting)
    await a_pruner(setting).step(setting.now)
    assert await kept(setting)
    setting.clock.step(TEN_YEARS)
    await a_pruner(setting).step(setting.now)
    assert await kept(setting)


async def test_a_store_of_a_release_before_is_no_new_one(setting: Setting) -> None:
    """Nothing was noted in it. Its nodes say what the time was."""
    await finished(setting)
    await setting.store.beat_node(Node(name="old", roles=(), started_at=setting.now, beat_at=setting.now))
    setting.clock.step(TEN_YEARS)
    pruner = a_pruner(setting)
    await pruner.step(setting.now)
    await work(setting, STANDS_SECONDS - 60, pruner)
    assert await kept(setting)
    await work(setting, 120, pruner)
    assert not await kept(setting)


async def test_a_step_that_was_seen_is_waited_for_once(setting: Setting) -> None:
    """Nothing is noted while it stands, and that is not taken for another one."""
    await finished(setting)
    pruner = a_pruner(setting)
    await pruner.step(setting.now)
    setting.clock.step(TEN_YEARS)
    await pruner.step(setting.now)
    await work(setting, STANDS_SECONDS - 30, pruner)
    assert await kept(setting)
    await work(setting, 30, pruner)
    assert not await kept(setting)


class FailsOnce(MemoryStore):
    async def get_records(self, names: Sequence[str]) -> list[Record | None]:
        if list(names) == [NOTED] and self.fails:
            self.fails = False
            raise StoreUnavailable("once")
        return await super().get_records(names)

    fails = False


async def test_a_step_back_is_not_lost_on_an_outage(setting: Setting) -> None:
    store = setting.store = FailsOnce()
    await finished(setting, 0)
    setting.clock.step(TEN_YEARS)
    pruner = a_pruner(setting)
    await setting.store.prune_runs(0, 1)
    pruner.believed.look()
    setting.clock.step(-TEN_YEARS)
    setting.clock.advance(1)
    store.fails = True
    with pytest.raises(StoreUnavailable):
        await pruner.step(setting.now)
    await pruner.step(setting.now)
    assert await kept(setting)
    await work(setting, CALM_SECONDS, pruner)
    assert not await kept(setting)


async def test_logs_and_jobs_stay_where_a_node_starts_while_the_clock_is_wrong(setting: Setting) -> None:
    logs = setting.operations.logs
    await a_pruner(setting).step(setting.now)
    await setting.add_run()
    run = await setting.run()
    await logs.append(run, [LogLine(setting.now, "log", "kept")])
    job = await setting.add_job(
        "once", trigger={"type": "once", "at": to_text(setting.now)}, retention=Retention(finished_seconds=DAY_SECONDS)
    )
    await setting.store.put_records([RecordChange(record) for record in looked_at(job, setting.now)])
    believed = BelievedClock(setting.store, setting.clock)
    await work_of_all(setting, believed, 3)
    setting.clock.step(TEN_YEARS)
    believed = BelievedClock(setting.store, setting.clock)
    await work_of_all(setting, believed, 59)
    assert [line.text for line in (await logs.read(run.id, 0, 9)).lines] == ["kept"]
    assert (await setting.store.get_jobs(["once"]))[0] is not None
    await work_of_all(setting, believed, 3)
    assert (await logs.read(run.id, 0, 9)).lines == []
    assert (await setting.store.get_jobs(["once"]))[0] is None


async def test_a_session_outlives_a_sign_in_while_the_clock_is_wrong(setting: Setting) -> None:
    sessions, names = Sessions(setting.store, setting.clock, os.urandom), RecordFilter("session/")
    pruner = a_pruner(setting)
    await pruner.step(setting.now)
    token = await sessions.begin("key", "0" * 64)
    setting.clock.step(TEN_YEARS)
    await sessions.begin("key", "0" * 64)
    await work(setting, 600, pruner)
    setting.clock.step(-TEN_YEARS)
    await work(setting, 600, pruner)
    assert await sessions.find(token) is not None
    await work(setting, DAY_SECONDS, pruner)
    assert await sessions.find(token) is None
    (left,) = (await setting.store.list_records(names, None, 9)).items
    assert left.name > "session/" + instant_key(setting.now + DAY), "of the wrong future, which comes one day"


async def test_a_clock_that_steps_while_the_pruner_works_deletes_no_batch_and_no_plan(setting: Setting) -> None:
    operations = setting.operations
    believed = BelievedClock(setting.store, setting.clock)
    believed.look()
    await believed.compare(setting.now)
    batch, _ = await operations.batches.create("done", {})
    plan = Record(name=PLAN + uuid7(setting.now, bytes(10)), body=b"{}")
    assert await setting.store.put_records([RecordChange(plan)]) == [True]
    read = setting.now
    setting.clock.step(TEN_YEARS)
    await LogPruner(operations, believed, DAY_SECONDS, 1024**2).step(read)
    assert (await operations.batches.get(batch.id)).finished_at == read
    assert await setting.store.get_records([plan.name]) == [plan]


async def work_of_all(setting: Setting, believed: BelievedClock, minutes: int) -> None:
    pruner = LogPruner(setting.operations, believed, DAY_SECONDS, 1024**2)
    finisher = Finisher(setting.store, believed)
    for _ in range(minutes):
        for service in (pruner, finisher):
            await service.step(setting.now)
        believed.look()
        await believed.compare(setting.now)
        setting.clock.advance(60)


async def test_what_was_counted_is_kept_while_a_clock_is_not_believed(setting: Setting) -> None:
    store, now = setting.store, setting.now
    counted = Record(name=PREFIX + instant_key(now, "node/1"), body=b"{}")

    async def is_kept() -> bool:
        return await store.get_records([counted.name]) != [None]

    assert await store.put_records([RecordChange(counted)]) == [True]
    pruner = a_pruner(setting)
    tallies = Tallies(store, Tally(), "node", setting.clock, pruner.believed)
    await pruner.step(now)
    await tallies.step(now)
    setting.clock.step(TEN_YEARS)
    await tallies.step(setting.now)
    assert await is_kept(), "it sees a step by itself, before the pruner does"
    await pruner.step(setting.now)
    anew = a_pruner(setting)
    await anew.step(setting.now)
    for believed in (anew.believed, None):
        await Tallies(store, Tally(), "node", setting.clock, believed).step(setting.now)
    assert await is_kept()
    for _ in range(180):
        setting.clock.advance(60)
        await pruner.step(setting.now)
        await tallies.step(setting.now)
    assert not await is_kept()
