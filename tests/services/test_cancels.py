"""Cancel requests to endpoints that took their runs over: who sends them, how often, and what is kept of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from horarium.clock import DAY, SECOND
from horarium.errors import StoreUnavailable
from horarium.model import Cancelled, Completion, EventKind, HttpTarget, Node, Run, RunChange, State, Succeeded
from horarium.policies import Retention
from horarium.ports import Topic
from horarium.rules.settling import cancel, settle
from horarium.services.buses.cancels import (
    AT_ONCE_MAX,
    CANCEL_SENT,
    LOOK_SECONDS,
    PAUSE_SECONDS,
    SILENT_AFTER,
    HttpCancels,
    sends,
    was_told,
)
from horarium.testing.faults import Fault, FaultyStore
from tests.services.conftest import START, Setting, a_rescuer
from tests.waiting import until

TARGET = HttpTarget("http://example.com/do", completion=Completion.CALLBACK, cancel_url="http://example.com/stop")


class World:
    """A setting with nodes that send cancels, and what was sent, by node."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.sent: list[tuple[str, str]] = []
        self.taken = True
        self.under_way = False
        self.hold: asyncio.Event | None = None

    def node(self, name: str = "a", *, deaf: bool = False) -> HttpCancels:
        async def notify(target: HttpTarget, run: Run) -> bool:
            assert target == TARGET
            self.sent.append((name, run.id))
            if self.hold is not None:
                await self.hold.wait()
            return self.taken

        setting = self.setting
        cancels = HttpCancels(setting.store, setting.clock, name, notify, lambda run: self.under_way)
        if not deaf:
            setting.signal.subscribe(Topic("cancel"), cancels.signalled)
        return cancels

    async def beat(self, name: str, *, at: int | None = None, stopped: bool = False, role: str = "dispatcher") -> None:
        at = self.setting.now if at is None else at
        await self.setting.store.beat_node(
            Node(name=name, roles=(role,), started_at=0, beat_at=at, stopped_at=at if stopped else None)
        )

    async def running(self, id: str = "run", worker: str = "a", target: HttpTarget = TARGET) -> Run:
        """A run that an endpoint took over; cancelled or not is up to the test."""
        job = f"job-{id}"
        await self.setting.add_job(job, target=target)
        await self.setting.add_run(id, "http", job=job, job_id=job)
        (run,) = (
            await self.setting.store.claim_runs(
                ["http"], 1, worker, self.setting.now, self.setting.now, self.setting.now
            )
        ).runs
        return run

    async def cancelling(self, id: str = "run", worker: str = "a", target: HttpTarget = TARGET) -> Run:
        run = await self.running(id, worker, target)
        now = self.setting.now
        asked = cancel(run, Retention(), now, "enough")
        assert await self.setting.store.settle_runs([RunChange(asked, run.token, run.state)], now) == [True]
        self.setting.signal.publish(Topic("cancel"))
        return asked

    async def step(self, cancels: HttpCancels, seconds: float = 0.0) -> None:
        """Let time pass, then one step, and all that it began."""
        self.setting.clock.advance(seconds)
        await cancels.step(self.setting.now)
        if self.hold is None:
            await until(lambda: not cancels._sending)


@pytest.fixture
def world(setting: Setting) -> World:
    return World(setting)


async def test_an_endpoint_is_told_once_and_the_history_says_so(world: World) -> None:
    cancels = world.node()
    await world.cancelling()
    for _ in range(10):
        await world.step(cancels, 1)
    assert world.sent == [("a", "run")]
    run = await world.setting.run()
    assert (run.state, run.history[-1].message) == (State.CANCELLING, CANCEL_SENT[EventKind.CANCEL_TAKEN])


async def test_a_restarted_node_knows_what_was_sent(world: World) -> None:
    await world.cancelling()
    await world.step(world.node())
    await world.step(world.node(), 10)
    assert world.sent == [("a", "run")]


async def test_a_run_that_was_not_cancelled_is_left_alone(world: World) -> None:
    await world.running()
    await world.step(world.node(), 10)
    assert world.sent == []


async def test_a_clock_that_goes_back_puts_no_second_try_off(world: World) -> None:
    cancels, world.taken = world.node(), False
    await world.cancelling()
    await world.step(cancels)
    world.setting.clock.step(-3_600)
    await world.step(cancels, PAUSE_SECONDS)
    assert len(world.sent) == 2


async def test_a_target_without_a_cancel_url_is_sent_nothing(world: World) -> None:
    await world.cancelling(target=HttpTarget("http://example.com/do", completion=Completion.CALLBACK))
    await world.step(world.node())
    assert world.sent == []


async def test_runs_of_other_queues_are_not_ours(world: World) -> None:
    cancels = world.node()
    await world.setting.add_run("pulled")
    await world.setting.store.claim_runs(["pull/q"], 1, "a", START, START, START)
    run = await world.setting.run("pulled")
    await world.setting.store.settle_runs(
        [RunChange(cancel(run, Retention(), START, "x"), run.token, run.state)], START
    )
    await world.step(cancels)
    assert world.sent == []


async def test_a_request_that_is_not_taken_is_sent_again_and_given_up_in_the_end(world: World) -> None:
    cancels = world.node()
    world.taken = False
    await world.cancelling()
    counts = []
    for _ in range(20):
        await world.step(cancels, 0.5)
        counts.append(len(world.sent))
    assert counts[0] == 1
    assert sorted(set(counts)) == [1, 2, 3], "three tries, with growing pauses"
    assert counts.count(1) * 0.5 == 2.0
    assert counts.count(2) * 0.5 == 4.0
    assert (await world.setting.run()).history[-1].message == CANCEL_SENT[EventKind.CANCEL_NOT_TAKEN]
    assert cancels._tried == {}


