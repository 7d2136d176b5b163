"""The scale of leases: one for all nodes of a store, whatever their wall clocks show."""

from __future__ import annotations

import msgspec
import pytest

from horarium.clock import DAY, SECOND, SystemClock
from horarium.services.leases.rescuer import LEFT_SECONDS_MAX, STILL_SECONDS, Rescuer
from horarium.services.loop.steady import AGE_MAX, NAME, SETTLED_SECONDS, Reading, SteadyScale
from horarium.stores.memory import MemoryStore
from horarium.testing import ManualClock
from tests.services.conftest import START, Setting, a_rescuer


class Machine:
    """One with a node on it."""

    def __init__(self, store: MemoryStore, wall: int = START) -> None:
        self.clock = ManualClock(wall)
        self.scale = SteadyScale(store, self.clock)


def pass_on(seconds: float, *machines: Machine) -> None:
    for machine in machines:
        machine.clock.advance(seconds)


async def test_the_first_node_begins_at_its_wall_time_and_writes_it_down() -> None:
    store = MemoryStore()
    first = Machine(store)
    await first.scale.follow()
    (record,) = await store.get_records([NAME])
    assert record is not None
    read = msgspec.json.decode(record.body, type=Reading)
    assert (read.steady, read.wall, read.machine) == (START, START, first.clock.machine)


@pytest.mark.parametrize("wrong", [0, -DAY, DAY, 3_650 * DAY])
async def test_a_node_that_comes_to_others_follows_them(wrong: int) -> None:
    """A wall clock that is wrong costs `AGE_MAX` at most."""
    store = MemoryStore()
    first, second = Machine(store), Machine(store, START + wrong)
    await first.scale.follow()
    pass_on(3, first, second)
    await second.scale.follow()
    ahead = second.clock.steady() - first.clock.steady()
    assert -3 * SECOND <= ahead <= AGE_MAX - 3 * SECOND
    assert wrong != 0 or ahead == 0
    for _ in range(10):
        for machine in (first, second):
            pass_on(1, first, second)
            await machine.scale.follow()
    assert abs(first.clock.steady() - second.clock.steady()) <= AGE_MAX


async def test_none_is_moved_by_the_jumps_of_another() -> None:
    store = MemoryStore()
    machines = first, second = Machine(store), Machine(store)
    for jump in (0, 3_600, -90_000, 50, -50, 0):
        second.clock.step(jump)
        for machine in machines:
            await machine.scale.follow()
            pass_on(5, *machines)
    assert first.clock.steady() - START <= 60 * SECOND + 3 * AGE_MAX
    assert first.scale.is_settled or abs(first.clock.steady() - second.clock.steady()) <= AGE_MAX


async def test_a_new_life_goes_on_from_the_last_one() -> None:
    """Whose leases end when their time has passed, and not sooner since the machine was off."""
    store = MemoryStore()
    await Machine(store).scale.follow()
    again = Machine(store, START + 5 * SECOND)
    await again.scale.follow()
    assert again.clock.steady() == START + 5 * SECOND
    later = Machine(store, START + DAY)
    await later.scale.follow()
    assert later.clock.steady() == START + 5 * SECOND + AGE_MAX


async def test_a_node_is_settled_once_others_have_had_the_time_to_follow() -> None:
    store = MemoryStore()
    first = Machine(store)
    await first.scale.follow()
    assert not first.scale.is_settled
    pass_on(SETTLED_SECONDS, first)
    assert first.scale.is_settled
    await first.scale.follow()
    ahead = Machine(store, START + DAY)
    await ahead.scale.follow()
    pass_on(1, first, ahead)
    await first.scale.follow()
    assert not first.scale.is_settled


def test_the_clocks_of_a_machine_count_alike() -> None:
    one, other = SystemClock(), SystemClock()
    assert one.machine == other.machine
    other.steady_offset = one.steady_offset - DAY
    assert abs(other.steady() - one.steady() + DAY) < SECOND // 10


async def test_on_one_machine_no_wall_clock_is_asked() -> None:
    store = MemoryStore()
    first, second = Machine(store), Machine(store)
    second.clock.machine = first.clock.machine
    await first.scale.follow()
    pass_on(3, first, second)
    second.clock.step(-DAY // SECOND)
    await second.scale.follow()
    assert second.clock.steady() == first.clock.steady()


async def claimed_and_over(setting: Setting, lease_seconds: float) -> None:
    await setting.add_run(lease_seconds=lease_seconds)
    await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now, setting.steady)
    setting.clock.advance(lease_seconds)


async def leaves_for(setting: Setting, rescuer: Rescuer) -> int:
    """For how many seconds it leaves an ended lease alone."""
    for second in range(100):
        await rescuer.step(setting.now)
        if await setting.state() == "pending":
            return second
        setting.clock.advance(1)
    raise AssertionError("it was never taken")


@pytest.mark.parametrize(("lease_seconds", "left"), [(4, 4), (30, LEFT_SECONDS_MAX)])
async def test_a_node_that_has_just_come_leaves_ended_leases_to_their_holders(
    setting: Setting, lease_seconds: float, left: float
) -> None:
    await claimed_and_over(setting, lease_seconds)
    rescuer = a_rescuer(setting)
    rescuer._scale._moved_at = setting.clock.monotonic()
    assert await leaves_for(setting, rescuer) == left


@pytest.mark.parametrize(("late", "left"), [(STILL_SECONDS, 0), (STILL_SECONDS + 1, 4)])
async def test_a_process_that_stood_still_leaves_ended_leases_to_their_holders(
    setting: Setting, late: float, left: float
) -> None:
    """Others may have stood still with it: a machine that slept, a container that was paused."""
    rescuer = a_rescuer(setting)
    await setting.add_run(lease_seconds=4)
    await setting.store.claim_runs(["pull/q"], 1, "w", setting.now, setting.now, setting.steady)
    assert await rescuer.step(setting.now) == setting.now + 4 * SECOND
    setting.clock.advance(4 + late)
    assert await leaves_for(setting, rescuer) == left
