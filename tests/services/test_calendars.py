"""A change of a calendar reaches every job that uses it, also if the node that carries it there dies at any step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from horarium.errors import HorariumError, StoreUnavailable
from horarium.model import Job
from horarium.model.calendars import Calendar
from horarium.model.records import RecordFilter
from horarium.operations.calendars import CHANGED
from horarium.operations.facade import Operations
from horarium.operations.jobs.importing import Importing
from horarium.rules.planning import job_fires
from horarium.services.upkeep import calendars
from horarium.services.upkeep.calendars import CalendarApplier
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock
from horarium.testing.faults import Fault, FaultyStore
from horarium.triggers import business_day, cron
from horarium.wire.definitions import read_definition

pytestmark = pytest.mark.slow

START = 1_767_571_200_000_000  # 2026-01-05, a Monday
OFF = "2026-01-07"
PAGE = 4
JOBS = 3 * PAGE + 1
"""Some pages, and a job."""


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calendars, "PAGE", PAGE)


def an_applier(operations: Operations, node: str) -> CalendarApplier:
    return CalendarApplier(
        operations.store, operations.clock, operations.reconciler, node, operations.importing, operations.holds
    )


def operations_on(store: MemoryStore | FaultyStore, clock: ManualClock) -> Operations:
    return Operations(store, clock, LocalSignal(), lambda size: bytes(size), lambda target: None)


async def a_changed_calendar(clock: ManualClock) -> tuple[MemoryStore, Operations]:
    store = MemoryStore()
    numbers = iter(range(1, 10_000))
    operations = Operations(
        store, clock, LocalSignal(), lambda size: next(numbers).to_bytes(size, "big"), lambda target: None
    )
    await operations.calendars.put("ours", Calendar())
    trigger = business_day(cron("0 9 * * *"), "ours").spec()
    await operations.jobs.create_jobs(
        [
            read_definition({"name": f"j{number:03}", "trigger": trigger, "target": {"type": "queue", "queue": "q"}})
            for number in range(JOBS)
        ]
    )
    await operations.calendars.put("ours", Calendar(holidays=(OFF,)))
    return store, operations


async def left(store: MemoryStore) -> int:
    return len((await store.list_records(RecordFilter(CHANGED), None, 10)).items)


async def follows(store: MemoryStore, number: int) -> bool:
    (job,) = await store.get_jobs([f"j{number:03}"])
    assert job is not None
    return not any(f"{fire}" == "1767776400000000" for fire in job_fires(job, START, 5))


@pytest.mark.parametrize("when", list(Fault))
async def test_a_node_that_dies_at_any_step_leaves_the_rest_to_another(when: Fault) -> None:
    for last_call in range(1, 200):
        clock = ManualClock(START)
        store, _ = await a_changed_calendar(clock)
        calls = 0

        def dies(call: str, last_call: int = last_call) -> Fault | None:
            nonlocal calls
            calls += 1
            return when if calls >= last_call else None

        dying = an_applier(operations_on(FaultyStore(store, dies), clock), "n0")
        died = False
        for _ in range(60):
            try:
                await dying.step(clock.now())
            except StoreUnavailable:
                died = True
                break
            clock.advance(1)
        heir = an_applier(operations_on(store, clock), "n1")
        for _ in range(90):
            await heir.step(clock.now())
            if not await left(store):
                break
            clock.advance(1)
        assert await left(store) == 0, f"call {last_call}"
        assert all([await follows(store, number) for number in range(JOBS)]), f"call {last_call}"
        if not died:
            return
    raise AssertionError("it takes more calls than were tried")


async def test_a_change_of_a_job_that_is_made_meanwhile_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(START)
    store, operations = await a_changed_calendar(clock)
    honest = Importing.renew

    async def after_a_pause(self: Importing, jobs: Sequence[Job]) -> dict[str, HorariumError]:
        await operations.jobs.pause_job(jobs[0].name)
        await operations.jobs.patch_job(jobs[1].name, {"priority": 7})
        return await honest(self, jobs)

    monkeypatch.setattr(Importing, "renew", after_a_pause)
    await an_applier(operations, "n").step(clock.now())
    paused, patched = await store.get_jobs(["j000", "j001"])
    assert paused is not None
    assert patched is not None
    assert (paused.enabled, patched.priority) == (False, 7)
    assert await follows(store, 1)


async def test_two_nodes_share_the_work_and_write_each_job_once() -> None:
    clock = ManualClock(START)
    store, operations = await a_changed_calendar(clock)
    before = [job.version for job in await store.get_jobs([f"j{number:03}" for number in range(JOBS)]) if job]
    nodes = [an_applier(operations, "n0"), an_applier(operations_on(store, clock), "n1")]
    while await left(store):
        for node in nodes:
            await node.step(clock.now())
        clock.advance(1)
    after = [job.version for job in await store.get_jobs([f"j{number:03}" for number in range(JOBS)]) if job]
    assert after == [version + 1 for version in before]
