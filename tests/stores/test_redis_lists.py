"""Redis: sweeps and lists of jobs beside very many others, and in what code of the release before wrote."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import TypeVar

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis as Client

from horarium.clock import DAY
from horarium.model import Job, Plan, Run, State
from horarium.policies import Retention
from horarium.ports import JobFilter, Page, RunFilter, Store
from horarium.stores.memory import MemoryStore
from horarium.stores.redis import RedisStore, listing
from horarium.testing.values import NOW, a_job, a_run
from tests.servers.redis import Redis
from tests.stores.redis_server import opened, running

pytestmark = pytest.mark.slow

T = TypeVar("T")
TRIMS = Retention(runs_max=3)


class Namespace:
    """One that a store is opened on, and its keys as they are."""

    def __init__(self, server: Redis) -> None:
        self.name = secrets.token_hex(8)
        self.url = server.url

    def store(self) -> RedisStore:
        return RedisStore(self.url, namespace=self.name)

    def key(self, name: str) -> str:
        return f"horarium:{{{self.name}}}:{name}"

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with Client.from_url(self.url, protocol=2, decode_responses=True) as client:
            yield client

    async def calls(self) -> int:
        """How many scripts the server has carried out."""
        async with self.client() as client:
            return int((await client.info("commandstats"))["cmdstat_evalsha"]["calls"])


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    """Nothing else is asked of it: its calls are counted."""
    with running("redis") as server:
        yield server


async def without_new_commands(server: Redis) -> str:
    """The URL for a user who has no commands for many members at once: they are as unknown as to an old server."""
    async with Client.from_url(server.url, protocol=2) as client:
        commands = ["+@all", "-zmscore", "-smismember"]
        await client.execute_command("ACL", "SETUSER", "old", "on", "nopass", "~*", "&*", *commands)  # type: ignore[no-untyped-call]
    return server.url.replace("//", "//old:any@")


async def every(ask: Callable[[str | None], Awaitable[Page[T]]]) -> list[T]:
    """What is on all pages."""
    page = await ask(None)
    found = list(page.items)
    while page.next_after is not None:
        page = await ask(page.next_after)
        found += page.items
    return found


async def names(ask: Callable[[str | None], Awaitable[Page[Job]]]) -> list[str]:
    return [job.name for job in await every(ask)]


async def run_ids(ask: Callable[[str | None], Awaitable[Page[Run]]]) -> list[str]:
    return [run.id for run in await every(ask)]


async def ahead(store: Store, limit: int = 10) -> list[str]:
    return sorted(await names(lambda after: store.jobs_ahead(NOW, after, limit)))


async def trimmed(store: Store, limit: int = 10) -> list[str]:
    return await names(lambda after: store.jobs_trimmed(after, limit))


async def test_sweeps_ask_once_however_many_jobs_there_are(server: Redis) -> None:
    namespace = Namespace(server)
    async with opened(namespace.url, namespace.name) as store:
        await store.add_jobs([a_job(f"job-{n:04}", planned_until=NOW) for n in range(2_500)])
        await store.add_jobs([a_job("far", planned_until=NOW + DAY), a_job("few", retention=TRIMS)])
        before = await namespace.calls()
        assert (await ahead(store), await trimmed(store)) == (["far"], ["few"])
        assert await namespace.calls() - before == 2


async def test_a_job_that_is_forgotten_leaves_nothing_in_the_indexes_of_sweeps(server: Redis) -> None:
    namespace = Namespace(server)
    async with opened(namespace.url, namespace.name) as store, namespace.client() as client:
        job = a_job("far", planned_until=NOW + DAY, retention=TRIMS)
        await store.add_jobs([job])
        assert [await client.exists(key) for key in _index_keys(namespace)] == [1, 1]
        await store.commit_plans([Plan(replace(job, deleted_at=NOW))], NOW)
        assert [await client.exists(key) for key in _index_keys(namespace)] == [0, 0]
        assert (await ahead(store), await trimmed(store)) == ([], [])


def _index_keys(namespace: Namespace) -> list[str]:
    return [namespace.key("jobs_ahead"), namespace.key("jobs_trimmed")]


# ---- lists by any filter


def a_random_job(random: Random, number: int) -> Job:
    name = "".join(random.choice("aBz-é\U0001f600") for _ in range(4)) + str(number)
    labels = {key: random.choice("xy") for key in ("one", "two", "three") if random.random() < 0.7}
    enabled, finished = random.random() < 0.6, random.random() < 0.2
    return a_job(name, labels=labels, enabled=enabled, finished_at=NOW if finished else None)


def a_random_filter(random: Random) -> JobFilter:
    return JobFilter(
        labels={key: random.choice("xy") for key in ("one", "two", "three") if random.random() < 0.3},
        enabled=random.choice([None, True, False]),
        finished=random.choice([None, None, True, False]),
        name_prefix=random.choice([None, None, "a", "B", "é"]),
    )


@pytest.mark.parametrize("seed", [0, 20, 10_000])
@pytest.mark.parametrize("old", [False, True])
async def test_pages_of_jobs_by_any_filter_join_to_what_the_memory_store_has(
    server: Redis, monkeypatch: pytest.MonkeyPatch, old: bool, seed: int
) -> None:
    """By the names of all that are disabled, by the rarest label, by all names, as far as a page looks."""
    monkeypatch.setattr(listing, "SCAN_STRETCH", 7)
    monkeypatch.setattr(listing, "JOBS_LOOKED_AT", 20)
    random, model = Random(seed), MemoryStore()
    url = await without_new_commands(server) if old else server.url
    async with opened(url, secrets.token_hex(8)) as store:
        jobs = [a_random_job(random, number) for number in range(120)]
        for each in (store, model):
            await each.add_jobs(jobs)
        for _ in range(40):
            where, limit = a_random_filter(random), random.choice([1, 3, 50])
            found = await names(lambda after: store.list_jobs(where, after, limit))  # noqa: B023
            assert found == await names(lambda after: model.list_jobs(where, after, limit)), where  # noqa: B023


def a_random_listed_run(random: Random, number: int, jobs: list[Job]) -> Run:
    run = a_run(number, of=random.choice([None, *jobs]), queue=random.choice("qr"))
    state = random.choice([*State, State.COMPLETED, State.FAILED])
    return replace(run, state=state, concurrency_key=random.choice([None, "k"]), concurrency_max=1)


def a_random_run_filter(random: Random) -> RunFilter:
    return RunFilter(
        job=random.choice([None, None, "one", "two"]),
        states=frozenset(random.sample(list(State), random.choice([0, 1, 1, 2, 3]))),
        queue=random.choice([None, "q", "r", "s"]),
        since=random.choice([None, a_run(60).fire_at]),
        until=random.choice([None, a_run(200).fire_at]),
    )


async def test_many_disabled_jobs_are_walked_by_their_names(server: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "SCAN_STRETCH", 50)
    namespace, paused = Namespace(server), JobFilter(enabled=False)
    async with opened(namespace.url, namespace.name) as store, namespace.client() as client:
        jobs = [a_job(f"job-{n:04}", enabled=n % 20 != 0) for n in range(1_000)]
        await store.add_jobs(jobs)
        before = await namespace.calls()
        page = await store.list_jobs(paused, None, 49)
        assert await namespace.calls() - before == 1
        assert [job.name for job in page.items] == [f"job-{n:04}" for n in range(0, 980, 20)]
        await store.commit_plans([Plan(replace(jobs[7], enabled=False)), Plan(replace(jobs[40], enabled=True))], NOW)
        left = sorted({"job-0007", *(job.name for job in jobs[::20])} - {"job-0040"})
        assert await client.zrange(namespace.key("disabled_named"), 0, -1) == left
        assert await names(lambda after: store.list_jobs(paused, after, 50)) == left


@pytest.mark.parametrize("old", [False, True])
async def test_pages_of_runs_by_any_filter_join_to_what_the_memory_store_has(
    server: Redis, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    monkeypatch.setattr("horarium.stores.redis.store.SCAN_STRETCH", 30)
    monkeypatch.setattr("horarium.stores.redis.store.LOOKS_MAX", 60)
    random, model = Random(7), MemoryStore()
    jobs = [a_job("one"), a_job("two"), a_job("two", id="successor-of-two")]
    url = await without_new_commands(server) if old else server.url
    async with opened(url, secrets.token_hex(8)) as store:
        runs = [a_random_listed_run(random, number, jobs) for number in range(300)]
        assert await store.add_runs(runs) == await model.add_runs(runs)
        for _ in range(80):
            where, limit = a_random_run_filter(random), random.choice([2, 5, 50])
            found = await run_ids(lambda after: store.list_runs(where, after, limit))  # noqa: B023
            assert found == await run_ids(lambda after: model.list_runs(where, after, limit)), where  # noqa: B023


async def test_a_page_of_labels_that_never_meet_looks_at_a_bounded_number(
    server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "SCAN_STRETCH", 100)
    monkeypatch.setattr(listing, "JOBS_LOOKED_AT", 300)
    namespace = Namespace(server)
    where = JobFilter(labels={"one": "a", "two": "a"})
    async with opened(namespace.url, namespace.name) as store:
        sides = {True: {"one": "a", "two": "b"}, False: {"one": "b", "two": "a"}}
        await store.add_jobs([a_job(f"job-{n:04}", labels=sides[n % 2 == 0]) for n in range(2_000)])
        before = await namespace.calls()
        page = await store.list_jobs(where, None, 50)
        assert await namespace.calls() - before == 4
        assert page.items == ()
        assert page.next_after is not None
        assert await names(lambda after: store.list_jobs(where, after, 50)) == []
