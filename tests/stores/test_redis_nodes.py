"""Several servers: replicas that are promoted, sentinels, clusters; and servers that ask who is there."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis as Client

from horarium import Scheduler
from horarium.delivery.context import RunContext
from horarium.errors import InvalidSetting, StoreUnavailable
from horarium.model import Run, State
from horarium.ports import Topic
from horarium.stores.redis import RedisSignal, RedisStore
from horarium.stores.redis.location import parse_url
from horarium.testing.contract.base import ids, take
from horarium.testing.values import NOW, a_run, completed
from tests.servers.process import free_port
from tests.servers.redis import ClusterNode, Redis, Sentinel
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

NOT_YET = (StoreUnavailable, OSError)


@contextmanager
def running(*servers: Any) -> Iterator[None]:
    try:
        for server in servers:
            server.start()
        yield
    finally:
        for server in reversed(servers):
            server.stop()


async def ask(server: Redis, *command: str) -> Any:
    async with Client.from_url(server.url, protocol=2) as client:
        return await client.execute_command(*command)  # type: ignore[no-untyped-call]


@asynccontextmanager
async def opened(url: str, namespace: str = "nodes") -> AsyncIterator[RedisStore]:
    store = RedisStore(url, namespace=namespace)

    async def open_it() -> bool:
        await store.open()
        return True

    # A replica that has just followed may not confirm in time on a busy machine.
    await until(open_it, ignoring=NOT_YET)
    try:
        yield store
    finally:
        await store.close()


def one_of(*servers: Redis, **options: object) -> str:
    """The URL of several servers."""
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"redis://{hosts}/0?" + "&".join(f"{name}={value}" for name, value in {"timeout": 5, **options}.items())


# ---- a primary and its replica ----------------------------------------------------------------------------------


@asynccontextmanager
async def a_pair(kind: str) -> AsyncIterator[tuple[Redis, Redis]]:
    """A primary, and a replica that has caught up with it."""
    primary = Redis(kind, repl_diskless_sync_delay="0")
    replica = Redis(kind, replicaof=f"127.0.0.1 {primary.port}")
    with running(primary, replica):

        async def linked() -> bool:
            return bool((await ask(replica, "INFO", "replication"))["master_link_status"] == "up")

        await until(linked, ignoring=NOT_YET)
        yield primary, replica


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_with_wait_nothing_that_was_answered_is_lost_when_the_replica_is_promoted(kind: str) -> None:
    """Runs are added and settled as fast as it goes, the primary is killed meanwhile, and the replica promoted."""
    added: list[str] = []
    settled: list[str] = []
    enough = asyncio.Event()

    async def add(store: RedisStore) -> None:
        for number in range(0, 1_000_000, 10):
            runs = [a_run(n) for n in range(number, number + 10)]
            assert all(await store.add_runs(runs))
            added.extend(ids(runs))

    async def work(store: RedisStore) -> None:
        while True:
            runs = (await take(store, 7)).runs
            assert all(await store.settle_runs([completed(run) for run in runs], NOW))
            settled.extend(ids(runs))
            if len(settled) > 300:
                enough.set()

    async with a_pair(kind) as (primary, replica), opened(one_of(primary, replica, wait=1)) as store:
        tasks = [asyncio.create_task(add(store)), asyncio.create_task(work(store))]
        await asyncio.wait_for(enough.wait(), PATIENCE)
        primary.kill()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 2
        await ask(replica, "REPLICAOF", "NO", "ONE")
        # The same store goes on with the new primary: reads first, since nobody would confirm a write now.
        found: list[Run | None] = []

        async def read() -> bool:
            found[:] = await store.get_runs(added)
            return True

        await until(read, ignoring=NOT_YET)
        assert None not in found
        states = {run.id: run.state for run in found if run is not None}
        assert {states[run_id] for run_id in settled} == {State.COMPLETED}


async def test_what_the_replica_has_not_is_answered_without_wait_and_refused_with_it() -> None:
    """What is lost then, and why: the promise ends where nobody else has the write."""
    async with a_pair("valkey") as (primary, replica):
        unsafe, safe = one_of(primary), one_of(primary, wait=1)
        async with opened(unsafe) as store, opened(safe) as careful:
            replica.pause()
            assert await store.add_runs([a_run(1)]) == [True]
            with pytest.raises(StoreUnavailable, match=r"0 of 1 replicas confirmed|no answer within"):
                await careful.add_runs([a_run(2)])
            primary.kill()
            replica.kill()
        replica.start()
        await ask(replica, "REPLICAOF", "NO", "ONE")
        async with opened(one_of(replica)) as store:
            assert await store.get_runs(ids([a_run(1), a_run(2)])) == [None, None]


async def test_two_primaries_that_do_not_know_each_other_are_refused() -> None:
    one, other = Redis(), Redis()
    with running(one, other):
        with pytest.raises(StoreUnavailable, match="each say that they are the primary"):
            await RedisStore(one_of(one, other)).open()
        other.kill()
        async with opened(one_of(one, other)) as store:
            await store.check()


async def test_a_replica_alone_is_not_taken_for_the_primary() -> None:
    async with a_pair("valkey") as (primary, replica):
        primary.kill()
        with pytest.raises(StoreUnavailable, match="none of these answers as a primary"):
            await RedisStore(one_of(primary, replica)).open()


async def test_after_sentinels_promote_a_replica_the_store_and_its_wake_ups_go_on_there() -> None:
    async with a_pair("valkey") as (primary, replica):
        sentinel = Sentinel(primary)
        with running(sentinel):
            url = f"redis://127.0.0.1:{sentinel.port}/0?sentinel=main"

            async def knows_the_replica() -> bool:
                return bool(await ask_sentinel(sentinel, "replicas", "main"))

            await until(knows_the_replica, ignoring=NOT_YET)
            signal, woken = RedisSignal(url, "nodes", quiet_seconds=0.2), asyncio.Event()
            await signal.start()
            async with opened(url) as store:
                assert await store.add_runs([a_run(1)]) == [True]
                await until(lambda: has(replica, "nodes", 1), ignoring=NOT_YET)
                await asyncio.wait_for(signal.listening.wait(), PATIENCE)
                signal.subscribe(Topic("jobs"), woken.set)
                primary.kill()

                async def goes_on() -> bool:
                    await store.check()
                    return True

                await until(goes_on, ignoring=NOT_YET)
                assert ids((await take(store)).runs) == ids([a_run(1)])
                await asyncio.wait_for(woken.wait(), PATIENCE)
            await signal.stop()


async def ask_sentinel(sentinel: Sentinel, *question: str) -> Any:
    async with Client(port=sentinel.port, protocol=2) as client:
        return await client.execute_command("SENTINEL", *question)  # type: ignore[no-untyped-call]


async def has(server: Redis, namespace: str, runs: int) -> bool:
    return bool(await ask(server, "HLEN", f"horarium:{{{namespace}}}:runs") == runs)


# ---- a cluster --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["valkey", "redis"])
def cluster(request: pytest.FixtureRequest) -> Iterator[list[ClusterNode]]:
    nodes = [ClusterNode(request.param) for _ in range(3)]
    with running(*nodes):
        asyncio.run(joined(nodes))
        yield nodes


async def joined(nodes: list[ClusterNode]) -> None:
    bounds = [0, 5_461, 10_923, 16_384]
    for node, first, end in zip(nodes, bounds, bounds[1:], strict=False):
        await ask(node, "CLUSTER", "ADDSLOTSRANGE", str(first), str(end - 1))
    for node in nodes[1:]:
        await ask(node, "CLUSTER", "MEET", "127.0.0.1", str(nodes[0].port), str(nodes[0].bus_port))

    async def complete() -> bool:
        said = [await ask(node, "CLUSTER", "INFO") for node in nodes]
        return all(b"cluster_state:ok" in info and b"cluster_known_nodes:3" in info for info in said)

    await until(complete, ignoring=NOT_YET)


async def test_each_namespace_lives_whole_on_the_node_of_its_slot(cluster: list[ClusterNode]) -> None:
    """Whichever node the URL names."""
    async with AsyncExitStack() as stack:
        for number in range(6):
            url = cluster[number % 3].url
            store = await stack.enter_async_context(opened(url, f"n{number}"))
            assert all(await store.add_runs([a_run(n, concurrency_key="k", concurrency_max=2) for n in range(5)]))
            for left in (2, 2, 1):
                runs = (await take(store)).runs
                assert len(runs) == left
                assert all(await store.settle_runs([completed(run) for run in runs], NOW))
    lived = [{key.split(b"}")[0] for key in await ask(node, "KEYS", "horarium:{n[0-9]}*")} for node in cluster]
    assert sum(map(len, lived)) == len(set().union(*lived)) == 6
    assert sum(map(bool, lived)) > 1


async def test_two_schedulers_work_on_a_cluster_through_different_nodes(cluster: list[ClusterNode]) -> None:
    ran: set[int] = set()
    done = asyncio.Event()
    asking = Scheduler(one_of(*cluster), namespace="two")
    working = Scheduler(one_of(*reversed(cluster)), namespace="two")

    @working.handler("note")
    async def note(run: RunContext, number: int) -> None:
        ran.add(number)
        if len(ran) == 50:
            done.set()

    async with asking, working:
        await working.start()
        await asking.enqueue_many("note", [{"number": number} for number in range(50)])
        await asyncio.wait_for(done.wait(), PATIENCE)
    assert ran == set(range(50))


# ---- who is there -----------------------------------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs" / "redis.md"


async def test_a_user_with_the_rights_that_the_docs_name_can_do_everything() -> None:
    with running(server := Redis("redis")):
        line = next(line for line in DOCS.read_text().splitlines() if "ACL SETUSER horarium" in line)
        rules = line.replace("PASSWORD", "secret").split()[3:]
        await ask(server, "ACL", "SETUSER", "app", *rules)
        await ask(server, "ACL", "SETUSER", "default", "off")
        url = f"redis://app:secret@127.0.0.1:{server.port}/0"
        scheduler, ran = Scheduler(url, namespace="acl"), asyncio.Event()

        @scheduler.handler("note")
        async def note(run: RunContext) -> None:
            ran.set()

        async with scheduler:
            await scheduler.start()
            await scheduler.enqueue("note")
            await asyncio.wait_for(ran.wait(), PATIENCE)
            await scheduler.list_runs()
        with pytest.raises(StoreUnavailable, match="refuses"):
            await RedisStore(url.replace("secret", "wrong")).open()
        with pytest.raises(StoreUnavailable, match="it wants a password"):
            await RedisStore(f"redis://127.0.0.1:{server.port}/0").open()


async def test_the_certificate_of_a_server_is_checked(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key)]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", "-days", "2", *new_key, *name, "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    port = free_port()
    server = Redis(
        "redis",
        tls_port=str(port),
        tls_cert_file=str(certificate),
        tls_key_file=str(key),
        tls_ca_cert_file=str(certificate),
        tls_auth_clients="no",
    )
    with running(server):
        async with opened(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}") as store:
            assert await store.add_runs([a_run(1)]) == [True]
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
            await RedisStore(f"rediss://127.0.0.1:{port}/0").open()


# ---- URLs -------------------------------------------------------------------------------------------------------


def test_a_url_names_its_nodes() -> None:
    location = parse_url("rediss://me:p%40ss@one,two:7000,[::1]:7001/3?wait=1&ssl_ca_certs=/ca")
    assert location.nodes == (("one", 6379), ("two", 7000), ("::1", 7001))
    assert location.shown == "one:6379,two:7000,[::1]:7001/3"
    assert location.url(("two", 7000)) == "rediss://me:p%40ss@two:7000/3?ssl_ca_certs=%2Fca"
    assert parse_url("valkey://s1,s2/0?sentinel=main").nodes == (("s1", 26379), ("s2", 26379))


@pytest.mark.parametrize("url", ["redis://a,b:x", "redis://" + ",".join(["h"] * 21)])
def test_nodes_that_can_not_be_used_are_refused(url: str) -> None:
    with pytest.raises(InvalidSetting):
        parse_url(url)
