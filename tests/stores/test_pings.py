"""Pings on every store: which run one is about, and that a fire time at which nothing ran is seen."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from horarium.clock import HOUR, MINUTE, SECOND
from horarium.errors import NotFound, StoreUnavailable
from horarium.model import Cause, Disposition, ExternalTarget, Job, Run, State
from horarium.node.backends import make_store
from horarium.operations.facade import Operations
from horarium.ports import RunFilter, Store
from horarium.rules.pinging import Ping, Sign
from horarium.services.leases.rescuer import Rescuer
from horarium.services.metrics.telemetry import Telemetry
from horarium.stores.wakeups import LocalSignal
from horarium.testing.clock import ManualClock
from horarium.testing.values import NOW
from horarium.wire.definitions import read_definition
from tests.services.conftest import a_scale

DONE, BEGUN, FAILED, NOTE = Ping(Sign.SUCCESS), Ping(Sign.START), Ping(Sign.FAIL, status=3, body="no paper\n"), Sign.LOG


class World:
    """One node, and a clock that is moved by hand."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = ManualClock(NOW)
        signal = LocalSignal()
        self.operations = Operations(store, self.clock, signal, os.urandom, lambda target: None)
        scale = a_scale(store, self.clock)
        self.rescuer = Rescuer(
            store, self.operations.settling, self.operations.reconciler, Telemetry(), self.clock, scale
        )

    async def job(self, **fields: Any) -> Job:
        """One that fires every hour, the first time in an hour."""
        trigger = {"type": "interval", "every_seconds": 3600}
        given = {"name": "backup", "trigger": trigger, "target": {"type": "external"}, **fields}
        return await self.operations.jobs.create_job(read_definition(given))

    async def ping(self, job: Job, ping: Ping = DONE) -> Run:
        return await self.operations.pings.heard(job, ping)

    async def runs(self) -> list[Run]:
        """Oldest first."""
        return list(reversed((await self.store.list_runs(RunFilter(), None, 200)).items))

    async def said(self, run: Run) -> list[str]:
        return [line.text for line in (await self.operations.logs.read(run.id, 0, 100)).lines]


@pytest.fixture
async def world(url: str) -> AsyncIterator[World]:
    store = make_store(url, f"n{secrets.token_hex(6)}")
    await store.open()
    yield World(store)
    await store.close()


async def test_the_newest_fire_time_is_heard_of_and_an_older_one_fails(world: World) -> None:
    job = await world.job(timeouts={"start_seconds": 7200}, catch_up={"policy": "all"})
    world.clock.advance(2 * 3600 + 60)
    done = await world.ping(job)
    first, second = await world.runs()
    assert (done.id, second.state, second.disposition) == (second.id, State.COMPLETED, Disposition.RAN)
    assert (first.state, first.fire_at) == (State.PENDING, NOW + HOUR)
    world.clock.advance(7201)
    await world.rescuer.step(world.clock.now())
    first, *_ = await world.runs()
    assert (first.state, first.disposition) == (State.FAILED, Disposition.NOT_STARTED)


async def test_nothing_is_heard_of_within_the_grace(world: World) -> None:
    job = await world.job()
    world.clock.advance(3600)
    await world.operations.jobs.get_job(job.name)
    await world.ping(job, Ping(Sign.LOG))
    (run,) = await world.runs()
    assert run.start_by == run.due_at + HOUR
    world.clock.advance(3601)
    await world.rescuer.step(world.clock.now())
    (run,) = await world.runs()
    assert (run.state, run.disposition, run.attempt) == (State.FAILED, Disposition.NOT_STARTED, 0)


async def test_work_begins_and_ends(world: World) -> None:
    job = await world.job(timeouts={"execution_seconds": 600})
    world.clock.advance(3600)
    begun = await world.ping(job, BEGUN)
    assert (begun.state, begun.worker, begun.lease_expires_at) == (State.RUNNING, "ping", NOW + HOUR + 600 * SECOND)
    world.clock.advance(60)
    done = await world.ping(job)
    assert (done.id, done.state) == (begun.id, State.COMPLETED)
    (run,) = await world.runs()
    assert (run.finished_at or 0) - (run.started_at or 0) == MINUTE
    assert run.attempt == 1


async def test_work_that_takes_too_long_fails_and_is_not_tried_again(world: World) -> None:
    job = await world.job(timeouts={"execution_seconds": 600})
    world.clock.advance(3600)
    await world.ping(job, BEGUN)
    world.clock.advance(601)
    await world.rescuer.step(world.clock.now())
    (run,) = await world.runs()
    assert (run.state, run.attempt) == (State.FAILED, 1)
    assert "not done within 600 s" in (run.error or "")


