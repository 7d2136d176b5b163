"""No script of the Redis store moves more than a call may, however much there is."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import DAY
from horarium.model import Event, HandlerTarget, HttpTarget, Job, Plan, Run, RunChange, State
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.policies import Retention
from horarium.ports import JobFilter, RunFilter
from horarium.stores.batches import CALL_BYTES_MAX
from horarium.stores.memory import MemoryStore
from horarium.stores.redis import RedisStore
from horarium.stores.redis.server import Server
from horarium.stores.redis.store import PRUNED_AT_ONCE
from horarium.stores.redis.unfinished import RUNS_AT_ONCE
from horarium.testing.contract.base import take
from horarium.testing.values import NOW, a_change, a_finished_run, a_job, a_run
from tests.servers.redis import Redis

pytestmark = pytest.mark.slow


@pytest.fixture
async def store(redis: Redis) -> AsyncIterator[RedisStore]:
    store = RedisStore(redis.url, namespace=secrets.token_hex(8))
    await store.open()
    yield store
    await store.close()


class Calls:
    """The answers of the scripts that are called from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, list[Any]] = {}
        for kind in ("read", "write"):
            monkeypatch.setattr(Server, kind, self._noted(getattr(Server, kind)))

    def _noted(self, call: Any) -> Any:
        async def noted(server: Server, name: str, prefix: bytes, *arguments: Any) -> Any:
            answer = await call(server, name, prefix, *arguments)
            self.answers.setdefault(name, []).append(answer)
            return answer

        return noted


