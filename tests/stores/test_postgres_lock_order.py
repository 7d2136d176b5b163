"""Every call takes runs in the order of their ids: two that want the same wait for one another, never in a circle, of
which the server would end one after a second."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest
from msgspec.structs import replace

from horarium.model import Job, Plan, Run, RunChange, State
from horarium.ports import Beat
from horarium.stores.encoding import encode_id
from horarium.stores.postgres import PostgresStore, pool
from horarium.stores.postgres.connect import is_rolled_back
from horarium.stores.postgres.jobs import add_jobs
from horarium.stores.postgres.session import Memory, Session
from horarium.testing.contract.base import ids, take
from horarium.testing.values import NOW, a_change, a_finished_run, a_job, a_run, completed
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

Call = Callable[[PostgresStore], Awaitable[Any]]


@pytest.fixture
def rolled_back(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """What the server rolled back in favour of another."""
    found: list[BaseException] = []

    def noted(error: BaseException) -> bool:
        if is_rolled_back(error):
            found.append(error)
        return is_rolled_back(error)

    monkeypatch.setattr(pool, "is_rolled_back", noted)
    return found


async def cross(store: PostgresStore, other: asyncpg.Connection, url: str, low: Run, first: Call, second: Call) -> None:
    """`first` comes to wait for the lowest run, then `second` too; what else `second` has taken by then, `first` wants
    next."""
    watcher = await asyncpg.connect(url)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

    async def wait(number: int) -> None:
        async def come() -> bool:
            return bool(await watcher.fetchval(waiting) >= number)

        await until(come)

    async with other.transaction():
        await other.execute("SELECT FROM horarium.runs WHERE id = $1 FOR UPDATE", encode_id(low.id))
        calls = []
        for number, call in enumerate((first, second), 1):
            calls.append(asyncio.ensure_future(call(store)))
            await wait(number)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*calls)
    await watcher.close()


def given_back(run: Run) -> RunChange:
    return a_change(run, state=State.PENDING, worker=None, lease_expires_at=None, started_at=None)


async def test_ends_of_several_kinds_and_a_heartbeat(
    store: PostgresStore, other: asyncpg.Connection, fresh_postgres_url: str, rolled_back: list[BaseException]
) -> None:
    await store.add_runs([a_run(1), a_run(2)])
    low, high = (await take(store)).runs
    beats = [Beat(run.id, run.token) for run in (low, high)]
    await cross(
        store, other, fresh_postgres_url, low,
        lambda store: store.heartbeat_runs(beats, NOW),
        lambda store: store.settle_runs([given_back(high), completed(low)], NOW),
    )  # fmt: skip
    assert rolled_back == []
    assert ids((await take(store)).runs) == [high.id]


async def test_a_claim_behind_gates_and_an_edit_of_many(
    store: PostgresStore, other: asyncpg.Connection, fresh_postgres_url: str, rolled_back: list[BaseException]
) -> None:
    gate: dict[str, Any] = {"concurrency_key": "k", "concurrency_max": 2}
    low, high = a_run(1, due_at=NOW, **gate), a_run(2, due_at=NOW - 10, **gate)
    await store.add_runs([low, high])
    await cross(
        store, other, fresh_postgres_url, low,
        lambda store: store.settle_runs([a_change(run, start_by=NOW + 10) for run in (low, high)], NOW),
        take,
    )  # fmt: skip
    assert rolled_back == []
    assert {run.state for run in await store.get_runs(ids([low, high])) if run} == {State.RUNNING}


async def test_plans_of_several_jobs_and_an_edit_of_many(
    store: PostgresStore, other: asyncpg.Connection, fresh_postgres_url: str, rolled_back: list[BaseException]
) -> None:
    jobs = [a_job("a"), a_job("b")]
    await store.add_jobs(jobs)
    low, high = a_run(1, of=jobs[1]), a_run(2, of=jobs[0])
    await store.add_runs([low, high])
    plans = [
        Plan(job=job, changes=(a_change(run, start_by=NOW + 20),)) for job, run in zip(jobs, (high, low), strict=True)
    ]
    await cross(
        store, other, fresh_postgres_url, low,
        lambda store: store.settle_runs([a_change(run, start_by=NOW + 10) for run in (low, high)], NOW),
        lambda store: store.commit_plans(plans, NOW),
    )  # fmt: skip
    assert rolled_back == []
    assert {run.start_by for run in await store.get_runs(ids([low, high])) if run} == {NOW + 20}


async def circle(
    store: PostgresStore, other: asyncpg.Connection, url: str, hold: Callable[[], Awaitable[Any]], calls: list[Call]
) -> list[Any]:
    """What each call answers. All come to wait for what `hold` holds in a transaction that gives up, or for one that
    does, but for those that end without."""
    watcher = await asyncpg.connect(url)
    asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    transaction = other.transaction()
    await transaction.start()
    await hold()
    tasks: list[asyncio.Future[Any]] = []
    for call in calls:
        tasks.append(asyncio.ensure_future(call(store)))

        async def settled() -> bool:
            return bool(await watcher.fetchval(asked) + sum(task.done() for task in tasks) >= len(tasks))

        await until(settled)
    await transaction.rollback()
    async with asyncio.timeout(PATIENCE):
        answers = await asyncio.gather(*tasks)
    await watcher.close()
    return list(answers)


async def test_those_who_add_the_same_keys(
    store: PostgresStore, other: asyncpg.Connection, fresh_postgres_url: str, rolled_back: list[BaseException]
) -> None:
    await store.add_runs([a_run(30)])  # so that the queue is known
    keyed = [a_run(number, unique_key=f"key-{number}") for number in range(3)]
    same = [a_run(10 - number, unique_key=f"key-{number}") for number in range(3)]
    answers = await circle(
        store, other, fresh_postgres_url,
        lambda: store.add_runs_in(other, [a_run(20, unique_key="key-1")]),
        [lambda store: store.add_runs(keyed), lambda store: store.add_runs(same[::-1])],
    )  # fmt: skip
    assert rolled_back == []
    assert answers == [[True] * 3, [False] * 3]


async def test_those_who_add_the_same_ids(
    store: PostgresStore, other: asyncpg.Connection, fresh_postgres_url: str, rolled_back: list[BaseException]
) -> None:
    await store.add_runs([a_run(30)])
    runs = [a_run(number) for number in range(3)]
    answers = await circle(
        store, other, fresh_postgres_url,
        lambda: store.add_runs_in(other, [runs[1]]),
        [lambda store: store.add_runs(runs), lambda store: store.add_runs(runs[::-1])],
    )  # fmt: skip
    assert rolled_back == []
    assert answers == [[True] * 3, [False] * 3]


async def test_a_callers_own_transaction_adds_in_the_same_order(
    store: PostgresStore, other: asyncpg.Connection, fresh_postgres_url: str, rolled_back: list[BaseException]
) -> None:
    await store.add_runs([a_run(30)])
    keyed = [a_run(number, unique_key=f"key-{number}") for number in range(3)]
    own = await asyncpg.connect(fresh_postgres_url)
    answers = await circle(
        store, other, fresh_postgres_url,
        lambda: store.add_runs_in(other, [a_run(20, unique_key="key-1")]),
        [lambda store: store.add_runs(keyed), lambda store: store.add_runs_in(own, keyed[::-1])],
    )  # fmt: skip
    await own.close()
    assert rolled_back == []
    assert answers == [[True] * 3, [False] * 3]


async def test_those_who_add_jobs_of_the_same_names(
    store: PostgresStore, other: asyncpg.Connection, fresh_postgres_url: str, rolled_back: list[BaseException]
) -> None:
    def jobs(tag: str) -> list[Job]:
        return [replace(a_job(f"{tag}-{name}"), name=name) for name in "abc"]

    def add_in(connection: asyncpg.Connection) -> Awaitable[Any]:
        session = Session(connection, store._namespace_id, Memory())
        return add_jobs(session, [jobs("held")[1]], {})

    answers = await circle(
        store, other, fresh_postgres_url,
        lambda: add_in(other),
        [lambda store: store.add_jobs(jobs("one")), lambda store: store.add_jobs(jobs("two")[::-1])],
    )  # fmt: skip
    assert rolled_back == []
    assert answers == [[True] * 3, [False] * 3]


async def test_plans_of_the_same_jobs_that_change_runs(
    store: PostgresStore, other: asyncpg.Connection, fresh_postgres_url: str, rolled_back: list[BaseException]
) -> None:
    jobs = [a_job(name) for name in "abc"]
    await store.add_jobs(jobs)
    runs = [[a_run(10 * place + number, of=job) for number, job in enumerate(jobs)] for place in range(2)]
    await store.add_runs([run for of_jobs in runs for run in of_jobs])
    plans = [
        [Plan(job=job, changes=(a_change(run, start_by=NOW + 10),)) for job, run in zip(jobs, of_jobs, strict=True)]
        for of_jobs in runs
    ]
    middle = sorted(job.id for job in jobs)[1]
    given = sorted(range(3), key=lambda place: jobs[place].id)
    answers = await circle(
        store, other, fresh_postgres_url,
        lambda: other.execute("SELECT FROM horarium.jobs WHERE id = $1 FOR UPDATE", middle),
        [
            lambda store: store.commit_plans([plans[0][place] for place in given], NOW),
            lambda store: store.commit_plans([plans[1][place] for place in given[::-1]], NOW),
        ],
    )  # fmt: skip
    assert rolled_back == []
    assert answers == [[True] * 3, [False] * 3]


async def test_what_is_amended_and_trimmed(
    store: PostgresStore, other: asyncpg.Connection, fresh_postgres_url: str, rolled_back: list[BaseException]
) -> None:
    """The places of what is trimmed are in another order than the ids. What is being amended goes the next time."""
    job = a_job()
    await store.add_jobs([job])
    low, middle, high = (a_finished_run(number, of=job) for number in range(3))
    for run in (high, middle, low):
        await store.add_runs([run])
    answers = await circle(
        store, other, fresh_postgres_url,
        lambda: other.execute("SELECT FROM horarium.finished WHERE id = $1 FOR UPDATE", encode_id(middle.id)),
        [
            lambda store: store.settle_runs([a_change(run, error="late") for run in (low, middle, high)], NOW),
            lambda store: store.trim_runs(job.id, 0, 9),
        ],
    )  # fmt: skip
    assert rolled_back == []
    assert answers[1] + await store.trim_runs(job.id, 0, 9) == 3
    assert await store.get_runs(ids([low, middle, high])) == [None] * 3


@pytest.mark.proof
async def test_many_of_all_kinds_at_once(
    store: PostgresStore, fresh_postgres_url: str, rolled_back: list[BaseException]
) -> None:
    """Claims, ends, put-backs, heartbeats, edits and plans of the same few runs, from four stores, for a while."""
    jobs = [a_job(f"job-{n}") for n in range(4)]
    await store.add_jobs(jobs)
    gate: dict[str, Any] = {"concurrency_key": "k", "concurrency_max": 8}
    dice = random.Random(7)
    stores = [PostgresStore(fresh_postgres_url) for _ in range(4)]
    numbers = iter(range(10**6))

    async def work(node: PostgresStore) -> None:
        for _ in range(150):
            more = [(next(numbers), dice.choice(jobs), dice.random() < 0.5) for _ in range(6)]
            await node.add_runs(
                [a_run(n, of=job, due_at=NOW - dice.randrange(99), **(gate if shut else {})) for n, job, shut in more]
            )
            runs = list((await node.claim_runs(["pull/q"], 20, "w", NOW, NOW, NOW)).runs)
            waiting = (await node.unfinished_runs([job.id for job in jobs])).values()
            seen = [run for of_job in waiting for run in of_job]
            dice.shuffle(seen)
            dice.shuffle(runs)
            ends = [given_back(run) if dice.random() < 0.3 else completed(run) for run in runs]
            now = [job for job in await node.get_jobs([job.name for job in jobs]) if job is not None]
            plans = [
                Plan(
                    job=job, changes=tuple(a_change(run, start_by=NOW + 99) for run in seen if run.job_id == job.id)[:3]
                )
                for job in now
            ]
            await asyncio.gather(
                node.settle_runs(ends, NOW),
                node.heartbeat_runs([Beat(run.id, run.token) for run in seen], NOW),
                node.settle_runs([a_change(run, start_by=NOW + 99) for run in seen[:9]], NOW),
                node.commit_plans(plans, NOW),
            )

    for node in stores:
        await node.open()
    await asyncio.gather(*map(work, stores))
    for node in stores:
        await node.close()
    assert rolled_back == []


async def test_of_two_that_can_not_both_be_the_first_one_given_is_added(store: PostgresStore) -> None:
    """Though what is added together is inserted in another order than it is given in."""
    job = a_job()
    keyed = replace(a_run(1, of=job), id=a_run(9).id, unique_key="z")
    assert await store.add_runs([keyed, a_run(1, of=job)]) == [True, False]
    later = [replace(a_run(2, of=job), id=a_run(20 + n).id, unique_key=f"key-{9 - n}") for n in range(2)]
    assert await store.add_runs([*later, a_run(3, unique_key="key-9")]) == [True, False, False]
    assert await store.add_jobs([replace(a_job("b"), name="same"), replace(a_job("a"), name="same")]) == [True, False]
