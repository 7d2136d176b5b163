"""What grows with what is stored, and what does not: counted in steps of SQLite's machine, not in seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from horarium.clock import DAY, SECOND
from horarium.model import Job, Plan, Run, State
from horarium.ports import BATCH_MAX, JobFilter, RunFilter
from horarium.stores.lately import Lately
from horarium.stores.listing import SCAN_MAX
from horarium.stores.sqlite import SqliteStore, listing, session
from horarium.stores.sqlite.session import Session
from horarium.stores.walks import search_of
from horarium.testing.contract.base import take
from horarium.testing.values import NOW, a_finished_run, a_job, a_run
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

EVERY = 50
"""Steps of the machine between two looks at the count."""
FEW, MANY = 3_000, 12_000
"""Runs of history: as many again as a walk looks at must cost no more."""


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal")
    await store.open()
    yield store
    await store.close()


async def steps(store: SqliteStore, call: Callable[[], Awaitable[Any]]) -> int:
    """How many steps the call took, on whatever lane."""
    count = 0

    def step() -> bool:
        nonlocal count
        count += 1
        return False

    lanes = [lane for lane in vars(store).values() if hasattr(lane, "call")]
    for lane in lanes:
        await lane.call(lambda session: session.connection.set_progress_handler(step, EVERY))
    await call()
    for lane in lanes:
        await lane.call(lambda session: session.connection.set_progress_handler(None))
    return count * EVERY


async def add(store: SqliteStore, runs: Sequence[Run]) -> None:
    for start in range(0, len(runs), BATCH_MAX):
        await store.add_runs(runs[start : start + BATCH_MAX])


async def add_jobs(store: SqliteStore, jobs: Sequence[Job]) -> None:
    for start in range(0, len(jobs), BATCH_MAX):
        await store.add_jobs(jobs[start : start + BATCH_MAX])


# -- lists

OLD = NOW - 30 * DAY


def history(first: int, count: int) -> list[Run]:
    """A run each tenth of a second."""
    jobs = [a_job(f"job-{n}") for n in range(20)]
    return [a_finished_run(100 * n, of=jobs[n % 20], queue=f"q{n % 10}") for n in range(first, first + count)]


def rare() -> list[Run]:
    """Beneath all of history: a few of whatever a list may ask for."""
    job = a_job("rare")
    states = [State.PENDING, State.RUNNING, State.CANCELLING, State.FAILED, State.CANCELLED, State.SKIPPED]
    ended = [
        a_run(n - 60, of=(job, a_job("job-3"))[n % 2], state=state, queue=("rare", "q3")[n % 2], finished_at=NOW)
        for n, state in enumerate(states * 6)
    ]
    return [*ended, *(a_finished_run(n - 200, queue="rare") for n in range(5))]


def only(*states: State, **bounds: Any) -> RunFilter:
    return RunFilter(states=frozenset(states), **bounds)


FIRST_FIRE = a_run(0).fire_at
LISTS = {
    "all": RunFilter(),
    **{f"state={state}": only(state) for state in State},
    "state=failed,cancelled": only(State.FAILED, State.CANCELLED),
    "state=pending,running": only(State.PENDING, State.RUNNING),
    "queue=rare": RunFilter(queue="rare"),
    "queue=q3&state=failed": only(State.FAILED, queue="q3"),
    "queue=q3&state=running": only(State.RUNNING, queue="q3"),
    "queue=rare&state=pending": only(State.PENDING, queue="rare"),
    "job=rare": RunFilter(job="rare"),
    "job=job-3&state=failed": only(State.FAILED, job="job-3"),
    "job=job-3&state=pending": only(State.PENDING, job="job-3"),
    "until early": RunFilter(until=FIRST_FIRE),
    "since and until early": RunFilter(since=FIRST_FIRE - SECOND, until=FIRST_FIRE),
    "since&state=cancelled": only(State.CANCELLED, since=FIRST_FIRE),
    "until&state=running": only(State.RUNNING, until=FIRST_FIRE),
    "queue=q3&until": RunFilter(queue="q3", until=FIRST_FIRE),
    "job=job-3&until&state=skipped": only(State.SKIPPED, job="job-3", until=FIRST_FIRE),
}


async def costs(store: SqliteStore) -> dict[str, int]:
    return {name: await steps(store, partial(store.list_runs, where, None, 20)) for name, where in LISTS.items()}


@pytest.mark.slow
async def test_no_list_costs_more_as_history_grows(store: SqliteStore) -> None:
    await add(store, [*rare(), *history(0, FEW)])
    small = await costs(store)
    pages = {name: (await store.list_runs(where, None, 20)).items for name, where in LISTS.items()}
    await add(store, history(FEW, MANY))
    grown = await costs(store)
    assert {name: (small[name], count) for name, count in grown.items() if count > 1.3 * small[name] + 500} == {}
    for name, where in LISTS.items():
        if name not in ("all", "state=completed"):
            assert (await store.list_runs(where, None, 20)).items == pages[name], name


async def test_a_list_that_no_index_serves_looks_at_a_bounded_number_and_goes_on(store: SqliteStore) -> None:
    job = a_job("job-3")
    wanted = [a_finished_run(n - 50, of=job, queue="elsewhere") for n in range(3)]
    await add(store, [*wanted, *(a_finished_run(n, of=job) for n in range(MANY))])
    where = RunFilter(job="job-3", queue="elsewhere")
    pages = [await store.list_runs(where, None, 20)]
    while (after := pages[-1].next_after) is not None:
        pages.append(await store.list_runs(where, after, 20))
    assert pages[0].items == ()
    found = [run for page in pages for run in page.items]
    assert found == wanted[::-1]
    assert len(pages) == 1 + MANY // SCAN_MAX


async def test_a_list_that_takes_long_stops_no_planning(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, over = Event(), Event()

    def endless(*given: Any) -> Any:
        begun.set()
        over.wait(2 * PATIENCE)
        return search_of(*given)

    monkeypatch.setattr(listing, "search_of", endless)
    asked = asyncio.ensure_future(store.list_runs(RunFilter(), None, 1))
    try:
        async with asyncio.timeout(PATIENCE):
            while not begun.is_set():
                await asyncio.sleep(0)
            await store.due_jobs(NOW, 1)
            await store.overdue_runs(NOW, 1, NOW)
            await store.unfinished_runs(["job"])
            await store.get_runs([a_run(1).id])
    finally:
        over.set()
        await asked


# -- jobs


async def test_lists_and_counts_of_jobs_cost_what_they_give(store: SqliteStore) -> None:
    few = [a_job(f"a-{n}", labels={"env": "prod", "team": "rare"}, enabled=False) for n in range(3)]
    calls = {
        "disabled": lambda: store.list_jobs(JobFilter(enabled=False), None, 20),
        "two labels": lambda: store.list_jobs(JobFilter(labels={"env": "prod", "team": "rare"}), None, 20),
        "counted": lambda: store.stats(NOW),
        "ahead": lambda: store.jobs_ahead(NOW + DAY, None, 20),
        "trimmed": lambda: store.jobs_trimmed(None, 20),
    }
    await add_jobs(store, few)
    small = {name: await steps(store, call) for name, call in calls.items()}
    await add_jobs(store, [a_job(f"b-{n}", labels={"env": "prod"}) for n in range(2_000)])
    grown = {name: await steps(store, call) for name, call in calls.items()}
    grown["two labels"] -= 1_000 * 8  # as many as are counted to find the rarer one
    assert {name: (small[name], count) for name, count in grown.items() if count > 1.3 * small[name] + 500} == {}


async def test_jobs_are_counted_as_they_come_go_and_are_paused(store: SqliteStore, tmp_path: Path) -> None:
    jobs = [a_job(f"job-{n}", enabled=n % 2 == 0) for n in range(4)]
    await store.add_jobs(jobs)
    await store.add_jobs([jobs[0], a_job("gone", deleted_at=NOW)])
    stats = await store.stats(NOW)
    assert (stats.jobs, stats.jobs_enabled) == (4, 2)
    plans = [Plan(replace(jobs[0], enabled=False)), Plan(replace(jobs[1], deleted_at=NOW, enabled=True))]
    assert await store.commit_plans(plans, NOW) == [True, True]
    stats = await store.stats(NOW)
    assert (stats.jobs, stats.jobs_enabled) == (3, 1)
    await store.prune_runs(NOW, 10)
    stats = await store.stats(NOW)
    assert (stats.jobs, stats.jobs_enabled) == (3, 1)


# -- claims, pruning


async def waiting_cost(tmp_path: Path, number: int, kind: dict[str, Any]) -> int:
    store = SqliteStore(f"sqlite:///{tmp_path}/waiting-{number}.db?synchronous=normal")
    await store.open()
    job = a_job()
    await add(store, [a_run(n, of=job, **kind) for n in range(number)])
    assert len((await take(store, 1)).runs) == 1
    count = await steps(store, lambda: take(store, 10))
    assert (await take(store, 10)).runs == ()
    await store.close()
    return count


@pytest.mark.parametrize(
    "kind", [{"serial": True}, {"concurrency_key": "k", "concurrency_max": 1}], ids=["turn", "key"]
)
async def test_a_claim_does_not_look_at_each_run_that_is_held_back(tmp_path: Path, kind: dict[str, Any]) -> None:
    few, many = await waiting_cost(tmp_path, 500, kind), await waiting_cost(tmp_path, 5_000, kind)
    assert many <= 1.1 * few + 500, (few, many)


async def test_pruning_costs_what_it_forgets_though_all_may_go_at_one_instant(store: SqliteStore) -> None:
    await add(store, [a_finished_run(n, prune_at=NOW) for n in range(500)])
    few = await steps(store, lambda: store.prune_runs(NOW, 100))
    await add(store, [a_finished_run(n, prune_at=NOW) for n in range(1_000, 6_000)])
    many = await steps(store, lambda: store.prune_runs(NOW, 100))
    assert many <= 1.1 * few + 500, (few, many)


# -- names


class Unwalked(Lately[Any, Any]):
    """A memory that may be asked, never gone through."""

    def keys(self) -> Any:
        raise AssertionError("all that is remembered was gone through")

    __iter__ = keys


async def test_names_are_looked_up_without_going_through_all_that_are_known(store: SqliteStore) -> None:
    await store.add_jobs([a_job()])

    def guard(session: Session) -> None:
        for name, memory in vars(session).items():
            if isinstance(memory, Lately):
                unwalked = Unwalked(1_000)
                unwalked.learn(memory)
                setattr(session, name, unwalked)

    for lane in (store._writer, store._reader):
        await lane.call(guard)
    await add(store, [a_run(1, of=a_job()), a_run(2, queue="other")])
    claimed = (await take(store, queues=["http", "other"])).runs
    assert await store.get_runs([run.id for run in claimed]) == list(claimed)


async def test_what_a_session_remembers_is_bounded(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "NAMES_MAX", 10)
    monkeypatch.setattr(session, "OWNERS_MAX", 10)
    monkeypatch.setattr(session, "JOBS_BYTES_MAX", 10_000)
    for lane in (store._writer, store._reader):
        await lane.call(lambda session: session.forget())
    for n in range(50):
        job = a_job(f"job-{n}")
        await add(store, [a_run(n, of=job, queue=f"q{n}")])
        (run,) = (await take(store, queues=[f"q{n}"], worker=f"worker-{n}")).runs
        assert await store.get_runs([run.id]) == [run]
    for lane in (store._writer, store._reader):
        sizes = await lane.call(lambda session: [x.size for x in vars(session).values() if isinstance(x, Lately)])
        assert len(sizes) == 6
        assert 10 <= max(sizes) <= 24
