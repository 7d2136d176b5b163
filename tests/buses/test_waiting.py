"""Runs at a broker wait for a worker: their leases begin with it, and it is told when their time is over."""

from __future__ import annotations

from horarium.model import Disposition, State
from tests.buses.test_scheduler import LEASE, LEASE_SECONDS, Begin, on_both, on_memory
from tests.buses.test_scheduler import bench_of as bench_of
from tests.waiting import until


async def test_a_run_is_pending_until_a_worker_says_running(bench_of: Begin) -> None:
    bench = await bench_of()
    run = await bench.begin(timeouts=LEASE)
    action = await bench.action()
    waiting = await bench.until(run.id, lambda run: run.lease_expires_at is not None and run.attempt == 1)
    assert (waiting.state, waiting.view().started_at, waiting.view().worker) == (State.PENDING, None, None)
    listed = await bench.scheduler.list_runs(states=["pending"])
    assert [run.id for run in listed.items] == [run.id]
    assert (await bench.scheduler.list_runs(states=["running"])).items == ()
    await bench.say("status", action, status="running")
    begun = await bench.until(run.id, lambda run: run.state is State.RUNNING)
    assert begun.view().started_at is not None
    assert [run.id for run in (await bench.scheduler.list_runs(states=["running"])).items] == [run.id]
    assert (await bench.scheduler.list_runs(states=["pending"])).items == ()
    await bench.say("status", action, status="completed")
    ended = await bench.until(run.id, lambda run: run.finished)
    assert [event.state for event in ended.history] == [State.PENDING, State.RUNNING, State.COMPLETED]


@on_memory
async def test_an_action_waits_on_its_queue_for_longer_than_a_lease_and_costs_no_attempt(bench_of: Begin) -> None:
    bench = await bench_of()
    run = await bench.begin(timeouts=LEASE, retry={"attempts_max": 1})
    assembly = bench.scheduler._runtime._assembly
    assert assembly is not None
    (handing_over,) = assembly.handing_over
    await until(lambda: handing_over._waiting)
    claimed = await bench.scheduler.get_run(run.id)
    bench.clock.let_pass(LEASE_SECONDS // 2)
    handing_over.wake()
    await until(lambda: not handing_over._waiting)  # a beat of its node may have renewed the lease before
    await bench.until(run.id, lambda run: run.lease_expires_at != claimed.lease_expires_at)
    bench.clock.let_pass(LEASE_SECONDS)
    assert (await bench.scheduler.get_run(run.id)).state is State.PENDING
    assert (await bench.scheduler._runtime.store.overdue_runs(bench.clock.now(), 10, bench.clock.now()))[0] == []
    action = await bench.action()
    assert (action["attempt"], action["token"], await bench.workers.waiting(bench.job, "action")) == (1, 1, 0)
    await bench.say("status", action, status="running")
    await bench.say("status", action, status="completed")
    assert (await bench.until(run.id, lambda run: run.finished)).state is State.COMPLETED


async def test_a_worker_that_takes_too_long_is_told_to_stop(bench_of: Begin) -> None:
    bench = await bench_of()
    timeouts = {"execution_seconds": LEASE_SECONDS, "heartbeat_seconds": 2 * LEASE_SECONDS}
    run = await bench.begin(timeouts=timeouts, retry={"attempts_max": 1})
    action = await bench.action()
    await bench.silence(run, action)
    asked = await bench.action()
    assert (asked["action"], asked["runId"]) == ("cancel", run.id)
    assert (await bench.scheduler.get_run(run.id)).state is State.CANCELLING
    await bench.say("status", action, status="cancelled")
    ended = await bench.until(run.id, lambda run: run.finished)
    assert (ended.state, ended.error) == (State.FAILED, "timed out: not done within 600 s")


@on_both
async def test_a_run_that_no_worker_starts_in_time_is_taken_back(bench_of: Begin) -> None:
    bench = await bench_of()
    run = await bench.begin(timeouts={"start_seconds": LEASE_SECONDS, **LEASE})
    assert (await bench.action())["action"] == "run"
    bench.clock.let_pass(LEASE_SECONDS)
    assert (await bench.action())["action"] == "cancel"
    await bench.until(run.id, lambda run: run.state is State.CANCELLING)
    await bench.say("status", {"jobName": bench.job, "runId": run.id}, status="cancelled")
    ended = await bench.until(run.id, lambda run: run.finished)
    assert (ended.state, ended.disposition) == (State.FAILED, Disposition.NOT_STARTED)


@on_memory
async def test_a_worker_that_begins_with_a_run_that_has_ended_is_told_to_stop(bench_of: Begin) -> None:
    bench = await bench_of()
    run = await bench.begin()
    action = await bench.action()
    await bench.say("status", action, status="running")
    await bench.say("status", action, status="failed", retryable=False)
    await bench.until(run.id, lambda run: run.finished)
    await bench.say("status", action, status="running")
    assert (await bench.action())["action"] == "cancel"


@on_memory
async def test_a_stopped_node_leaves_what_waits_at_the_broker(bench_of: Begin) -> None:
    bench = await bench_of()
    run = await bench.begin(timeouts=LEASE)
    action = await bench.action()
    await bench.scheduler.stop()
    waiting = await bench.scheduler.get_run(run.id)
    assert waiting.lease_expires_at is not None
    assert waiting.started_at is None, "its lease does not run"
    await bench.scheduler.start()
    await bench.say("status", action, status="completed")
    ended = await bench.until(run.id, lambda run: run.finished)
    assert (ended.state, ended.token) == (State.COMPLETED, 1)
