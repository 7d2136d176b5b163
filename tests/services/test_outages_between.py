"""An outage of the store or of a bus between two calls of one step: what is left is done by the next step, and once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from horarium.buses.memory import MemoryBroker, MemoryBus
from horarium.clock import DAY, MINUTE, SECOND
from horarium.delivery.bus import ONE_OFF
from horarium.errors import BusUnavailable, Outage
from horarium.model import BusTarget, Cause, Failed, Node, Run, RunChange, State, Succeeded
from horarium.model.channels import WebhookChannel
from horarium.model.records import RecordChange, RecordFilter
from horarium.operations.facade import Operations
from horarium.policies import CatchUp, CatchUpPolicy
from horarium.ports import Report, queue_topic
from horarium.rules.applying import owed_by
from horarium.rules.rates import Override
from horarium.rules.settling import rescue
from horarium.services.alerts.troubles import LOST_AFTER, Troubles
from horarium.services.buses.bus_jobs import LIST_SECONDS_MIN, BusJobs
from horarium.services.buses.cancels import BusCancels
from horarium.services.buses.late_ends import DOUBT
from horarium.services.buses.reports import Reports
from horarium.services.loop.believed import BelievedClock
from horarium.services.metrics.tallies import PREFIX as TALLIES
from horarium.services.metrics.tallies import Tallies, Tally, decode_minute
from horarium.services.metrics.telemetry import Telemetry
from horarium.services.performing.collector import Collector
from horarium.services.polling.claims import AT_ONCE_MAX, Claims
from horarium.services.upkeep.applier import Applier
from horarium.services.upkeep.rates import RateApplier
from horarium.stores.wakeups import LocalSignal
from horarium.testing import Fault, FaultyStore, by_script
from tests.services.conftest import START, Setting, a_rescuer
from tests.services.test_breaker import DEAD, NO_ANSWER, Hosts
from tests.services.test_planner import TEN_YEARS, a_planner, runs
from tests.services.test_rates import World
from tests.waiting import until


@pytest.fixture
def store(setting: Setting) -> FaultyStore:
    """That of the setting."""
    store = setting.store = FaultyStore(setting.store, by_script())
    return store


async def fails(store: FaultyStore, step: Coroutine[Any, Any, Any], *calls: str, when: Fault = Fault.BEFORE) -> None:
    """The step meets an outage, the first time that it calls each of these, in this order."""
    store.plan = by_script(*[(call, when) for call in calls])
    with pytest.raises(Outage):
        await step
    store.plan = by_script()


async def test_every_line_that_was_signalled_is_looked_at(setting: Setting, store: FaultyStore) -> None:
    """Also those that come after the one whose claim failed."""
    claims = Claims(setting.operations.claiming, setting.clock, setting.signal)
    queues = [f"pull/{number}" for number in range(AT_ONCE_MAX + 1)]
    polls = [asyncio.create_task(claims.claim([queue], 1, "w", 60)) for queue in queues]
    await until(lambda: claims.waiting == len(queues))
    await claims.step(setting.now)
    for queue in queues:
        await setting.add_run(queue, queue)
        setting.signal.publish(queue_topic(queue))
    await fails(store, claims.step(setting.now), "claim_runs")
    await claims.step(setting.now)
    assert claims.waiting == 0
    await asyncio.gather(*polls)


async def test_a_job_that_was_defined_is_listened_to_soon(setting: Setting, store: FaultyStore) -> None:
    jobs = BusJobs("main", store, setting.clock)
    await jobs.look(setting.now)
    await setting.add_job("new", target=BusTarget(bus="main"))
    jobs.signalled()
    setting.clock.advance(LIST_SECONDS_MIN)
    await fails(store, jobs.look(setting.now), "list_jobs")
    assert "new" in (await jobs.look(setting.now) or ())


async def test_a_change_that_was_signalled_is_begun_at_once(setting: Setting, store: FaultyStore) -> None:
    applier = Applier(store, setting.clock, setting.operations.reconciler, "n")
    await applier.step(setting.now)
    job = await setting.add_job()
    await store.put_records([RecordChange(owed_by(job, job.version, 0))])
    applier.signalled()
    await fails(store, applier.step(setting.now), "list_records")
    await applier.step(setting.now)
    assert applier.under_way


async def test_every_run_that_waits_for_a_limit_gets_its_new_place() -> None:
    world = World()
    waiting = (await world.add(20, rate=[{"key": "api", "max": 1, "per_seconds": 3600}]))[1:]
    await world.claim()
    await world.operations.rates.put("api", Override(1000, 10.0, 1))
    context = world.operations.context
    store = FaultyStore(world.store, by_script())
    applier = RateApplier(context._replace(store=store), world.operations.reconciler, world.operations.settling, "n")
    await fails(store, applier.step(world.clock.now()), "get_runs")
    while applier.under_way:
        await applier.step(world.clock.now())
    assert (await world.stored(waiting[-1])).due_at <= world.clock.now() + SECOND


async def test_a_node_that_is_lost_is_told_of(setting: Setting, store: FaultyStore) -> None:
    channels = setting.operations.channels
    await channels.put("ops", WebhookChannel(url="https://example.org/"))
    troubles = Troubles(setting.operations.context._replace(store=store), channels, setting.operations.stats)
    await store.beat_node(Node(name="n", roles=("api",), started_at=START, beat_at=START))
    setting.clock.advance(LOST_AFTER / SECOND)
    await fails(store, troubles.step(setting.now), "add_runs")
    await troubles.step(setting.now)
    assert [run.queue for run in await runs(setting)] == ["notify"]


async def test_a_clock_is_not_believed_that_could_not_be_judged(setting: Setting, store: FaultyStore) -> None:
    """A store of a release before, in which nothing was noted."""
    await store.beat_node(Node(name="old", roles=(), started_at=setting.now, beat_at=setting.now))
    setting.clock.step(TEN_YEARS)
    believed = BelievedClock(store, setting.clock)
    await fails(store, believed.compare(setting.now), "list_nodes")
    await believed.compare(setting.now)
    assert not believed.stands()


async def test_no_job_stays_silent_that_a_wrong_clock_had_planned(setting: Setting, store: FaultyStore) -> None:
    for name in ("a", "b"):
        await setting.add_job(name, planned_until=START + DAY)
    planner = a_planner(setting)
    await fails(store, planner.step(START + SECOND), "commit_plans")
    for _ in range(2):
        await planner.step(START + SECOND)
    jobs = await store.get_jobs(["a", "b"])
    assert [job and job.next_fire_at for job in jobs] == [START + 10 * SECOND] * 2


async def test_what_was_missed_falls_due_as_though_every_plan_had_been_written(
    setting: Setting, store: FaultyStore
) -> None:
    """A disk that is full can be read: plans are made again and again, and none of them takes a slot."""
    await setting.add_job(every=1, catch_up=CatchUp(CatchUpPolicy.ALL))
    planner, now = a_planner(setting, catch_up_per_second=10), START + 100 * SECOND
    for _ in range(3):
        await fails(store, planner.step(now), "commit_plans")
    await planner.step(now)
    late = [run.due_at for run in await runs(setting) if run.cause is Cause.CATCH_UP]
    assert late[:3] == [now, now + SECOND // 10, now + 2 * SECOND // 10]


@pytest.mark.parametrize("when", Fault)
async def test_what_was_counted_is_written_once(setting: Setting, store: FaultyStore, when: Fault) -> None:
    telemetry, minute = setting.telemetry, START - START % MINUTE
    tallies = Tallies(store, telemetry.tally, "n", setting.clock)
    telemetry.tally._at(minute).completed = 1
    await fails(store, tallies.write(minute + MINUTE), "put_records", when=when)
    telemetry.tally._at(minute).completed += 1
    await tallies.write(minute + MINUTE)
    page = await store.list_records(RecordFilter(TALLIES), None, 10)
    assert sum(decode_minute(record.body).completed for record in page.items) == 2


async def test_what_a_node_counts_that_starts_twice_in_a_minute_is_added_up(setting: Setting) -> None:
    minute = START - START % MINUTE
    for _ in range(2):
        tally = Tally()
        tally._at(minute).completed = 1
        await Tallies(setting.store, tally, "n", setting.clock).write(minute + MINUTE)
        setting.clock.advance(1)
    page = await setting.store.list_records(RecordFilter(TALLIES), None, 10)
    assert [decode_minute(record.body).completed for record in page.items] == [1, 1]


# ---- buses ------------------------------------------------------------------------------------------------------


class Bus(MemoryBus):
    """Notes what is said to the broker about reports."""

    def __init__(self) -> None:
        super().__init__(MemoryBroker())
        self.said: list[tuple[str, int]] = []
        self._standing.problem = None

    async def _settle(self, reports: Any, how: str) -> None:
        self.said += [(how, report.receipt) for report in reports]


def report(run: Run, number: int, **said: Any) -> Report:
    body = {"jobName": ONE_OFF, "runId": run.id, **said}
    return Report("status", ONE_OFF, msgspec.json.encode(body), number)


async def test_a_report_that_is_given_back_is_not_kept_besides(setting: Setting, store: FaultyStore) -> None:
    """It comes again; and a broker that is told of one message twice closes the channel."""
    bus = Bus()
    reports = Reports("main", bus, store, setting.clock, setting.telemetry, setting.operations.settling.settle)
    for name in ("silent", "well"):
        await setting.add_run(name, "bus/main")
    (silent, well) = (await store.claim_runs(["bus/main"], 2, "w", START, START, setting.steady)).runs
    lost = RunChange(rescue(silent, None, setting.now), silent.token, silent.state)
    assert await store.settle_runs([lost], setting.steady) == [True]
    setting.clock.advance(60)
    await store.claim_runs(["bus/main"], 2, "w", setting.now, setting.now, setting.steady)
    said = [report(silent, 1, status="completed"), report(well, 2, status="completed")]
    await fails(store, reports._handle(said), "settle_runs")
    setting.clock.advance(DOUBT / SECOND)
    await reports.step(setting.now)
    assert bus.said == [("nack", 1), ("nack", 2)]


async def test_a_worker_that_goes_on_is_told_to_stop_once_the_bus_is_back(setting: Setting) -> None:
    sent, down = list[str](), [True]

    async def send(run: Run) -> None:
        if down:
            down.clear()
            raise BusUnavailable("once")
        sent.append(run.id)

    cancels = BusCancels("main", Bus(), setting.store, setting.clock, send)
    for name in ("one", "two"):
        cancels.add(await setting.add_run(name, "bus/main"))
    with pytest.raises(Outage):
        await cancels.step(setting.now)
    await cancels.step(setting.now)
    assert sorted(sent) == ["one", "two"]


@pytest.mark.parametrize("when", [Fault.BEFORE, Fault.AFTER])
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("call", ["add_runs", "put_records"])
async def test_that_a_host_does_not_answer_and_answers_again_is_told_once(
    setting: Setting, store: FaultyStore, call: str, number: int, when: Fault
) -> None:
    """Whichever of the writes meets the outage."""
    hosts = Hosts(setting)
    await hosts.set_up()
    await setting.operations.channels.put("ops", WebhookChannel(url="https://example.org/", system=True))
    node = hosts.node("a", failures=1)
    for outcome, said in ((NO_ANSWER, ["breaker_open"]), (Succeeded(), ["breaker_closed", "breaker_open"])):
        await node._holding.look(0)
        hosts.heard(node, DEAD, outcome)
        calls = iter([None] * number + [when])
        store.plan = lambda made, calls=calls: next(calls, None) if made == call else None  # type: ignore[misc]
        with suppress(Outage):
            await node.step(setting.now)
        store.plan = by_script()
        for _ in range(3):
            setting.clock.advance(0.2)
            await node.step(setting.now)
        told = [msgspec.json.decode(run.payload or b"")["event"]["event"] for run in await runs(setting)]
        assert sorted(told) == said


async def test_a_pause_that_a_target_asked_for_shuts_its_keys_although_the_store_was_away() -> None:
    world = World()
    rate = [{"key": "api", "max": 100, "per_seconds": 60}]
    await world.add(1, rate=rate)
    (run,) = (await world.claim()).runs
    store = FaultyStore(world.store, by_script())
    operations = Operations(store, world.clock, LocalSignal(), os.urandom, lambda target: None)
    collector = Collector(operations.settling, world.clock, Telemetry())
    collector.add(run, None, Failed("answered 429", retry_after_seconds=30.0, throttled=True))
    await fails(store, collector.step(world.clock.now()), "get_records")
    await collector.step(world.clock.now())
    assert (await world.stored(run)).due_at == world.clock.now() + 30 * SECOND
    (late,) = await world.add(1, rate=rate)
    assert late.due_at >= world.clock.now() + 30 * SECOND


async def test_a_run_follows_its_job_though_the_answer_to_its_rescue_was_lost(
    setting: Setting, store: FaultyStore
) -> None:
    """No worker claims from the queue that its job has left, and no node has died: nothing else would find it."""
    job = await setting.add_job()
    await setting.add_run("run", job=job.name, job_id=job.id, lease_seconds=30)
    await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now, setting.steady)
    await setting.operations.jobs.patch_job(job.name, {"target": {"type": "queue", "queue": "other"}})
    assert (await setting.run()).queue == "pull/q"
    setting.clock.advance(30)
    claimed = await setting.run()
    lost = RunChange(rescue(claimed, job, setting.now), claimed.token, claimed.state)
    write = setting.operations.settling.write([lost], {job.id: job}, setting.now)
    await fails(store, write, "settle_runs", when=Fault.AFTER)
    assert await setting.state() is State.PENDING
    await a_rescuer(setting).step(setting.now)
    assert (await setting.run()).queue == "pull/other"
