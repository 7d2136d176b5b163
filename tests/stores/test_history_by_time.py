"""History in coarse indexes: lists by queue, walked by tens of seconds, give the same as a walk of all runs; runs
that may be forgotten go minute by minute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import DAY, MINUTE, SECOND
from horarium.model import Cause, Run, State, uuid7
from horarium.node.backends import make_store
from horarium.ports import RunFilter, Store
from horarium.stores import walks
from horarium.stores.memory import MemoryStore
from horarium.stores.postgres import listing as postgres_listing
from horarium.stores.sqlite import listing as sqlite_listing
from horarium.testing.contract.base import ids, take
from horarium.testing.values import NOW, a_finished_run, a_job, a_run, completed
from tests.servers.postgres import Postgres
from tests.stores.postgres_server import new_database


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    server: Postgres = request.getfixturevalue("postgres_server")
    return new_database(server)


async def opened(url: str) -> Store:
    store = make_store(url)
    await store.open()
    return store


def unlike(first: int) -> list[Run]:
    """Runs that say nothing but what goes without saying, and each thing that does not."""
    job = a_job(f"job-{first}")
    at = a_run(first).fire_at
    plain = a_finished_run(first, of=job, due_at=at, created_at=at)
    others = {
        "due_at": NOW, "created_at": at - SECOND, "lease_seconds": 7.0, "token": 5, "attempt": 3, "priority": -1,
        "cause": Cause.MANUAL, "serial": True, "state": State.FAILED, "prune_at": NOW + DAY, "started_at": NOW,
        "worker": "w", "payload": b"1", "unique_key": f"u{first}", "concurrency_key": "k",
    }  # fmt: skip
    runs = [plain, replace(plain, id=a_run(first + 1, of=job).id, fire_at=at + 1000, attempt=2, token=2)]
    for number, (name, value) in enumerate(others.items(), 2):
        run = a_finished_run(first + number, of=job, due_at=at + 1000 * number, created_at=at + 1000 * number)
        runs.append(replace(run, **{name: value}))
    return runs


async def finished_by_claims(store: Store, first: int) -> list[Run]:
    """Runs that were claimed and settled: together, alone, and again."""
    at = a_run(first).fire_at
    assert all(await store.add_runs([a_run(first + n, due_at=at, created_at=at - n) for n in range(6)]))
    claimed = list((await take(store)).runs)
    changes = [completed(run) for run in claimed]
    assert await store.settle_runs(changes[:4], NOW) == [True] * 4
    assert await store.settle_runs(changes[4:5], NOW) == [True]
    failed = replace(completed(claimed[5]), run=replace(changes[5].run, state=State.FAILED, error="no"))
    assert await store.settle_runs([failed], NOW) == [True]
    amended = replace(failed, run=replace(failed.run, error="again"), state=State.FAILED)
    assert await store.settle_runs([amended], NOW) == [True]
    return [*(change.run for change in changes[:5]), amended.run]


async def test_runs_come_back_as_they_were(url: str) -> None:
    store = await opened(url)
    runs = [*unlike(0), *await finished_by_claims(store, 100)]
    await store.add_runs(runs)
    assert await store.get_runs(ids(runs)) == runs
    await store.close()


async def test_what_may_be_forgotten_goes_minute_by_minute(url: str) -> None:
    store = await opened(url)
    runs = [a_finished_run(n, prune_at=NOW - MINUTE * n) for n in range(150)]
    await store.add_runs(runs)
    assert await store.prune_runs(NOW - MINUTE, 120) == 120
    assert [run is None for run in await store.get_runs(ids(runs))] == [n >= 30 for n in range(150)]
    assert await store.prune_runs(NOW - MINUTE, 120) == 29
    await store.close()


STATES = (State.COMPLETED, State.COMPLETED, State.COMPLETED, State.FAILED, State.COMPLETED, State.PENDING)
FILTERS: dict[str, dict[str, Any]] = {
    "queue": {"queue": "a"},
    "completed of a queue": {"queue": "a", "states": frozenset({State.COMPLETED})},
    "two states": {"queue": "a", "states": frozenset({State.COMPLETED, State.FAILED})},
    "since": {"queue": "a", "since": a_run(7_000).fire_at},
    "until": {"queue": "b", "until": a_run(31_000).fire_at},
    "between": {"queue": "b", "since": a_run(3_000).fire_at, "until": a_run(31_000).fire_at},
    "completed": {"states": frozenset({State.COMPLETED})},
    "of a job": {"job": "job-1", "states": frozenset({State.COMPLETED})},
    "of a job in a queue": {"job": "job-1", "queue": "b"},
}


async def test_lists_give_all_there_is_page_by_page(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (walks, postgres_listing, sqlite_listing):
        monkeypatch.setattr(module, "SCAN_MAX", 12)
    store, oracle = await opened(url), MemoryStore()
    await oracle.open()
    jobs = [a_job(f"job-{n}") for n in range(2)]
    # Now and then, then more within ten seconds than a walk looks at, some of them within one millisecond.
    numbers = [*range(0, 60_000, 1_700), *range(20_000, 20_090), *range(41_000, 41_008)]
    runs = [
        a_finished_run(number, of=jobs[place % 2], queue="aab"[place % 3], state=STATES[place % 6])
        for place, number in enumerate(numbers)
    ]
    at = a_run(30_000).fire_at
    runs += [a_run(-n, id=uuid7(at, bytes([n] * 10)), fire_at=at, queue="a", state=State.COMPLETED) for n in range(30)]
    for one in (store, oracle):
        assert all(await one.add_runs(runs))
    for name, where in FILTERS.items():
        wanted = ids((await oracle.list_runs(RunFilter(**where), None, 500)).items)
        for limit in (1, 2, 5, 11, 40):
            assert await _all(store, RunFilter(**where), limit) == wanted, (name, limit)
    for one in (store, oracle):
        await one.close()


async def _all(store: Store, where: RunFilter, limit: int) -> list[str]:
    found: list[str] = []
    after: str | None = None
    for _ in range(2_000):
        page = await store.list_runs(where, after, limit)
        found += ids(page.items)
        if page.next_after is None:
            return found
        assert after is None or page.next_after < after
        after = page.next_after
    raise AssertionError("a list without an end")
