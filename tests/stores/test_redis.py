"""Redis and Valkey keep the contract."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis as Client

from horarium.model import Job, Run, RunChange, State
from horarium.ports import RunFilter, Store
from horarium.stores.encoding import kinds_of_end
from horarium.stores.memory import MemoryStore
from horarium.stores.redis import RedisStore
from horarium.testing.contract import StoreContract
from horarium.testing.contract.base import take
from horarium.testing.values import NOW, a_job, a_run, completed
from tests.servers.redis import Redis
from tests.stores import patience

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session", params=["valkey", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[Redis]:
    server = Redis(request.param)
    server.start()
    yield server
    server.stop()


@asynccontextmanager
async def full_memory(url: str) -> AsyncIterator[None]:
    async with Client.from_url(url, protocol=2) as client:
        await client.config_set("maxmemory", "1")
        try:
            yield
        finally:
            await client.config_set("maxmemory", "0")


@asynccontextmanager
async def demoted(url: str) -> AsyncIterator[None]:
    """A replica of a primary that is not there."""
    async with Client.from_url(url, protocol=2) as client:
        await client.replicaof("127.0.0.1", "1")
        try:
            yield
        finally:
            await client.replicaof("NO", "ONE")


@asynccontextmanager
async def cut_off(url: str) -> AsyncIterator[None]:
    """Every connection is closed by the server."""
    async with Client.from_url(url, protocol=2) as client:
        await client.client_kill_filter(_type="normal", skipme=True)
        yield


class TestRedisStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, server: Redis) -> None:
        self.url = server.url
        if server.name == "valkey":  # which answers as the other does
            self.machine_examples = 8

    async def open_store(self, namespace: str) -> Store:
        store = RedisStore(self.url + patience.REDIS, namespace=namespace)
        await store.open()
        return store

    def faults(self, store: Store) -> Sequence[AbstractAsyncContextManager[None]]:
        return full_memory(self.url), demoted(self.url), cut_off(self.url)


def a_random_run(random: Random, number: int, jobs: list[Job]) -> Run:
    return a_run(
        number,
        of=random.choice([None, *jobs]),
        queue=random.choice(["one", "two"]),
        serial=random.random() < 0.6,
        concurrency_key=random.choice([None, "a", "b"]),
        concurrency_max=random.randint(1, 3),
        priority=random.randint(0, 1),
        due_at=NOW - random.randint(0, 30),
        start_by=random.choice([None, None, NOW, NOW + 1]),
    )


def a_random_end(random: Random, run: Run) -> RunChange:
    """It is done, or tried again, sooner or later."""
    if random.random() < 0.7:
        return completed(run)
    due_at = NOW + random.choice([-10, 0, 10])
    again = replace(run, state=State.PENDING, due_at=due_at, lease_expires_at=None, start_by=None)
    return RunChange(again, run.token, run.state)


@pytest.mark.parametrize("seed", range(8))
async def test_what_is_held_back_is_claimed_as_the_memory_store_does(server: Redis, seed: int) -> None:
    """Many gates at once, claimed a few runs at a time, while runs are added, end, are tried again and cancelled."""
    random = Random(seed)
    jobs = [a_job(f"job-{number}") for number in range(8)]
    numbers = list(range(200))
    random.shuffle(numbers)
    runs = [a_random_run(random, number, jobs) for number in numbers]
    store, model = RedisStore(server.url, namespace=f"gates-{seed}-{secrets.token_hex(4)}"), MemoryStore()
    await store.open()
    held: list[Run] = []
    for step in range(60):
        new = runs[step * 10 : step * 10 + 10]
        assert await store.add_runs(new) == await model.add_runs(new)
        queues = random.choice([["one"], ["two"], ["one", "two"]])
        limit = random.randint(1, 6)
        now = NOW if step < 50 else NOW + 10
        claimed, expected = [await take(each, limit, now=now, queues=queues) for each in (store, model)]
        assert claimed.runs == expected.runs
        assert len(claimed.runs) == limit or claimed.next_due_at == expected.next_due_at
        held += claimed.runs
        random.shuffle(held)
        ended = [a_random_end(random, held.pop()) for _ in range(random.randint(0, len(held)))]
        called_off = [
            RunChange(replace(run, state=State.CANCELLED, finished_at=NOW), run.token, State.PENDING)
            for run in random.sample(new, len(new) // 5)
        ]
        assert await store.settle_runs([*ended, *called_off], NOW) == await model.settle_runs(
            [*ended, *called_off], NOW
        )
    await store.close()


@pytest.mark.parametrize("seed", range(6))
async def test_what_was_claimed_together_ends_alike_as_in_memory(server: Redis, seed: int) -> None:
    """Of many that end alike only what differs is read: with and without gates, however often they were claimed, and
    although some were lost, or come twice."""
    random = Random(seed)
    jobs = [a_job(f"job-{number}") for number in range(8)]
    store, model = RedisStore(server.url, namespace=f"alike-{seed}-{secrets.token_hex(4)}"), MemoryStore()
    await store.open()
    tokens = random.choice([0, 1, 126]), random.choice([0, 127, 128])
    runs = [_often_claimed(random, a_random_run(random, number, jobs), tokens) for number in range(300)]
    assert await store.add_runs(runs) == await model.add_runs(runs)
    ids = [run.id for run in runs]
    told_by_kind = 0
    for step in range(8):
        now = NOW + step
        queues = (["one"], ["two"], ["one", "two"])[(seed + step) % 3]
        claimed, expected = [await take(each, 80, now=now, queues=queues) for each in (store, model)]
        assert claimed.runs == expected.runs
        assert await store.get_runs(ids) == await model.get_runs(ids)
        first = [_meanwhile(random, run, now) for run in random.sample(claimed.runs, min(6, len(claimed.runs)))]
        assert await store.settle_runs(first, now) == await model.settle_runs(first, now)
        twice = step % 4 == 2
        changes = _alike(random, claimed.runs, now, twice=twice)
        told_by_kind += bool(not twice and changes and kinds_of_end(changes))
        assert await store.settle_runs(changes, now) == await model.settle_runs(changes, now)
        assert await store.get_runs(ids) == await model.get_runs(ids)
        assert await store.overdue_runs(now + 60_000_000, 200, now + 60_000_000) == await model.overdue_runs(
            now + 60_000_000, 200, now + 60_000_000
        )
        assert await store.stats(now) == await model.stats(now)
        for states in (frozenset({State.COMPLETED}), frozenset({State.FAILED}), frozenset({State.PENDING})):
            where = RunFilter(states=states)
            assert await store.list_runs(where, None, 200) == await model.list_runs(where, None, 200)
    assert told_by_kind
    waiting = [job.id for job in jobs]
    assert await store.unfinished_runs(waiting) == await model.unfinished_runs(waiting)
    assert await store.prune_runs(NOW + 4, 500) == await model.prune_runs(NOW + 4, 500)
    assert await store.get_runs(ids) == await model.get_runs(ids)
    await store.close()


def _often_claimed(random: Random, run: Run, tokens: Sequence[int]) -> Run:
    """Some were claimed so often that a number of theirs takes two bytes; of some a lease is cut short."""
    token = random.choice(tokens)
    if random.random() < 0.8:
        run = replace(run, queue="one", serial=False, concurrency_key=None, concurrency_max=0)
    attempt = min(token, 127) if token == tokens[0] else 0
    return replace(run, token=token, attempt=attempt, execution_seconds=random.choice([None, None, 0.5, 90.0]))


def _meanwhile(random: Random, run: Run, now: int) -> RunChange:
    """What may have happened to a claimed run before it is settled with the others."""
    happened: dict[str, Any] = random.choice(
        [
            {"lease_expires_at": now},
            {"lease_expires_at": now + 1},
            {"lease_expires_at": now + 1, "worker": "other"},
            {"state": State.CANCELLING},
            {"state": State.COMPLETED, "finished_at": now, "lease_expires_at": None},
            {"token": run.token + 1},
        ]
    )
    return RunChange(replace(run, **happened), run.token, run.state)


def _alike(random: Random, claimed: Sequence[Run], now: int, *, twice: bool) -> list[RunChange]:
    """All of them come to the same end; those that were claimed as often are of one kind. One may come twice."""
    state = random.choice([State.COMPLETED, State.COMPLETED, State.FAILED, State.PENDING])
    ended: dict[str, Any] = dict.fromkeys(("lease_expires_at", "start_by", "error", "progress"))
    ended["state"] = state
    if state is not State.PENDING:
        ended.update(finished_at=now, prune_at=random.choice([None, now]), error=random.choice([None, "no"]))
    ordered = sorted(claimed, key=lambda run: (run.token, run.attempt, run.started_at or 0))
    changes = [RunChange(replace(run, **ended), run.token, run.state, held=True, as_claimed=True) for run in ordered]
    for place in random.sample(range(len(changes)), min(1, len(changes))):
        lost = changes[place]
        changes[place] = replace(lost, token=lost.token + 1, run=replace(lost.run, token=lost.token + 1))
    if changes and twice:
        again = random.randrange(len(changes))
        changes.insert(again, changes[again])
    return changes


ODD: dict[str, dict[str, Any]] = {
    "under a key": {"concurrency_key": "k", "concurrency_max": 5},
    "lease": {"lease_seconds": 7.0},
    "limit": {"execution_seconds": 0.5},
    "tried before": {"token": 1, "attempt": 1},
    "given back before": {"token": 3},
    "too late": {"start_by": NOW - 1},
    "too late by a small number": {"start_by": 77},
    "in time": {"start_by": NOW + 50},
    "in order": {"serial": True},
    "unique": {"unique_key": "u"},
    "large": {"payload": b"x" * 1_500},
    "with a past": {"error": "no", "progress": b"1"},
    "fires at a small number": {"fire_at": 77},
    "due at a small number": {"due_at": 77},
    "due later": {"due_at": NOW + 7},
    "of another worker": {"worker": "other"},
}
"""What sets a run apart from many that are alike."""


def _of_few_kinds(random: Random, number: int, jobs: Sequence[Job | None], *, keys: bool) -> Run:
    """Alike but for its times and its payload, as most are; or with something odd about it. Where one has a key, all
    lanes are walked in another way."""
    group = number // 60
    payload = b"p" * random.randint(0, 40)
    run = a_run(number, of=jobs[group % len(jobs)], due_at=NOW - 10 + group // 2, payload=payload)
    if random.random() < 0.85:
        return run
    odds = list(ODD.values())
    odd = dict(odds[0] if keys and random.random() < 0.7 else random.choice(odds[1:]))
    if "unique_key" in odd:
        odd["unique_key"] = f"u{number}"
    if "fire_at" in odd:
        odd["fire_at"] = number
    return replace(run, **odd)


@pytest.mark.parametrize("seed", range(6))
async def test_runs_that_are_alike_are_claimed_and_end_as_in_memory(server: Redis, seed: int) -> None:
    """Of runs that are like the one before no value is looked at: none is taken for alike that is not, wherever the odd
    ones are, and whatever happened to a run between its claim and its end."""
    random = Random(seed)
    jobs = [None, a_job("one"), None, a_job("two"), a_job("three")]
    store, model = RedisStore(server.url, namespace=f"kinds-{seed}-{secrets.token_hex(4)}"), MemoryStore()
    await store.open()
    numbers = list(range(900))
    random.shuffle(numbers)
    runs = [_of_few_kinds(random, number, jobs, keys=seed == 0) for number in numbers]
    assert await store.add_runs(runs) == await model.add_runs(runs)
    ids = [run.id for run in runs]
    told_by_kind = 0
    for step, limit in enumerate((450, 130, 7, 900)):
        now = NOW + step
        asked: dict[str, Any] = {"now": now, "until": now + random.choice([0, 9])}
        claimed, expected = [await take(each, limit, **asked) for each in (store, model)]
        assert claimed.runs == expected.runs
        assert len(claimed.runs) == limit or claimed.next_due_at == expected.next_due_at
        happened = [_meanwhile(random, run, now) for run in random.sample(claimed.runs, len(claimed.runs) // 10)]
        assert await store.settle_runs(happened, now) == await model.settle_runs(happened, now)
        left = [run for run in claimed.runs if random.random() < 0.97]
        changes = _alike(random, left, now, twice=False)
        told_by_kind += bool(kinds_of_end(changes))
        assert await store.settle_runs(changes, now) == await model.settle_runs(changes, now)
        assert await store.get_runs(ids) == await model.get_runs(ids)
        assert await store.overdue_runs(now + 60_000_000, 900, now + 60_000_000) == await model.overdue_runs(
            now + 60_000_000, 900, now + 60_000_000
        )
        assert await store.stats(now) == await model.stats(now)
        ended = RunFilter(states=frozenset({State.FAILED}))
        assert await store.list_runs(ended, None, 200) == await model.list_runs(ended, None, 200)
    assert told_by_kind
    of_jobs = [job.id for job in jobs if job is not None]
    assert await store.unfinished_runs(of_jobs) == await model.unfinished_runs(of_jobs)
    assert await store.prune_runs(NOW + 4, 900) == await model.prune_runs(NOW + 4, 900)
    assert await store.get_runs(ids) == await model.get_runs(ids)
    await store.close()


async def test_expired_leases_are_looked_for_only_where_runs_are_claimed(server: Redis) -> None:
    namespace = secrets.token_hex(8)
    store = RedisStore(server.url, namespace=namespace)
    await store.open()
    runs = [a_run(n, queue=f"queue-{n:04}", lease_seconds=1.0) for n in range(300)]
    await store.add_runs(runs)
    for run in runs[::100]:
        await store.claim_runs([run.queue], 1, "w", NOW, NOW, NOW)
    late = NOW + 5_000_000

    async def overdue() -> set[str]:
        return {run.id for run in (await store.overdue_runs(late, 100, late))[0]}

    expected = {run.id for run in runs[::100]}
    async with Client.from_url(server.url, protocol=2, decode_responses=True) as client:
        before = (await client.info("commandstats"))["cmdstat_zrangebyscore"]["calls"]
        assert await overdue() == expected
        assert (await client.info("commandstats"))["cmdstat_zrangebyscore"]["calls"] - before <= 2 + 2 * len(expected)
        known = f"horarium:{{{namespace}}}:claimed_in"
        claimed = [run for run in await store.get_runs(sorted(expected)) if run is not None]
        await store.settle_runs([completed(run) for run in claimed], NOW)
        for _ in range(2):
            await store.prune_runs(NOW, 1)
        assert await client.exists(known) == 0
    await store.close()


async def test_queues_in_which_nothing_is_left_are_forgotten_some_at_a_time(server: Redis) -> None:
    namespace = secrets.token_hex(8)
    store = RedisStore(server.url, namespace=namespace)
    await store.open()
    runs = [a_run(n, queue=f"queue-{n:04}") for n in range(450)]
    await store.add_runs(runs)
    left = runs[::90]
    for run in runs:
        if run not in left:
            await store.claim_runs([run.queue], 1, "w", NOW, NOW, NOW)
    claimed = [run for run in await store.get_runs([run.id for run in runs]) if run is not None and run not in left]
    await store.settle_runs([completed(run) for run in claimed], NOW)
    async with Client.from_url(server.url, protocol=2, decode_responses=True) as client:
        queues = f"horarium:{{{namespace}}}:queues"
        for _ in range(3):
            await store.prune_runs(NOW, 1)
        assert await client.zrange(queues, 0, -1) == [run.queue for run in left]
        assert [one.queue for one in (await store.stats(NOW)).queues] == [run.queue for run in left]
        await store.add_runs([a_run(1_000, queue="queue-0001")])
        assert [run.queue for run in (await take(store, queues=["queue-0001"])).runs] == ["queue-0001"]
    await store.close()
