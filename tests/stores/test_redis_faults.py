"""What a Redis goes through, and the store through it: flushed scripts, crashes, hangs, bad settings, replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis as Client
from redis.exceptions import ResponseError

from horarium import Scheduler
from horarium.clock import DAY, SECOND
from horarium.delivery.context import RunContext
from horarium.errors import InvalidSetting, StoreUnavailable
from horarium.model import PAYLOAD_BYTES_MAX, RESULT_BYTES_MAX, Plan, QueueTarget, State
from horarium.ports import Beat, Store
from horarium.stores.batches import CALL_BYTES_MAX
from horarium.stores.redis import RedisStore
from horarium.stores.redis.location import parse_url
from horarium.stores.redis.server import Server
from horarium.stores.redis.store import LAYOUT
from horarium.testing.contract.base import ids, run_of, take, take_one
from horarium.testing.values import NOW, a_change, a_job, a_run, completed
from tests.servers.proxy import Proxy
from tests.servers.redis import Redis
from tests.stores.redis_server import hasty, open_and_close, opened, running, until_answered
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["valkey", "redis"])
def durable(request: pytest.FixtureRequest) -> Iterator[Redis]:
    with running(request.param, appendfsync="always", repl_diskless_sync_delay="0") as server:
        yield server


# ---- what the server forgets ------------------------------------------------------------------------------------


async def test_flushed_scripts_are_sent_again(durable: Redis) -> None:
    async with opened(durable.url, "flush") as store, Client.from_url(durable.url, protocol=2) as client:
        for number in range(3):
            await client.script_flush()
            claimed = await take_one(store, a_run(number))
            await client.script_flush()
            assert await store.settle_runs([completed(claimed)], NOW) == [True]


async def test_nothing_that_was_answered_is_lost_when_the_server_is_killed(durable: Redis) -> None:
    added: list[str] = []
    settled: list[str] = []
    enough = asyncio.Event()

    async def add(store: Store) -> None:
        for number in range(0, 100_000, 10):
            runs = [a_run(n, concurrency_key="k", concurrency_max=1_000_000) for n in range(number, number + 10)]
            assert all(await store.add_runs(runs))
            added.extend(ids(runs))
            if number >= 2_000:
                enough.set()

    async def work(store: Store) -> None:
        while True:
            runs = (await take(store, 7)).runs
            assert all(await store.settle_runs([completed(run) for run in runs], NOW))
            settled.extend(ids(runs))

    async with opened(durable.url, "kill") as store:
        tasks = [asyncio.create_task(add(store)), asyncio.create_task(work(store))]
        await enough.wait()
        durable.kill()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 2
        durable.start()
        await until_answered(store.check)
        found = await store.get_runs(added)
        assert None not in found
        states = {run.id: run.state for run in found if run is not None}
        assert len(settled) > 100
        assert {states[run_id] for run_id in settled} == {State.COMPLETED}
        stats = (await store.stats(NOW)).queues
        assert sum(queue.due + queue.running for queue in stats) >= len(added) - len(settled) - 7


async def test_synced_every_second_a_killed_server_forgets_the_last_writes_at_the_most() -> None:
    """What is in its log when it is killed is a beginning of what was answered: nothing is missing in between."""
    added: list[str] = []
    enough = asyncio.Event()

    async def add(store: Store) -> None:
        for number in range(1_000_000):
            assert await store.add_runs([a_run(number)]) == [True]
            added.append(a_run(number).id)
            if number == 500:
                enough.set()

    with running(appendfsync="everysec") as server:
        async with opened(server.url) as store:
            task = asyncio.create_task(add(store))
            await enough.wait()
            server.kill()
            assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], StoreUnavailable)
            server.start()
            await until_answered(store.check)
            found = [run is not None for run in await store.get_runs(added)]
            assert found == sorted(found, reverse=True)
            claimed = (await take(store)).runs
            assert ids(claimed)[: sum(found)] == added[: sum(found)]


async def test_a_server_that_pauses_its_clients_is_unavailable_until_it_goes_on(durable: Redis) -> None:
    async with (
        opened(durable.url, "paused") as store,
        hasty(durable.url, "paused") as hurried,
        Client.from_url(durable.url, protocol=2) as client,
    ):
        await store.add_runs([a_run(1)])
        await client.client_pause(60_000, all=False)
        try:
            with pytest.raises(StoreUnavailable, match=r"no answer within 0\.2 s"):
                await hurried.add_runs([a_run(2)])
        finally:
            await client.client_unpause()
        await until_answered(hurried.check)
        # What was given up was sent all the same, and is carried out when the server goes on: so it may be repeated.
        await store.add_runs([a_run(2)])
        assert ids((await take(store)).runs) == ids([a_run(1), a_run(2)])


async def test_a_server_that_hangs_is_unavailable_until_it_goes_on(durable: Redis) -> None:
    async with opened(durable.url, "hang") as store, hasty(durable.url, "hang") as hurried:
        claimed = await take_one(store, a_run(1))
        durable.pause()
        try:
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match=r"no answer within 0\.2 s"):
                    await hurried.heartbeat_runs([Beat(claimed.id, 1)], NOW + SECOND)
        finally:
            durable.resume()
        await until_answered(lambda: hurried.heartbeat_runs([Beat(claimed.id, 1)], NOW + SECOND))
        assert await store.settle_runs([completed(claimed, held=True)], NOW) == [True]
        assert await run_of(store, claimed) == replace(completed(claimed).run)


async def test_connections_that_a_network_forgot_cost_one_call_and_not_one_each(durable: Redis) -> None:
    with Proxy(durable.port) as proxy:
        async with opened(f"redis://127.0.0.1:{proxy.port}/0?timeout=3", "forgotten") as store:
            await asyncio.gather(*(store.check() for _ in range(8)))
            proxy.swallow()
            with pytest.raises(StoreUnavailable, match="no answer within 3 s"):
                await store.check()
            proxy.heal()
            await asyncio.gather(*(store.check() for _ in range(8)))


async def test_a_connection_that_uvloop_finds_closed_is_an_outage() -> None:
    async def closed() -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    with pytest.raises(StoreUnavailable, match="closed the connection"):
        await Server(parse_url("redis://127.0.0.1:1/0"))._translated(closed())


async def test_many_callers_of_a_server_that_hangs_all_hear_of_it(durable: Redis) -> None:
    async with opened(durable.url, "hang-many") as store, hasty(durable.url, "hang-many") as hurried:
        durable.pause()
        try:
            calls = (hurried.add_runs([a_run(number)]) for number in range(30))
            answers = await asyncio.gather(*calls, return_exceptions=True)
        finally:
            durable.resume()
        assert {type(answer) for answer in answers} == {StoreUnavailable}
        await until_answered(hurried.check)
        await store.add_runs([a_run(number) for number in range(30)])
        assert len((await take(store)).runs) == 30


async def test_a_server_that_is_not_there_is_named() -> None:
    store = RedisStore("redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1/0 is not reachable"):
        await store.open()


async def test_large_payloads_are_moved_a_few_at_a_time(durable: Redis) -> None:
    """No call holds the server up for long, and none is too large to be answered in time."""
    payload = b'"' + b"x" * (PAYLOAD_BYTES_MAX - 2) + b'"'
    runs = [a_run(number, payload=payload) for number in range(50)]
    async with opened(durable.url, "large") as store:
        assert await store.add_runs(runs) == [True] * 50
        left = ids(runs)
        while left:
            claimed = await take(store)
            assert 1 <= len(claimed.runs) <= CALL_BYTES_MAX // PAYLOAD_BYTES_MAX
            assert ids(claimed.runs) == left[: len(claimed.runs)]
            left = left[len(claimed.runs) :]
            assert not left or claimed.next_due_at == NOW
            done = [
                replace(completed(run), run=replace(completed(run).run, result=payload[:1000])) for run in claimed.runs
            ]
            assert all(await store.settle_runs(done, NOW))
        assert [run and run.payload for run in await store.get_runs(ids(runs))] == [payload] * 50


async def test_large_jobs_and_progress_are_written_a_few_at_a_time(
    durable: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    write = RedisStore._write

    async def weighed(self: RedisStore, name: str, *values: Any) -> Any:
        sizes.append(sum(len(value) for value in values if isinstance(value, bytes)))
        return await write(self, name, *values)

    monkeypatch.setattr(RedisStore, "_write", weighed)
    large = b'"' + b"x" * (PAYLOAD_BYTES_MAX - 2) + b'"'
    jobs = [a_job(f"job-{number}", target=QueueTarget("q", "x" * (PAYLOAD_BYTES_MAX - 2))) for number in range(30)]
    async with opened(durable.url, "large-jobs") as store:
        assert await store.add_jobs(jobs) == [True] * 30
        assert await store.add_runs([a_run(number) for number in range(100)]) == [True] * 100
        claimed = (await take(store)).runs
        beats = [Beat(run.id, run.token, large[:RESULT_BYTES_MAX]) for run in claimed]
        assert None not in await store.heartbeat_runs(beats, NOW)
        assert await store.get_jobs([job.name for job in jobs]) == jobs
    assert max(sizes) < CALL_BYTES_MAX + PAYLOAD_BYTES_MAX


# ---- what the server refuses ------------------------------------------------------------------------------------


async def test_a_full_memory_refuses_writes_whole_and_says_so(durable: Redis) -> None:
    async with opened(durable.url, "full") as store, Client.from_url(durable.url, protocol=2) as client:
        await store.add_runs([a_run(1)])
        await client.config_set("maxmemory", "1")
        try:
            with pytest.raises(StoreUnavailable, match="memory is full"):
                await store.add_runs([a_run(n) for n in (2, 3)])
            assert await store.get_runs(ids([a_run(1), a_run(2)])) == [a_run(1), None]
        finally:
            await client.config_set("maxmemory", "0")
        assert await store.add_runs([a_run(2)]) == [True]


async def test_a_replica_refuses_writes_and_says_so(durable: Redis) -> None:
    async with opened(durable.url, "replica") as store, Client.from_url(durable.url, protocol=2) as client:
        await client.replicaof("127.0.0.1", "1")
        try:
            with pytest.raises(StoreUnavailable, match="read-only replica"):
                await store.check()
        finally:
            await client.replicaof("NO", "ONE")
        await store.check()


async def test_a_server_that_is_busy_with_a_script_of_somebody_else_says_so(durable: Redis) -> None:
    async with opened(durable.url, "busy") as store, Client.from_url(durable.url, protocol=2) as client:
        await client.config_set("busy-reply-threshold", "50")
        endless = asyncio.ensure_future(client.eval("while true do end", 0))

        async def refused() -> bool:
            try:
                await store.check()
            except StoreUnavailable as error:
                return "busy with a script" in str(error)
            return False

        while not await refused():
            assert not endless.done()
        async with Client.from_url(durable.url, protocol=2) as other:
            await other.script_kill()
        with pytest.raises(ResponseError, match="killed"):
            await endless
        await until_answered(store.check)
        assert await store.add_runs([a_run(1)]) == [True]


# ---- settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_server_that_evicts_is_refused(durable: Redis, policy: str) -> None:
    async with Client.from_url(durable.url, protocol=2) as client:
        await client.config_set("maxmemory-policy", policy)
        try:
            with pytest.raises(InvalidSetting, match=f"maxmemory-policy {policy}"):
                await RedisStore(durable.url).open()
        finally:
            await client.config_set("maxmemory-policy", "noeviction")


@pytest.mark.parametrize(("save", "loses"), [("", "everything"), ("3600 1", "since its last snapshot")])
async def test_a_server_that_keeps_no_log_is_warned_of(caplog: pytest.LogCaptureFixture, save: str, loses: str) -> None:
    with running(appendonly="no", save=save) as server, caplog.at_level(logging.WARNING, "horarium.redis"):
        async with opened(server.url):
            pass
    assert loses in caplog.text


async def test_a_durable_server_is_not_warned_of(durable: Redis, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(durable.url):
        pass
    assert caplog.text == ""


async def test_another_layout_is_refused(durable: Redis) -> None:
    async with Client.from_url(durable.url, protocol=2) as client:
        await client.set("horarium:{older}:layout", LAYOUT - 1)
        await client.set("horarium:{newer}:layout", LAYOUT + 1)
    with pytest.raises(InvalidSetting, match=f"layout {LAYOUT + 1}"):
        await RedisStore(durable.url, namespace="newer").open()
    with pytest.raises(InvalidSetting, match="of no release of Horarium; give a new database"):
        await RedisStore(durable.url, namespace="older").open()


@pytest.mark.parametrize(
    "url", ["redis://h?wait=-1", "redis://h?wait=x", "redis://h?timeout=0", "http://h", "redis://h:x"]
)
def test_a_url_that_can_not_be_used_is_refused(url: str) -> None:
    with pytest.raises(InvalidSetting):
        RedisStore(url)


async def test_replicas_must_confirm_a_write_if_asked(durable: Redis) -> None:
    with running(replicaof=f"127.0.0.1 {durable.port}") as replica:
        await open_and_close(f"{durable.url}?wait=1&timeout=0.2", "wait")
        async with opened(f"{durable.url}?wait=1", "wait") as store:
            assert await store.add_runs([a_run(1)]) == [True]
            async with Client.from_url(replica.url, protocol=2) as client:
                assert await client.hlen("horarium:{wait}:runs") == 1
        with pytest.raises(StoreUnavailable, match="1 of 2 replicas"):
            await RedisStore(f"{durable.url}?wait=2&timeout=2", "wait").open()


# ---- keys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("namespace", ["plain", "with {braces}", "}", "ü:x"])
async def test_all_keys_of_a_namespace_share_a_hash_tag(durable: Redis, namespace: str) -> None:
    async with opened(durable.url, namespace) as store, Client.from_url(durable.url, protocol=2) as client:
        before = set(await client.keys())
        await store.add_jobs([a_job(labels={"a": "b"}, next_fire_at=NOW)])
        await store.add_runs(
            [a_run(1, of=a_job(), serial=True, unique_key="u", start_by=NOW + 1, payload=b"x" * 5_000)]
        )
        await take(store)
        keys: set[Any] = set(await client.keys()) - before
        new = {key.decode() for key in keys}
        assert len(new) > 10
        (tag,) = {key[: key.index("}") + 1] for key in new}
        assert tag.startswith("horarium:{")
        assert len(tag) > len("horarium:{}")


async def test_no_key_is_left_behind_when_everything_is_forgotten(durable: Redis) -> None:
    async with opened(durable.url, "leaks") as store, Client.from_url(durable.url, protocol=2) as client:
        before = set(await client.keys("*{leaks}*"))
        job = a_job(labels={"a": "b"}, enabled=False, next_fire_at=NOW)
        await store.add_jobs([job])
        gated = [
            a_run(n, of=job, serial=True, concurrency_key="k", concurrency_max=1, start_by=NOW + DAY) for n in (1, 2)
        ]
        plain = [a_run(n, priority=n, unique_key=f"u{n}", payload=b"x" * 5_000, start_by=NOW + DAY) for n in (3, 4)]
        await store.add_runs([*gated, *plain])
        for _ in range(3):
            runs = (await take(store)).runs
            await store.heartbeat_runs([Beat(run.id, run.token, b"1") for run in runs], NOW)
            done = [a_change(run, state=State.FAILED, error="e", prune_at=NOW, finished_at=NOW) for run in runs]
            assert all(await store.settle_runs(done, NOW))
        assert await store.commit_plans([Plan(replace(job, deleted_at=NOW))], NOW) == [True]
        assert await store.prune_runs(NOW, 10) == 4
        await take(store)
        left: set[Any] = set(await client.keys("*{leaks}*")) - before
        assert {key.decode().removeprefix("horarium:{leaks}:") for key in left} <= {"queues"}


# ---- all of it together -----------------------------------------------------------------------------------------


async def test_two_nodes_on_a_redis_that_is_killed_meanwhile_run_everything(durable: Redis) -> None:
    """One node enqueues, the other runs: what it hears of is the other's wake-up, and goes on after the crash."""
    ran: set[int] = set()
    half, whole = asyncio.Event(), asyncio.Event()
    asking, working = (Scheduler(durable.url, namespace="nodes") for _ in range(2))

    @working.handler("note")
    async def note(run: RunContext, number: int) -> None:
        ran.add(number)
        if len(ran) >= 50:
            half.set()
        if len(ran) >= 100:
            whole.set()

    async with asking, working:
        await working.start()
        await asking.enqueue_many("note", [{"number": number} for number in range(50)])
        await asyncio.wait_for(half.wait(), PATIENCE)
        durable.restart()
        await until_answered(asking.stats)
        await asking.enqueue_many("note", [{"number": number} for number in range(50, 100)])
        await asyncio.wait_for(whole.wait(), PATIENCE)
    assert ran == set(range(100))
