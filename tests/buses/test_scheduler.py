"""The whole way: a scheduler, a broker, and a worker that knows nothing but the wire format."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from horarium import Scheduler, every
from horarium.buses.link import asking_to_end, end
from horarium.errors import InvalidJob
from horarium.library.values import Run
from horarium.model import State
from horarium.node.backends import make_store
from horarium.ports import Store
from horarium.testing import Fault, FaultyStore, by_script
from tests.buses.brokers import Workers
from tests.passing import PassingClock
from tests.waiting import PATIENCE, until

leaves_streams = pytest.mark.filterwarnings(
    # The worker's own drivers leave streams behind where a connection dies, or its user is cancelled, in between.
    "ignore:loop is closed:ResourceWarning",
    "ignore:unclosed:ResourceWarning",
)

SECONDS = PATIENCE
LEASE_SECONDS = 600
LEASE = {"heartbeat_seconds": LEASE_SECONDS}
"""Over when a test lets it pass: a busy machine ends none."""
WORKERS = 8
"""As many as it takes on a busy machine for no action to wait on its queue for as long as its lease stands."""
QUICK_RETRY = {"backoff_seconds": 0.05, "attempts_max": 5}


class Bench:
    """A scheduler with one bus, and the worker's end of it."""

    def __init__(self, scheduler: Scheduler, workers: Workers, job: str, clock: PassingClock) -> None:
        self.scheduler = scheduler
        self.workers = workers
        self.job = job
        self.clock = clock

    async def define(self, **fields: Any) -> None:
        await self.scheduler.add_job(self.job, every(86_400), bus="default", payload={"n": 1}, **fields)

    async def begin(self, **fields: Any) -> Run:
        """Define the job, and let one run be due."""
        await self.define(**{"retry": QUICK_RETRY, **fields})
        return await self.scheduler.trigger_job(self.job)

    async def action(self) -> dict[str, Any]:
        async with asyncio.timeout(SECONDS):
            action: dict[str, Any] = json.loads(await self.workers.receive(self.job))
        return action

    async def say(self, kind: str, action: dict[str, Any], **fields: Any) -> None:
        body = {"jobName": action["jobName"], "runId": action["runId"], **fields}
        await self.workers.send(self.job, kind, [json.dumps(body).encode()])

    async def until(self, run_id: str, holds: Callable[[Run], bool]) -> Run:
        """The run, as soon as it is so."""
        run = await self.scheduler.get_run(run_id)

        async def held() -> bool:
            nonlocal run
            run = await self.scheduler.get_run(run_id)
            return holds(run)

        try:
            await until(held)
        except AssertionError:
            problem = self.scheduler._runtime.buses["default"].problem
            waiting = {kind: await self.workers.waiting(self.job, kind) for kind in ("action", "status")}
            raise AssertionError(f"the bus: {problem or 'well'}; waiting: {waiting}; still so: {run}") from None
        return run

    async def silence(self, run: Run, action: dict[str, Any]) -> None:
        """A worker that begins with the run, and is not heard of again for as long as its lease lasts."""
        await self.say("status", action, status="running")
        await self.until(run.id, lambda run: run.state is State.RUNNING)
        self.clock.let_pass(LEASE_SECONDS)

    def counted(self, outcome: str) -> float:
        """Reports that were counted so."""
        registry = self.scheduler._runtime.telemetry.registry
        return registry.get_sample_value("horarium_bus_reports_total", {"outcome": outcome}) or 0.0

    async def until_counted(self, outcome: str, count: float) -> None:
        await until(lambda: self.counted(outcome) >= count, what=outcome)


# Where the outcome hangs on leases and on the store alone, one broker says as much as four.
on_memory = pytest.mark.parametrize("workers", ["memory"], indirect=True)
on_rabbitmq = pytest.mark.parametrize("workers", ["rabbitmq"], indirect=True)
on_both = pytest.mark.parametrize(
    "workers", ["memory", pytest.param("rabbitmq", marks=pytest.mark.slow)], indirect=True
)

Begin = Callable[..., Awaitable[Bench]]


@pytest_asyncio.fixture
async def bench_of(workers: Workers, job: str) -> AsyncIterator[Begin]:
    """Make a running scheduler on this broker; on a store, if one is given. All are on one clock."""
    made: list[Scheduler] = []
    clock = PassingClock()

    async def make(store: Store | str = "memory://", **options: Any) -> Bench:
        opened = make_store(store) if isinstance(store, str) else store
        scheduler = Scheduler(opened, buses={"default": workers.bus()}, grace_seconds=1.0, clock=clock, **options)
        made.append(scheduler)
        await scheduler.start()
        return Bench(scheduler, workers, job, clock)

    yield make
    for scheduler in made:
        await scheduler.close()