async def test_unfinished_runs_come_some_at_a_time(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MemoryStore()
    jobs = [a_job(f"job-{number}") for number in range(6)]
    sizes = (2, 2 * RUNS_AT_ONCE + 50, 0, RUNS_AT_ONCE, RUNS_AT_ONCE - 1, 1)
    for each in (store, model):
        await each.add_jobs(jobs)
        for job, size in zip(jobs, sizes, strict=True):
            await each.add_runs([a_run(number, of=job) for number in range(size)])
        await each.claim_runs([jobs[0].queue], 200, "w", NOW, NOW, NOW)
    calls = Calls(monkeypatch)
    asked = [*(job.id for job in jobs), "unknown"]
    assert await store.unfinished_runs(asked) == await model.unfinished_runs(asked)
    assert max(len(ids) for _, ids, _ in calls.answers["unfinished_runs"]) == RUNS_AT_ONCE
    assert [len(ids) for ids, _, _ in calls.answers["unfinished_page"]] == [RUNS_AT_ONCE, RUNS_AT_ONCE, 50]


@pytest.mark.parametrize("alike", [True, False])
async def test_runs_of_long_histories_end_some_at_a_time(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, alike: bool
) -> None:
    await store.add_runs([a_run(number) for number in range(100)])
    ends = [
        a_change(
            run,
            state=State.FAILED,
            finished_at=NOW,
            history=(Event(NOW + n * (not alike), run.state, "e" * 4_000),) * 40,
        )
        for n, run in enumerate((await take(store)).runs)
    ]
    calls = Calls(monkeypatch)
    assert await store.settle_runs([replace(end, as_claimed=True) for end in ends], NOW) == [True] * 100
    assert len(calls.answers["settle_runs"]) == 4
    assert await store.get_runs([end.run.id for end in ends]) == [end.run for end in ends]


async def test_a_plan_of_very_many_changes_is_carried_out(store: RedisStore) -> None:
    job = a_job()
    runs = [a_run(number, of=job) for number in range(9_000)]
    await store.add_jobs([job])
    for first in range(0, len(runs), 1_000):
        await store.add_runs(runs[first : first + 1_000])
    changes = [RunChange(replace(run, state=State.CANCELLED, finished_at=NOW), run.token, run.state) for run in runs]
    assert await store.commit_plans([Plan(job, changes=tuple(changes))], NOW) == [True]
    assert await store.unfinished_runs([job.id]) == {job.id: []}


async def _all_claimed(store: RedisStore, most: int) -> list[list[Run]]:
    """Claimed one batch after the other, as a dispatcher does that is told to come back at once."""
    batches: list[list[Run]] = []
    while True:
        claimed = await take(store, limit=most)
        if not claimed.runs:
            return batches
        assert claimed.next_due_at == NOW or claimed.next_due_at is None
        batches.append(list(claimed.runs))


async def test_a_claim_is_bounded_by_the_jobs_that_it_brings(store: RedisStore) -> None:
    target = HttpTarget(url="https://example.org", body="x" * 200_000)
    jobs = [a_job(f"job-{number}", target=target) for number in range(50)]
    await store.add_jobs(jobs)
    await store.add_runs([a_run(number, of=job) for number, job in enumerate(jobs)])
    batches = await _all_claimed(store, 50)
    most = CALL_BYTES_MAX // 200_000 + 1
    assert [len(batch) for batch in batches] == [most, most, 50 - 2 * most]
    assert len({run.id for batch in batches for run in batch}) == 50


async def test_a_claim_is_bounded_by_the_payloads_that_it_brings(store: RedisStore) -> None:
    await store.add_runs([a_run(number, payload=bytes(250_000)) for number in range(40)])
    batches = await _all_claimed(store, 1_000)
    most = CALL_BYTES_MAX // 250_000 + 1
    assert [len(batch) for batch in batches] == [most, most, 40 - 2 * most]


async def test_a_claim_of_runs_with_keys_brings_fewer(store: RedisStore) -> None:
    runs = [a_run(number, concurrency_key=str(number), concurrency_max=1) for number in range(300)]
    await store.add_runs(runs)
    batches = await _all_claimed(store, 1_000)
    assert [len(batch) for batch in batches] == [125, 125, 50]
    assert [run.id for batch in batches for run in batch] == [run.id for run in runs]


async def test_what_is_pruned_goes_some_at_a_time(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.add_runs([a_finished_run(number, prune_at=NOW) for number in range(2 * PRUNED_AT_ONCE + 30)])
    calls = Calls(monkeypatch)
    assert await store.prune_runs(NOW, PRUNED_AT_ONCE + 20) == PRUNED_AT_ONCE + 20
    assert await store.prune_runs(NOW, 1_000) == PRUNED_AT_ONCE + 10
    assert calls.answers["prune_runs"] == [PRUNED_AT_ONCE, 20, PRUNED_AT_ONCE, 10]


def _bytes_of(answer: Any) -> int:
    if isinstance(answer, list):
        return sum(map(_bytes_of, answer))
    return len(answer) if isinstance(answer, bytes) else 0


async def test_what_is_large_is_read_some_at_a_time(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large payloads, results and records are, no call answers with much more than it may."""
    model, job = MemoryStore(), a_job()
    payload = b'"' + b"x" * 200_000 + b'"'
    runs = [a_run(number, of=job, payload=payload) for number in range(60)]
    finished = [a_finished_run(100 + number, of=job, result=payload) for number in range(40)]
    records = [Record(name=f"large/{number:03}", body=payload) for number in range(60)]
    for each in (store, model):
        await each.add_jobs([job])
        for first in range(0, 60, 20):
            await each.add_runs([*runs[first : first + 20], *finished[first : first + 20]])
            await each.put_records([RecordChange(record) for record in records[first : first + 20]])
    calls = Calls(monkeypatch)
    ids = [run.id for run in (*runs, *finished)]
    names = [record.name for record in records]
    for where in (RunFilter(job=job.name), RunFilter(states=frozenset({State.PENDING}))):
        assert await store.list_runs(where, None, 80) == await model.list_runs(where, None, 80)
    assert await store.get_runs([*ids, "unknown"]) == await model.get_runs([*ids, "unknown"])
    assert await store.unfinished_runs([job.id]) == await model.unfinished_runs([job.id])
    since, until = NOW - DAY, NOW + DAY
    last = [await each.last_runs([job.name], since, until, 50) for each in (store, model)]
    assert last[0] == last[1]
    assert await store.get_records([*names, "unknown"]) == await model.get_records([*names, "unknown"])
    for descending in (False, True):
        within = RecordFilter("large/", descending=descending)
        assert await store.list_records(within, None, 50) == await model.list_records(within, None, 50)
    await store.claim_runs([job.queue], 30, "w", NOW, NOW, NOW)
    late = NOW + DAY
    found, ahead = await store.overdue_runs(late, 100, late)
    assert ([run.id for run in found], ahead) == (
        [run.id for run in (await store.get_runs(ids)) if run and run.lease_expires_at],
        None,
    )
    target = HandlerTarget("report", {"text": "x" * 200_000})
    large = [replace(a_job(f"large-{number:02}"), target=target, enabled=number % 2 > 0) for number in range(60)]
    for each in (store, model):
        await each.add_jobs(large)
    asked = [*(each.name for each in large), "unknown"]
    assert await store.get_jobs(asked) == await model.get_jobs(asked)
    of_ids = [*(each.id for each in large), "unknown"]
    assert await store.get_jobs_by_id(of_ids) == await model.get_jobs_by_id(of_ids)
    assert await store.list_jobs(JobFilter(), None, 50) == await model.list_jobs(JobFilter(), None, 50)
    disabled, after = list[Job](), None
    while len(disabled) < 30:
        page = await store.list_jobs(JobFilter(enabled=False), after, 50)
        disabled, after = [*disabled, *page.items], page.next_after
    assert disabled == large[::2]
    for name, answers in calls.answers.items():
        assert max(map(_bytes_of, answers)) < CALL_BYTES_MAX + 20 * len(payload), name
    assert len(calls.answers["get_runs"]) > 3


async def test_large_jobs_are_read_some_at_a_time(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that planners and sweeps ask for: what did not come along is asked for again, or the page ends."""
    model, target = MemoryStore(), HandlerTarget("report", {"text": "x" * 200_000})
    retention = Retention(runs_max=5)
    jobs = [
        replace(a_job(f"job-{number:02}"), target=target, retention=retention, next_fire_at=NOW + number // 3)
        for number in range(60)
    ]
    for each in (store, model):
        await each.add_jobs([replace(job, planned_until=NOW + 1) for job in jobs])
    calls = Calls(monkeypatch)
    for until, limit, after in ((NOW + 9, 100, None), (NOW + DAY, 50, None), (NOW + DAY, 100, NOW)):
        assert await store.due_jobs(until, limit, after) == await model.due_jobs(until, limit, after)
    for name in ("jobs_ahead", "jobs_trimmed"):
        asked = (NOW,) if name == "jobs_ahead" else ()
        assert await _pages(getattr(store, name), *asked) == await _pages(getattr(model, name), *asked)
    for name, answers in calls.answers.items():
        assert max(map(_bytes_of, answers)) < CALL_BYTES_MAX + 20 * 200_000, name


async def _pages(read: Any, *asked: Any) -> list[Job]:
    jobs, after = list[Job](), None
    while True:
        page = await read(*asked, after, 50)
        jobs, after = [*jobs, *page.items], page.next_after
        if after is None:
            return jobs


async def test_a_large_job_that_was_planned_meanwhile_is_beyond_what_is_due(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did not come along with the others, and is asked for as it is by then."""
    target = HandlerTarget("report", {"text": "x" * 200_000})
    jobs = [replace(a_job(f"job-{number:02}"), target=target, next_fire_at=NOW + number) for number in range(40)]
    await store.add_jobs(jobs)
    read = Server.read

    async def planned_before(server: Server, name: str, prefix: bytes, *arguments: Any) -> Any:
        if name == "get_jobs_by_id":
            monkeypatch.setattr(Server, "read", read)
            moved = [replace(jobs[38], next_fire_at=NOW + DAY), replace(jobs[39], deleted_at=NOW, next_fire_at=None)]
            await store.commit_plans([Plan(job) for job in moved], NOW)
        return await read(server, name, prefix, *arguments)

    monkeypatch.setattr(Server, "read", planned_before)
    assert await store.due_jobs(NOW + 100, 100) == (jobs[:38], NOW + DAY)
