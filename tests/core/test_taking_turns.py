"""Many callers that change one job at the same time: each is carried out, with a version and an entry of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from horarium.access.acting import acting
from horarium.access.audit import AuditFilter, Origin, page
from horarium.access.roles import Role, principal
from horarium.clock import Instant
from horarium.errors import InvalidJob, NotFound, StoreUnavailable
from horarium.model import Plan, Run, State
from horarium.operations.facade import Operations
from horarium.ports import Page, RunFilter
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock
from horarium.testing.values import NOW
from horarium.wire.definitions import read_definition

CALLERS = 64
EACH_HOUR = {"type": "interval", "every_seconds": 3600, "anchor": "2020-01-01T00:00:00Z"}


class Counting(MemoryStore):
    """Counts what it is asked to write, and lets other tasks in at each call. `down`: it does not answer."""

    writes = 0
    looks = 0
    down = False

    async def list_runs(self, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        self.looks += 1
        return await super().list_runs(where, after, limit)

    async def commit_plans(self, plans: Sequence[Plan], now: Instant) -> list[bool]:
        self.writes += 1
        await asyncio.sleep(0)
        if self.down:
            raise StoreUnavailable("it is down")
        won = await super().commit_plans(plans, now)
        await asyncio.sleep(0)
        return won


def operations_on(store: MemoryStore) -> Operations:
    return Operations(store, ManualClock(NOW), LocalSignal(), os.urandom, lambda target: None)


async def a_world(**changes: Any) -> tuple[Counting, Operations]:
    store = Counting()
    operations = operations_on(store)
    target = {"type": "queue", "queue": "q"}
    definition = {"name": "job", "trigger": EACH_HOUR, "target": target, **changes}
    await operations.jobs.put_job(read_definition(definition))
    return store, operations


async def together(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_changes_that_come_together_are_written_together_each_as_a_version_of_its_own() -> None:
    store, operations = await a_world()
    jobs = await together(*(operations.jobs.patch_job("job", {"priority": n}) for n in range(1, CALLERS + 1)))
    assert [job.priority for job in jobs] == list(range(1, CALLERS + 1))
    assert [job.version for job in jobs] == list(range(2, CALLERS + 2))
    assert await operations.jobs.get_job("job") == jobs[-1]
    assert store.writes <= 3


async def test_each_caller_is_in_the_audit_and_in_the_versions() -> None:
    store, operations = await a_world()

    async def by(name: str, priority: int) -> None:
        caller = Origin(principal=principal(f"key:{name}", name, "key", [Role.ADMIN]), request_id=name)
        with acting(caller):
            await operations.jobs.patch_job("job", {"priority": priority})

    await together(*(by(f"caller-{n}", n) for n in range(1, 9)))
    entries = (await page(store, AuditFilter(), None, 100)).items
    told = [(entry.actor, entry.before["priority"], entry.after["priority"]) for entry in entries]
    assert sorted(told, key=lambda line: line[2]) == [(f"key:caller-{n}", n - 1, n) for n in range(1, 9)]
    job = await operations.jobs.get_job("job")
    versions = (await operations.jobs.versions.page(job, None, 100)).items
    assert [(each.version, each.number, each.definition.priority) for each in versions] == [
        (n + 1, n + 1, n) for n in range(8, -1, -1)
    ]
    assert [each.actor for each in versions] == [*(f"key:caller-{n}" for n in range(8, 0, -1)), ""]


async def test_callers_of_several_processes_are_all_carried_out() -> None:
    store, first = await a_world()
    others = [first, *(operations_on(store) for _ in range(3))]
    calls = [others[n % 4].jobs.patch_job("job", {"labels": {f"caller-{n}": "x"}}) for n in range(30)]
    jobs = await together(*calls)
    assert [type(job).__name__ for job in jobs] == ["Job"] * 30
    job = await first.jobs.get_job("job")
    assert set(job.labels) == {f"caller-{n}" for n in range(30)}
    assert sorted(each.version for each in jobs) == list(range(2, 32))


async def test_one_that_is_refused_hinders_no_other() -> None:
    _, operations = await a_world()
    answers = await together(
        operations.jobs.patch_job("job", {"priority": 1}),
        operations.jobs.patch_job("job", {"priority": 10**6}),
        operations.jobs.pause_job("job", "why"),
        operations.jobs.patch_job("job", {"title": "as it is"}),
    )
    assert isinstance(answers[1], InvalidJob)
    job = await operations.jobs.get_job("job")
    assert (job.priority, job.enabled, job.pause_reason, job.title) == (1, False, "why", "as it is")


async def test_what_changes_nothing_is_answered_with_the_job_as_the_one_before_left_it() -> None:
    store, operations = await a_world()
    first, again, resumed, once_more = await together(
        operations.jobs.pause_job("job"),
        operations.jobs.pause_job("job"),
        operations.jobs.resume_job("job"),
        operations.jobs.pause_job("job"),
    )
    assert first == again
    assert (first.enabled, resumed.enabled, once_more.enabled) == (False, True, False)
    assert (first.version, resumed.version, once_more.version) == (2, 3, 4)
    assert store.writes <= 2


async def test_one_look_at_the_runs_follows_changes_that_were_written_together() -> None:
    store, operations = await a_world()
    calls = [operations.jobs.resume_job if n % 2 else operations.jobs.pause_job for n in range(CALLERS)]
    jobs = await together(*(call("job") for call in calls))
    assert [job.version for job in jobs] == list(range(2, CALLERS + 2))
    # Of each group one before it is written, and one after it.
    assert store.writes <= 3
    assert store.looks <= 2 * store.writes


async def test_a_look_that_fails_is_told_to_all_whose_changes_it_was_for() -> None:
    store, operations = await a_world()
    await operations.jobs.pause_job("job")
    before, listed = store.writes, store.list_runs

    async def fails_after_the_write(where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        if store.writes > before:
            raise StoreUnavailable("it is down")
        return await listed(where, after, limit)

    store.list_runs = fails_after_the_write  # type: ignore[method-assign]
    answers = await together(*(operations.jobs.patch_job("job", {"priority": n}) for n in range(1, 4)))
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
    # They are written all the same.
    assert (await operations.jobs.get_job("job")).priority == 3


async def test_after_a_delete_there_is_no_job() -> None:
    _, operations = await a_world()
    answers = await together(
        operations.jobs.patch_job("job", {"priority": 1}),
        operations.jobs.delete_job("job"),
        operations.jobs.patch_job("job", {"priority": 2}),
    )
    assert answers[0].priority == 1
    assert isinstance(answers[2], NotFound)


@pytest.mark.parametrize(
    ("policy", "pending"), [("skip", 1), ("buffer_one", 2), ("buffer_all", CALLERS), ("cancel_other", 1)]
)
async def test_runs_asked_for_together_see_each_other(policy: str, pending: int) -> None:
    store, operations = await a_world(overlap=policy)
    runs: list[Run] = await together(*(operations.jobs.trigger_job("job") for _ in range(CALLERS)))
    assert len({run.id for run in runs}) == len({run.fire_at for run in runs}) == CALLERS
    stored = await store.get_runs([run.id for run in runs])
    assert sum(run is not None and run.state is State.PENDING for run in stored) == pending
    assert len((await store.list_runs(RunFilter(), None, 200)).items) == CALLERS


async def test_one_unique_key_makes_one_run() -> None:
    store, operations = await a_world(overlap="buffer_all")
    runs = await together(*(operations.jobs.trigger_job("job", key="same") for _ in range(9)))
    assert len({run.id for run in runs}) == 1
    assert len((await store.list_runs(RunFilter(), None, 200)).items) == 1


async def test_an_outage_is_answered_to_each_and_the_next_ones_are_carried_out() -> None:
    store, operations = await a_world()
    store.down = True
    answers = await together(*(operations.jobs.patch_job("job", {"priority": n}) for n in range(1, 9)))
    assert [type(answer).__name__ for answer in answers] == ["StoreUnavailable"] * 8
    store.down = False
    assert (await operations.jobs.patch_job("job", {"priority": 3})).priority == 3


async def test_a_caller_that_is_gone_hinders_no_other() -> None:
    _, operations = await a_world()
    calls = [asyncio.create_task(operations.jobs.patch_job("job", {"priority": n})) for n in range(1, 9)]
    await asyncio.sleep(0)
    calls[0].cancel()
    calls[5].cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    carried_out = [answer.priority for answer in answers if not isinstance(answer, BaseException)]
    assert carried_out == [2, 3, 4, 5, 7, 8]
    assert (await operations.jobs.get_job("job")).priority == 8