async def test_a_run_goes_out_and_its_reports_end_it(bench_of: Begin) -> None:
    bench = await bench_of()
    run = await bench.begin()
    action = await bench.action()
    assert action == {
        "jobName": bench.job,
        "runId": run.id,
        "action": "run",
        "token": 1,
        "attempt": 1,
        "fireAt": action["fireAt"],
        "idempotencyKey": run.id,
        "payload": {"n": 1},
    }
    await bench.say("status", action, status="running", unknown=[1])
    await bench.say("heartbeat", action, progress={"done": 0.5})
    await bench.until(run.id, lambda run: run.progress == b'{"done":0.5}')
    await bench.say("status", action, status="completed", result={"rows": 3})
    ended = await bench.until(run.id, lambda run: run.finished)
    assert (ended.state, ended.result, ended.attempt) == (State.COMPLETED, b'{"rows":3}', 1)


async def test_the_queues_of_a_job_are_there_before_its_first_run_and_again_after_their_deletion(
    bench_of: Begin,
) -> None:
    """A worker that only consumes may be started before anything is due."""
    bench = await bench_of()
    await bench.define()
    await until(lambda: bench.workers.has_queues(bench.job), what="the queues of a job without runs")
    await bench.workers.delete_queues(bench.job)
    run = await bench.scheduler.trigger_job(bench.job)
    await bench.say("status", await bench.action(), status="completed")
    await bench.until(run.id, lambda run: run.finished)
    assert await bench.workers.has_queues(bench.job)


async def test_a_failure_is_retried_under_a_new_token(bench_of: Begin) -> None:
    bench = await bench_of()
    run = await bench.begin()
    await bench.say("status", await bench.action(), status="failed", error="no disk")
    second = await bench.action()
    assert (second["attempt"], second["token"], second["runId"]) == (2, 2, run.id)
    await bench.say("status", second, status="completed", token=2)
    ended = await bench.until(run.id, lambda run: run.finished)
    assert (ended.state, ended.attempt) == (State.COMPLETED, 2)


async def test_a_failure_for_good_is_not_retried(bench_of: Begin) -> None:
    bench = await bench_of()
    run = await bench.begin()
    await bench.say("status", await bench.action(), status="failed", error={"code": 7}, retryable=False)
    ended = await bench.until(run.id, lambda run: run.finished)
    assert (ended.state, ended.attempt, ended.error) == (State.FAILED, 1, '{"code":7}')


async def test_a_cancel_goes_out_and_comes_back(bench_of: Begin) -> None:
    bench = await bench_of()
    run = await bench.begin()
    action = await bench.action()
    await bench.say("status", action, status="running")
    await bench.scheduler.cancel_run(run.id)
    asked = await bench.action()
    assert (asked["action"], asked["runId"], asked["token"]) == ("cancel", run.id, 1)
    await bench.say("status", action, status="cancelled", reason="as you wish")
    ended = await bench.until(run.id, lambda run: run.finished)
    assert (ended.state, ended.error) == (State.CANCELLED, "as you wish")


async def test_a_cancel_asked_elsewhere_goes_out_although_the_lease_is_long(bench_of: Begin) -> None:
    store = make_store("memory://")
    bench = await bench_of(store)
    run = await bench.begin(timeouts={"heartbeat_seconds": 3600})
    action = await bench.action()
    other = Scheduler(store, roles=("planner",))
    await other._operations.runs.cancel_run(run.id)
    await bench.say("heartbeat", action)
    assert (await bench.action())["action"] == "cancel"


async def test_work_done_before_the_cancel_is_seen_counts(bench_of: Begin) -> None:
    bench = await bench_of()
    run = await bench.begin()
    action = await bench.action()
    await bench.scheduler.cancel_run(run.id)
    await bench.say("status", action, status="completed")
    assert (await bench.until(run.id, lambda run: run.finished)).state is State.COMPLETED


@on_memory
async def test_a_bus_that_a_node_with_buses_does_not_have_is_refused(bench_of: Begin) -> None:
    bench = await bench_of()
    with pytest.raises(InvalidJob, match="no bus 'nope' here, only 'default'") as refused:
        await bench.scheduler.add_job(bench.job, every(60), bus="nope")
    assert refused.value.field == "target.bus"
    await bench.define()
    with pytest.raises(InvalidJob):
        await bench.scheduler.add_job(bench.job, every(60), bus="nope")
    assert (await bench.scheduler.get_job(bench.job)).queue == "bus/default"


async def test_a_node_without_buses_takes_the_job_for_the_dispatchers_of_others_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Scheduler("memory://", roles=("api",)) as scheduler:
        for number in range(3):
            await scheduler.add_job(f"elsewhere-{number}", every(60), bus="orders")
    assert caplog.text.count("the bus 'orders'; its runs wait for a dispatcher that has it") == 1


