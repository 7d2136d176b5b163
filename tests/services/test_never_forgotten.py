"""What a node has claimed is in its hands until it ends, is given back, or the node dies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from horarium.clock import Instant
from horarium.model import State
from horarium.ports import Beat, Pulse
from horarium.stores.memory import MemoryStore
from tests.services.conftest import Setting
from tests.services.node import Node, Work
from tests.waiting import until


class AsksWhileBeating(MemoryStore):
    """A cancel is asked while the store is being asked about leases."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Callable[[], None] = lambda: None

    async def heartbeat_runs(self, beats: Sequence[Beat], now: Instant) -> list[Pulse | None]:
        pulses = await super().heartbeat_runs(beats, now)
        self.asked()
        return pulses


async def test_a_cancel_asked_while_leases_are_asked_about_loses_no_claimed_run(setting: Setting) -> None:
    store = setting.store = AsksWhileBeating()
    for index in range(2):
        await setting.add_run(f"run-{index}", lease_seconds=30)
    work = Work()
    node = Node(setting, work, places=2)
    claimed = await store.claim_runs(["pull/q"], 2, "w", setting.now, setting.now, setting.steady)
    node.dispatcher.take(claimed.runs[:1], claimed.jobs, setting.now)
    node.keeper.signalled()
    node.dispatcher.take(claimed.runs[1:], claimed.jobs, setting.now)
    store.asked = node.keeper.signalled
    await node.dispatcher.step(setting.now)
    store.asked = lambda: None
    await node.dispatcher.step(setting.now)
    await until(lambda: sorted(id for id, _ in work.begun) == ["run-0", "run-1"])


async def test_a_short_lease_is_looked_after_from_its_beginning(setting: Setting) -> None:
    await setting.add_run(lease_seconds=1)
    work = Work()
    node = Node(setting, work)
    await node.claim()
    await until(lambda: bool(work.begun))
    assert node.keeper.wake.is_set


async def test_a_run_that_waits_too_long_for_a_place_is_given_back(setting: Setting) -> None:
    for index in range(2):
        await setting.add_run(f"run-{index}", lease_seconds=30)
    work = Work()
    node = Node(setting, work, places=1)
    claimed = await setting.store.claim_runs(["pull/q"], 2, "w", setting.now, setting.now, setting.steady)
    node.dispatcher.take(claimed.runs, claimed.jobs, setting.now)
    await until(lambda: len(work.begun) == 1)
    setting.clock.advance(10)
    await node.dispatcher.step(setting.now)
    await node.collector.step(setting.now)
    run = await setting.run("run-1")
    assert (run.state, run.attempt, len(work.begun)) == (State.PENDING, 0, 1)


async def test_a_place_that_is_cancelled_with_its_event_loop_does_not_come_back(setting: Setting) -> None:
    for index in range(3):
        await setting.add_run(f"run-{index}", lease_seconds=30)
    node = Node(setting, Work(), places=1)
    claimed = await setting.store.claim_runs(["pull/q"], 3, "w", setting.now, setting.now, setting.steady)
    node.dispatcher.take(claimed.runs, claimed.jobs, setting.now)
    for task in list(node.performing._tasks):
        task.cancel()
    await until(lambda: not node.performing._tasks)


async def test_a_step_forward_of_the_clock_ends_no_attempt(setting: Setting) -> None:
    await setting.add_run(lease_seconds=30)
    work = Work()
    node = Node(setting, work)
    await node.claim()
    await until(lambda: bool(work.begun))
    await node.keeper.step(setting.now)
    setting.clock.step(3_600)
    await node.keeper.step(setting.now)
    assert node.performing.lively()
    work.go_on.set()
    await node.settle()
    assert await setting.state() is State.COMPLETED