async def test_a_failure_says_why(world: World) -> None:
    job = await world.job()
    world.clock.advance(3600)
    failed = await world.ping(job, FAILED)
    assert (failed.state, failed.error) == (State.FAILED, "exit status 3: no paper")
    assert await world.said(failed) == ["no paper"]


async def test_executions_that_overlap_are_told_apart(world: World) -> None:
    job = await world.job(timeouts={"start_seconds": 86_400}, catch_up={"policy": "all"})
    world.clock.advance(2 * 3600)
    one = await world.ping(job, Ping(Sign.START, rid="one"))
    other = await world.ping(job, Ping(Sign.START, rid="other"))
    assert one.id != other.id
    assert (await world.ping(job, Ping(Sign.FAIL, rid="one"))).id == one.id
    assert (await world.ping(job, Ping(Sign.SUCCESS, rid="other"))).id == other.id
    assert {run.id: run.state for run in await world.runs()} == {one.id: State.FAILED, other.id: State.COMPLETED}


async def test_a_ping_with_nothing_due_makes_a_run(world: World) -> None:
    job = await world.job()
    done = await world.ping(job)
    assert (done.cause, done.state) == (Cause.PING, State.COMPLETED)
    world.clock.advance(1)
    world.clock.advance(1)
    begun = await world.ping(job, BEGUN)
    assert (begun.cause, begun.state) == (Cause.PING, State.RUNNING)
    assert (await world.ping(job, BEGUN)).id == begun.id, "it began again"
    noted = await world.ping(job, Ping(NOTE, body="half\nof it"))
    assert (noted.id, noted.state) == (begun.id, State.RUNNING)
    assert (await world.ping(job)).id == begun.id
    assert await world.said(begun) == ["half", "of it"]
    after = await world.ping(job, Ping(NOTE, body="afterwards"))
    assert (after.id, len(await world.runs())) == (begun.id, 2)


async def test_a_key_opens_its_job_alone(world: World) -> None:
    job, other = await world.job(), await world.job(name="other")
    here = await world.job(name="here", target={"type": "queue", "queue": "q"})
    pings = world.operations.pings
    key, others = await pings.key_of(job), await pings.key_of(other)
    assert key is not None
    assert key != others
    assert await pings.key_of(here) is None
    again = World(world.store).operations.pings
    assert (await again.job_of(key)).id == job.id
    wrong = [f"{key[:-1]}{'0' if key[-1] != '0' else '1'}", job.id, "", "-", "é-é", f"{other.id}-{key[-24:]}"]
    for each in wrong:
        with pytest.raises(NotFound):
            await pings.job_of(each)
    await world.operations.jobs.delete_job(job.name)
    with pytest.raises(NotFound):
        await pings.job_of(key)


async def test_what_is_done_elsewhere_is_no_queue_without_a_worker(world: World) -> None:
    job = await world.job()
    assert isinstance(job.target, ExternalTarget)
    world.clock.advance(3600)
    await world.ping(job, Ping(NOTE))
    world.clock.advance(120)
    (queue,) = (await world.operations.stats()).queues
    assert (queue.queue, queue.due, queue.unserved) == ("external", 1, False)


async def test_a_run_that_a_worker_holds_since_the_job_had_another_target_is_left_to_it(world: World) -> None:
    operations = world.operations
    job = await world.job(target={"type": "queue", "queue": "q"})
    await operations.jobs.trigger_job(job.name)
    now = world.clock.now()
    (held,) = (await operations.claiming.claim(["pull/q"], 1, "w", now, now)).runs
    await operations.jobs.patch_job(job.name, {"target": {"type": "external"}})
    failed = await world.ping(await operations.jobs.get_job(job.name), FAILED)
    assert failed.id != held.id
    assert {run.id: run.state for run in await world.runs()} == {held.id: State.RUNNING, failed.id: State.FAILED}


async def test_a_ping_that_is_lost_on_its_way_leaves_no_run_that_waits_for_ever(world: World) -> None:
    """The run of a ping that came when nothing was due is made first, and its end is written then."""
    job = await world.job()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.operations.settling, "write", _lost)
        with pytest.raises(StoreUnavailable):
            await world.ping(job)
    (run,) = await world.runs()
    assert (run.state, run.cause, run.start_by) == (State.PENDING, Cause.PING, run.due_at + HOUR)
    again = await world.ping(job)
    assert (again.id, again.state) == (run.id, State.COMPLETED)


async def _lost(*given: Any) -> list[bool]:
    raise StoreUnavailable("gone")


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_ping_of_a_job_that_was_changed_meanwhile_makes_no_run_for_a_worker(world: World, is_new: bool) -> None:
    job = await world.job()
    if is_new:
        await world.operations.jobs.delete_job(job.name)
        await world.job()
    else:
        await world.operations.jobs.patch_job(job.name, {"target": {"type": "queue", "queue": "q"}})
    with pytest.raises(NotFound):
        await world.ping(job)
    assert await world.runs() == []