async def test_no_further_try_once_the_run_has_ended(world: World) -> None:
    cancels = world.node()
    world.taken = False
    run = await world.cancelling()
    await world.step(cancels)
    now = world.setting.now
    done = settle(run, None, Succeeded(), now)
    assert await world.setting.store.settle_runs([RunChange(done, run.token, run.state, True)], now) == [True]
    for _ in range(20):
        await world.step(cancels, 1)
    assert (len(world.sent), (await world.setting.state())) == (1, State.COMPLETED)
    assert cancels._tried == {}


async def test_a_request_that_is_under_way_here_is_ended_by_its_delivery(world: World) -> None:
    cancels = world.node()
    world.under_way = True
    await world.cancelling()
    await world.step(cancels)
    assert world.sent == []
    world.under_way = False
    await world.step(cancels, 0.2)
    assert world.sent == [("a", "run")], "it was answered with 202 in that moment"


async def test_a_delivery_that_ends_while_runs_are_read_has_told_the_endpoint(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs as read are older than the answer to whether a request is under way."""
    store, cancels = world.setting.store, world.node()
    world.under_way = True
    run = await world.cancelling()
    read = store.overdue_runs

    async def slow(*given: Any) -> Any:
        found = await read(*given)
        ended = settle(run, None, Cancelled(), world.setting.now)
        await store.settle_runs([RunChange(ended, run.token, run.state, True)], world.setting.now)
        world.under_way = False
        return found

    monkeypatch.setattr(store, "overdue_runs", slow)
    await world.step(cancels)
    assert (world.sent, await world.setting.state()) == ([], State.CANCELLED)


async def test_a_request_that_is_taken_while_runs_are_read_is_not_sent_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, cancels, world.hold = world.setting.store, world.node(), asyncio.Event()
    await world.cancelling()
    await world.step(cancels)
    taken, read = world.hold, store.get_jobs_by_id

    async def slow(*given: Any) -> Any:
        taken.set()
        await until(lambda: not cancels._sending)
        return await read(*given)

    monkeypatch.setattr(store, "get_jobs_by_id", slow)
    await world.step(cancels, LOOK_SECONDS)
    await until(lambda: not cancels._sending)
    assert world.sent == [("a", "run")]


async def test_the_node_that_delivered_it_sends_and_no_other(world: World) -> None:
    nodes = {name: world.node(name) for name in ("a", "b", "c")}
    for name in nodes:
        await world.beat(name)
    await world.cancelling(worker="b")
    for cancels in (nodes["a"], nodes["c"], nodes["b"]):
        await world.step(cancels)
    assert world.sent == [("b", "run")]


@pytest.mark.parametrize("gone", ["silent", "stopped", "unknown", "ahead"])
async def test_where_that_node_is_gone_the_first_one_sends(world: World, gone: str) -> None:
    a, b = world.node("a"), world.node("b")
    await world.beat("api", role="api")
    await world.beat("a")
    await world.beat("b")
    if gone != "unknown":
        at = world.setting.now + {"silent": -SILENT_AFTER, "stopped": 0, "ahead": 3_650 * DAY}[gone]
        await world.beat("dead", at=at, stopped=gone == "stopped")
    await world.cancelling(worker="dead")
    await world.step(b)
    await world.step(a)
    assert world.sent == [("a", "run")]


def test_a_node_that_has_not_beaten_yet_may_send() -> None:
    run = Run(id="r", queue="http", fire_at=0, due_at=0, created_at=0, worker="dead")
    assert sends(run, "a", [], 0)
    assert not was_told(run)


async def test_an_endpoint_that_hangs_holds_up_no_other_step(world: World) -> None:
    cancels = world.node()
    world.hold = asyncio.Event()
    for number in range(AT_ONCE_MAX + 1):
        await world.cancelling(f"run-{number:03}")
    await world.step(cancels)
    await until(lambda: len(world.sent) == AT_ONCE_MAX)
    await world.step(cancels, 1)
    assert len(world.sent) == AT_ONCE_MAX, "so many at one time"
    world.hold.set()
    await until(lambda: not cancels._sending)
    await world.step(cancels, 1)
    await until(lambda: len(world.sent) == AT_ONCE_MAX + 1)
    await cancels.stop()
    assert len(set(world.sent)) == AT_ONCE_MAX + 1


async def test_a_worker_that_does_not_stop_is_terminated_after_its_grace(world: World) -> None:
    cancels = world.node()
    rescuer = a_rescuer(world.setting)
    await world.cancelling()
    await world.step(cancels)
    world.setting.clock.advance(29)
    await rescuer.step(world.setting.now)
    assert await world.setting.state() is State.CANCELLING
    world.setting.clock.advance(2)
    await rescuer.step(world.setting.now)
    run = await world.setting.run()
    assert (run.state, run.error) == (State.CANCELLED, "terminated: it did not stop")
    assert run.finished_at is not None
    assert run.finished_at >= START + 30 * SECOND


async def test_a_cancel_anywhere_is_found_without_a_signal(world: World) -> None:
    cancels = world.node(deaf=True)
    await world.step(cancels)
    await world.cancelling()
    await world.step(cancels, 1)
    assert world.sent == []
    await world.step(cancels, 5)
    assert world.sent == [("a", "run")]


async def test_an_outage_is_an_outage_at_every_step_until_it_ends(world: World) -> None:
    down = True
    world.setting.store = FaultyStore(world.setting.store, lambda name: Fault.BEFORE if down else None)
    cancels = world.node()
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await cancels.step(world.setting.now)
        world.setting.clock.advance(0.1)
    down = False
    await world.cancelling()
    await world.step(cancels)
    assert world.sent == [("a", "run")]
