"""A change of a calendar reaches every job that uses it, also if the node that carries it there dies at any step."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import pytest

from horarium.errors import HorariumError, StoreUnavailable
from horarium.model import Job
from horarium.model.calendars import Calendar
from horarium.model.records import RecordFilter
from horarium.node.backends import make_store
from horarium.operations.calendars import CHANGED
from horarium.operations.facade import Operations
from horarium.operations.jobs.importing import Importing
from horarium.ports import Store
from horarium.rules.planning import job_fires
from horarium.services.upkeep import calendars
from horarium.services.upkeep.calendars import CalendarApplier
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock
from horarium.testing.faults import Fault, FaultPlan, FaultyStore
from horarium.triggers import business_day, cron
from horarium.wire.definitions import read_definition

pytestmark = pytest.mark.slow

START = 1_767_571_200_000_000  # 2026-01-05, a Monday
OFF = Calendar(holidays=("2026-01-07",))
FIRE = 1_767_776_400_000_000
"""The fire time of that day."""
PAGE, PAGES = 4, 3
NAMES = [f"j{number:03}" for number in range((PAGES - 1) * PAGE + 1)]
"""Some pages, and a job."""
WRITES = frozenset({"put_records", "commit_plans"})
WRITES_MIN = PAGES + 2
"""A node takes the work, changes the jobs of each page, and removes the marker."""


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calendars, "PAGE", PAGE)


@pytest.fixture
async def nodes(url: str) -> AsyncIterator[tuple[Store, Store]]:
    """A store, as each of two nodes has it."""
    namespace = f"calendars-{secrets.token_hex(4)}"
    one = make_store(url, namespace)
    other = one if url == "memory://" else make_store(url, namespace)
    await one.open()
    await other.open()
    yield one, other
    await one.close()
    await other.close()


def an_applier(operations: Operations, node: str) -> CalendarApplier:
    return CalendarApplier(
        operations.store, operations.clock, operations.reconciler, node, operations.importing, operations.holds
    )


def operations_on(store: Store, clock: ManualClock) -> Operations:
    return Operations(store, clock, LocalSignal(), os.urandom, lambda target: None)


async def define(operations: Operations) -> None:
    """A calendar, and jobs that use it."""
    await operations.calendars.put("ours", Calendar())
    trigger = business_day(cron("0 9 * * *"), "ours").spec()
    given = [{"name": name, "trigger": trigger, "target": {"type": "queue", "queue": "q"}} for name in NAMES]
    await operations.jobs.create_jobs([read_definition(each) for each in given])


async def stored(store: Store) -> list[Job]:
    return [job for job in await store.get_jobs(NAMES) if job is not None]


async def is_off(store: Store) -> list[bool]:
    """Whether that day is off, for each job."""
    return [FIRE not in job_fires(job, START, 5) for job in await stored(store)]


async def left(store: Store) -> int:
    return len((await store.list_records(RecordFilter(CHANGED), None, 10)).items)


async def carried_out(applier: CalendarApplier, store: Store, clock: ManualClock) -> bool:
    """Whether the node lived to do all that the change leaves to do."""
    with suppress(StoreUnavailable):
        for _ in range(60):
            await applier.step(clock.now())
            clock.advance(2)
            if not await left(store):
                return True
        raise AssertionError("it takes more steps than were tried")
    return False


def dies_at(number: int, when: Fault) -> FaultPlan:
    """Of this write of a node, and of all calls after it, none is answered. (At a call that writes nothing it leaves
    what the write before has left.)"""
    writes = 0

    def plan(call: str) -> Fault | None:
        nonlocal writes
        if writes == number:
            return Fault.BEFORE
        writes += call in WRITES
        return when if writes == number else None

    return plan


@pytest.mark.parametrize("when", list(Fault))
async def test_a_node_that_dies_at_any_write_leaves_the_rest_to_another(
    nodes: tuple[Store, Store], when: Fault
) -> None:
    (store, other), clock = nodes, ManualClock(START)
    operations = operations_on(other, clock)
    await define(operations)
    for number in range(1, 50):
        off = number % 2 == 1
        await operations.calendars.put("ours", OFF if off else Calendar())
        dying = an_applier(operations_on(FaultyStore(store, dies_at(number, when)), clock), "n0")
        survived = await carried_out(dying, other, clock)
        if survived:
            assert number > WRITES_MIN
            break
        heir = an_applier(operations, "n1")
        assert await left(other) == 0 or await carried_out(heir, other, clock)
        assert await is_off(other) == [off] * len(NAMES), f"write {number}"
    assert survived, "it takes more writes than were tried"


async def test_a_change_of_a_job_that_is_made_meanwhile_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock = MemoryStore(), ManualClock(START)
    operations = operations_on(store, clock)
    await define(operations)
    await operations.calendars.put("ours", OFF)
    honest = Importing.renew

    async def after_a_pause(self: Importing, jobs: Sequence[Job]) -> dict[str, HorariumError]:
        await operations.jobs.pause_job(jobs[0].name)
        await operations.jobs.patch_job(jobs[1].name, {"priority": 7})
        return await honest(self, jobs)

    monkeypatch.setattr(Importing, "renew", after_a_pause)
    await an_applier(operations, "n").step(clock.now())
    paused, patched = (await stored(store))[:2]
    assert (paused.enabled, patched.priority) == (False, 7)
    assert (await is_off(store))[1]


async def test_two_nodes_share_the_work_and_write_each_job_once() -> None:
    store, clock = MemoryStore(), ManualClock(START)
    operations = operations_on(store, clock)
    await define(operations)
    await operations.calendars.put("ours", OFF)
    before = [job.version for job in await stored(store)]
    nodes = [an_applier(operations, "n0"), an_applier(operations_on(store, clock), "n1")]
    while await left(store):
        for node in nodes:
            await node.step(clock.now())
        clock.advance(1)
    assert [job.version for job in await stored(store)] == [version + 1 for version in before]
