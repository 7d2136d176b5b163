"""No script of the Redis store moves more than a call may, however much there is."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.model import HttpTarget, Plan, Run, RunChange, State
from horarium.stores.memory import MemoryStore
from horarium.stores.redis import RedisStore
from horarium.stores.redis.parts import CALL_BYTES_MAX
from horarium.stores.redis.server import Server
from horarium.stores.redis.store import PRUNED_AT_ONCE
from horarium.stores.redis.unfinished import RUNS_AT_ONCE
from horarium.testing.contract.base import take
from horarium.testing.values import NOW, a_finished_run, a_job, a_run
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
        await each.claim_runs([jobs[0].queue], 200, "w", NOW, NOW)
    calls = Calls(monkeypatch)
    asked = [*(job.id for job in jobs), "unknown"]
    assert await store.unfinished_runs(asked) == await model.unfinished_runs(asked)
    assert max(len(ids) for _, ids, _ in calls.answers["unfinished_runs"]) == RUNS_AT_ONCE
    assert [len(ids) for ids, _, _ in calls.answers["unfinished_page"]] == [RUNS_AT_ONCE, RUNS_AT_ONCE, 50]


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
