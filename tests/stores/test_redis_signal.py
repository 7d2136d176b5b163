"""The clock and the wake-ups of Redis, when nodes disagree, servers come back and connections fall silent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from redis.asyncio import Redis as Client

from horarium.clock import DAY, HOUR, SECOND, Instant, SystemClock
from horarium.ports import Topic
from horarium.stores.redis import RedisSignal, RedisStore
from horarium.stores.server_clock import ServerClock
from horarium.testing.values import NOW
from tests.servers.redis import Redis
from tests.stores.redis_server import running
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["valkey", "redis"])
def durable(request: pytest.FixtureRequest) -> Iterator[Redis]:
    with running(request.param) as server:
        yield server


class SkewedClock:
    """A node whose clocks say something else."""

    machine = "here"
    steady_offset = 0

    def now(self) -> int:
        return NOW + 10 * DAY

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() + 1_000.0

    def steady(self) -> Instant:
        return self.now()


class Stepped(RedisStore):
    """Of a server whose clock is stepped."""

    step = 0

    async def server_time(self) -> Instant:
        return await super().server_time() + self.step


async def test_the_clock_is_the_servers_whatever_the_node_says(durable: Redis) -> None:
    store = RedisStore(durable.url)
    await store.open()
    clock, skewed = ServerClock(store, SystemClock()), ServerClock(store, SkewedClock())
    await clock.start()
    await skewed.start()
    async with Client.from_url(durable.url, protocol=2) as client:
        before = await client.time()
        readings = clock.now(), skewed.now()
        after = await client.time()
    margin = round(((clock.error_seconds or 0.0) + (skewed.error_seconds or 0.0)) * SECOND) + 2
    earliest, latest = (seconds * SECOND + micros for seconds, micros in (before, after))
    assert all(earliest - margin <= reading <= latest + margin for reading in readings)
    for each in (clock, skewed):
        await each.stop()
    await store.close()


async def test_a_step_of_the_servers_clock_is_known_within_seconds(durable: Redis) -> None:
    store, local = Stepped(durable.url), SystemClock()
    await store.open()
    clock = ServerClock(store, local)
    await clock.start()
    assert abs(clock.now() - local.now()) < HOUR // 2
    store.step = HOUR
    await until(lambda: clock.now() - local.now() > HOUR // 2)
    await clock.stop()
    await store.close()


async def heard(signal: RedisSignal, topic: str) -> asyncio.Event:
    event = asyncio.Event()
    signal.subscribe(Topic(topic), event.set)
    return event


async def test_a_wake_up_reaches_other_nodes_of_the_namespace_alone() -> None:
    with running() as server:
        one, two, other = (RedisSignal(server.url, name) for name in ("a", "a", "b"))
        for signal in (one, two, other):
            await signal.start()
            await asyncio.wait_for(signal.listening.wait(), PATIENCE)
        here, there, elsewhere = await heard(one, "jobs"), await heard(two, "jobs"), await heard(other, "jobs")
        one.publish(Topic("jobs"))
        assert here.is_set()
        await asyncio.wait_for(there.wait(), PATIENCE)
        there.clear()
        other.publish(Topic("queue:http"))
        two.publish(Topic("jobs"))
        assert not elsewhere.is_set()
        for signal in (one, two, other):
            await signal.stop()


async def test_after_a_reconnect_everybody_is_woken() -> None:
    with running() as server:
        signal = RedisSignal(server.url, quiet_seconds=0.2)
        await signal.start()
        await asyncio.wait_for(signal.listening.wait(), PATIENCE)
        woken, stopped = await heard(signal, "leases"), asyncio.Event()
        stop = signal.subscribe(Topic("leases"), stopped.set)
        stop()
        stop()
        server.kill()
        signal.publish(Topic("jobs"))
        server.start()
        await asyncio.wait_for(woken.wait(), PATIENCE)
        assert not stopped.is_set()
        await signal.stop()
        await signal.stop()


class Relay:
    """Passes bytes between a client and a server, until it is told to fall silent on the connections that there are."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self._silent: set[asyncio.StreamWriter] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, back]
        self._tasks += [
            asyncio.create_task(self._pass_on(reader, back)),
            asyncio.create_task(self._pass_on(there, writer)),
        ]

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if writer not in self._silent:
                writer.write(data)
        writer.close()

    def fall_silent(self) -> None:
        self._silent.update(self._writers)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_a_connection_that_went_silent_is_replaced(durable: Redis) -> None:
    relay = Relay(durable.port)
    async with await asyncio.start_server(relay.accept, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        signal = RedisSignal(f"redis://127.0.0.1:{port}/0?timeout=0.5", quiet_seconds=0.1)
        await signal.start()
        await asyncio.wait_for(signal.listening.wait(), PATIENCE)
        woken = await heard(signal, "jobs")
        relay.fall_silent()
        await asyncio.wait_for(woken.wait(), PATIENCE)
        await signal.stop()
        await relay.close()
