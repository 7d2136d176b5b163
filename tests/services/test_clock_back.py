"""The clock is set while a service waits: neither what it read before nor a lease that it holds is lost by that."""

from __future__ import annotations

from collections.abc import Sequence

from horarium.clock import SECOND, Instant
from horarium.ports import Beat, Pulse
from horarium.stores.memory import MemoryStore
from horarium.testing import ManualClock
from tests.services.conftest import START, Setting
from tests.services.node import Node, Work
from tests.waiting import until


class StepsBack(MemoryStore):
    """The clock is set back just before a beat."""

    clock: ManualClock | None = None

    async def heartbeat_runs(self, beats: Sequence[Beat], steady: Instant) -> list[Pulse | None]:
        if self.clock is not None:
            self.clock.step(-300)
        return await super().heartbeat_runs(beats, steady)


async def test_a_lease_renewed_after_the_clock_went_back_is_not_lost(setting: Setting) -> None:
    setting.store = store = StepsBack()
    await setting.add_run(lease_seconds=30)
    node = Node(setting, Work())
    await node.claim()
    await until(lambda: len(node.performing.attempts) == 1)
    store.clock = setting.clock
    node.keeper.signalled()
    await node.keeper.step(setting.now)
    assert [attempt.stop for attempt in node.performing.attempts.values()] == [None]
    await node.performing.end(1)


async def test_a_run_claimed_ahead_begins_though_the_clock_steps_past_its_lease(setting: Setting) -> None:
    await setting.add_run(lease_seconds=30, due_at=START + SECOND)
    work = Work()
    node = Node(setting, work, window_seconds=5)
    await node.claim()
    assert len(node.performing.waiting) == 1
    setting.clock.step(3_600)
    await node.claim()
    await until(lambda: work.begun == [("run", 1)])
    await node.performing.end(1)


async def test_a_run_that_waited_beyond_its_lease_begins_once_it_is_renewed(setting: Setting) -> None:
    await setting.add_run(lease_seconds=1)
    work = Work()
    node = Node(setting, work)
    await node.claim()
    setting.clock.advance(1)
    await until(lambda: not node.performing.waiting.line)
    await node.claim()
    await until(lambda: bool(work.begun))
    run = await setting.run()
    assert (work.begun, run.attempt) == ([(run.id, 1)], 1)
    assert (run.lease_expires_at or 0) > setting.steady