@on_rabbitmq
@pytest.mark.slow
async def test_silence_is_published_again_and_the_late_worker_changes_nothing(bench_of: Begin) -> None:
    bench = await bench_of()
    run = await bench.begin(timeouts=LEASE)
    first = await bench.action()
    await bench.silence(run, first)
    second = await bench.action()
    assert (second["runId"], second["token"], second["attempt"]) == (run.id, 2, 2)
    await bench.say("status", first, status="completed", token=first["token"], result="late")
    await bench.until_counted("stale", 1)
    assert not (await bench.scheduler.get_run(run.id)).finished
    await bench.say("status", second, status="completed", token=second["token"], result="right")
    ended = await bench.until(run.id, lambda run: run.finished)
    assert (ended.state, ended.result) == (State.COMPLETED, b'"right"')


@on_rabbitmq
@pytest.mark.slow
async def test_heartbeats_hold_a_run_for_longer_than_its_lease(bench_of: Begin) -> None:
    bench = await bench_of()
    run = await bench.begin(timeouts=LEASE)
    action = await bench.action()
    await bench.say("status", action, status="running")
    stood = (await bench.until(run.id, lambda run: run.state is State.RUNNING)).lease_expires_at
    for _ in range(3):
        bench.clock.let_pass(LEASE_SECONDS // 2)
        await bench.say("heartbeat", action)
        later = await bench.until(run.id, lambda run, stood=stood: run.lease_expires_at != stood)  # type: ignore[misc]
        assert stood is not None
        assert later.lease_expires_at is not None
        assert later.lease_expires_at - stood >= timedelta(seconds=LEASE_SECONDS // 2 - 1)
        stood = later.lease_expires_at
    await bench.say("status", action, status="completed")
    ended = await bench.until(run.id, lambda run: run.finished)
    assert (ended.state, ended.attempt, ended.token) == (State.COMPLETED, 1, 1)


async def test_what_cannot_be_read_or_is_not_ours_is_rejected_and_counted(bench_of: Begin) -> None:
    bench = await bench_of()
    run = await bench.begin()
    action = await bench.action()
    malformed = [
        b"",
        b"\xff",
        b"[]",
        b'{"jobName": "x"}',
        b'{"jobName": "x", "runId": 7, "status": "running"}',
        json.dumps({"jobName": bench.job, "runId": run.id, "status": "done"}).encode(),
        json.dumps({"jobName": bench.job, "runId": run.id, "status": "completed", "token": "1"}).encode(),
        json.dumps({"jobName": bench.job, "runId": run.id, "status": "completed", "token": -1}).encode(),
        json.dumps({"jobName": bench.job, "runId": "\u0000", "status": "completed"}).encode(),
        b'{"jobName": "x", "runId": "y", "status": "completed", "result": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b" " * 600_000,
        b'{"jobName": "x", "runId": "y", "status": "completed", "result": "' + b"z" * 1_000_000 + b'"}',
    ]
    foreign = [
        {"jobName": bench.job, "runId": "nobody-knows", "status": "completed"},
        {"jobName": "another", "runId": run.id, "status": "completed"},
    ]
    await bench.workers.send(bench.job, "status", malformed)
    await bench.workers.send(bench.job, "status", [json.dumps(body).encode() for body in foreign])
    await bench.until_counted("malformed", len(malformed))
    await bench.until_counted("foreign", len(foreign))
    await bench.say("status", action, status="completed")
    assert (await bench.until(run.id, lambda run: run.finished)).state is State.COMPLETED

    async def taken() -> bool:
        return not await bench.workers.waiting(bench.job, "status")

    await until(taken)


async def test_a_status_that_comes_twice_counts_once(bench_of: Begin) -> None:
    bench = await bench_of()
    run = await bench.begin()
    action = await bench.action()
    for _ in range(3):
        await bench.say("status", action, status="completed", token=1, result=1)
    await bench.until_counted("duplicate", 2)
    assert bench.counted("written") == 1
    assert (await bench.scheduler.get_run(run.id)).state is State.COMPLETED


async def test_a_huge_result_is_cut_and_the_run_completed(bench_of: Begin) -> None:
    bench = await bench_of()
    run = await bench.begin()
    await bench.say("status", await bench.action(), status="completed", result="x" * 100_000, progress="y" * 100_000)
    ended = await bench.until(run.id, lambda run: run.finished)
    assert ended.state is State.COMPLETED
    assert json.loads(ended.result or b"")["truncated"] is True


@on_both
@pytest.mark.parametrize("fault", list(Fault))
async def test_a_report_waits_for_a_store_that_is_away(bench_of: Begin, fault: Fault) -> None:
    store = FaultyStore(make_store("memory://"), by_script())
    bench = await bench_of(store)
    run = await bench.begin()
    action = await bench.action()
    store.plan = by_script(*[("settle_runs", fault)] * 3)
    await bench.say("heartbeat", action)
    await bench.say("status", action, status="completed", token=1)
    await bench.until(run.id, lambda run: run.finished)
    await until(lambda: sum(map(bench.counted, ("written", "duplicate", "stale"))) >= 2)
    assert store.faults >= 1
    assert (await bench.scheduler.get_run(run.id)).state is State.COMPLETED


@on_memory
@pytest.mark.slow
async def test_a_run_that_was_claimed_but_never_published_is_published_by_the_next(bench_of: Begin) -> None:
    store = make_store("memory://")
    await store.open()
    gone = Scheduler(store, roles=("planner",))
    await gone.open()
    bench = Bench(gone, None, "", PassingClock())  # type: ignore[arg-type]
    real = await bench_of(store, roles=("planner",))
    bench.job = real.job
    run = await bench.begin(timeouts={"heartbeat_seconds": 1})
    now = gone._runtime.clock.now()
    claimed = await store.claim_runs(["bus/default"], 1, "crashed", now, now, now)
    assert [run.id for run in claimed.runs] == [run.id]
    saved = await bench_of(store)
    action = await saved.action()
    assert (action["runId"], action["token"], action["attempt"]) == (run.id, 2, 1)


async def test_two_nodes_share_the_work(bench_of: Begin) -> None:
    store = make_store("memory://")
    one = await bench_of(store)
    await bench_of(store)
    await one.define()
    runs = [await one.scheduler.trigger_job(one.job) for _ in range(40)]
    seen: set[str] = set()
    for _ in runs:
        action = await one.action()
        seen.add(action["runId"])
        await one.say("status", action, status="completed", token=action["token"])
    assert seen == {run.id for run in runs}
    for run in runs:
        ended = await one.until(run.id, lambda run: run.finished)
        assert (ended.state, ended.attempt) == (State.COMPLETED, 1)


async def test_a_stop_hands_out_nothing_more_and_a_start_goes_on(bench_of: Begin) -> None:
    bench = await bench_of()
    run = await bench.begin()
    action = await bench.action()
    await bench.scheduler.stop()
    await bench.say("status", action, status="completed", token=1)
    assert not (await bench.scheduler.get_run(run.id)).finished
    await bench.scheduler.start()
    assert (await bench.until(run.id, lambda run: run.finished)).state is State.COMPLETED


@leaves_streams
async def test_deleted_queues_are_made_again_under_load(bench_of: Begin) -> None:
    bench = await bench_of()
    await bench.define(timeouts={"heartbeat_seconds": 2}, retry={"attempts_max": 20, "backoff_seconds": 0.05})
    runs = [await bench.scheduler.trigger_job(bench.job) for _ in range(50)]
    working = [asyncio.create_task(_work(bench)) for _ in range(WORKERS)]
    for run in runs:
        assert (await bench.until(run.id, lambda run: run.finished)).state is State.COMPLETED
    await bench.workers.delete_queues(bench.job)
    runs += [await bench.scheduler.trigger_job(bench.job) for _ in range(50)]
    for run in runs:
        assert (await bench.until(run.id, lambda run: run.finished)).state is State.COMPLETED
    await end(working, 5.0)


@leaves_streams
@pytest.mark.slow
@pytest.mark.proof
async def test_no_run_is_lost_when_the_broker_is_killed_under_load(bench_of: Begin) -> None:
    bench = await bench_of()
    await bench.define(timeouts={"heartbeat_seconds": 4}, retry={"attempts_max": 50, "backoff_seconds": 0.1})
    runs = [await bench.scheduler.trigger_job(bench.job) for _ in range(100)]
    working = [asyncio.create_task(_work(bench)) for _ in range(WORKERS)]
    await bench.until(runs[20].id, lambda run: run.finished)
    more = [await bench.scheduler.trigger_job(bench.job) for _ in range(30)]
    await bench.workers.kill()
    more += [await bench.scheduler.trigger_job(bench.job) for _ in range(70)]
    await bench.workers.start()
    for run in [*runs, *more]:
        ended = await bench.until(run.id, lambda run: run.finished)
        assert ended.state is State.COMPLETED
    await end(working, 5.0)


async def _work(bench: Bench) -> None:
    """A worker that completes what it gets, and begins anew where the broker fails it."""
    while True:
        try:
            action = await bench.action()
            if action["action"] == "run":
                await bench.say("status", action, status="completed", token=action["token"])
        except (Exception, asyncio.CancelledError):
            # A driver may say with a cancellation that its channel was closed.
            if asking_to_end():
                raise
            await asyncio.sleep(0.05)
