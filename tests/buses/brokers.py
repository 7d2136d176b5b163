"""The worker's side of each broker, spoken with nothing but its own client library, and the real broker itself."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import quote

import aio_pika
import aio_pika.abc
import aio_pika.exceptions
import nats
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import NotFoundError
from redis.asyncio import Connection, ConnectionPool
from redis.asyncio import Redis as RedisClient
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from horarium.buses.memory import MemoryBroker, MemoryBus
from horarium.buses.nats import NatsBus
from horarium.buses.rabbitmq import RabbitBus
from horarium.buses.redis import RedisBus
from horarium.ports import Bus
from horarium.testing.bus_contract import Broker
from tests.servers.nats import Nats
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.redis import Redis
from tests.waiting import until

KINDS = ("action", "status", "heartbeat")
SILENCE_SECONDS = 20.0
"""A broker that is well answers sooner, on a busy machine too."""


class Workers(Broker, Protocol):
    """A broker under test, and how the scheduler is to reach it."""

    def bus(self) -> Bus:
        """A bus on it."""

    async def has_queues(self, job: str) -> bool:
        """Whether a worker that makes nothing itself can begin: to wait for actions, and to report."""

    async def hang_up(self) -> None:
        """Let go of the worker's connections."""


class MemoryWorkers:
    """The memory broker is its own worker's side."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()

    def bus(self) -> Bus:
        return MemoryBus(self.broker)

    async def hang_up(self) -> None:
        pass

    async def start(self) -> None:
        self.broker.start()

    async def kill(self) -> None:
        self.broker.kill()

    async def pause(self) -> None:
        self.broker.pause()

    async def resume(self) -> None:
        self.broker.resume()

    async def receive(self, job: str) -> bytes:
        return await self.broker.get(job, "action")

    async def send(self, job: str, kind: str, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self.broker.put(job, kind, body)

    async def waiting(self, job: str, kind: str) -> int:
        return len(self.broker.queues.get((job, kind), ()))

    async def delete_queues(self, job: str) -> None:
        self.broker.delete(job)

    async def has_queues(self, job: str) -> bool:
        return all((job, kind) in self.broker.queues for kind in KINDS)


class RabbitWorkers:
    """A RabbitMQ, and workers that know the wire format alone."""

    def __init__(self, server: RabbitMQ) -> None:
        self.server = server
        self.url = server.url
        self._connection: aio_pika.abc.AbstractConnection | None = None
        self._channels: dict[str, aio_pika.abc.AbstractChannel] = {}
        self._connecting = asyncio.Lock()
        self._killed = False

    def bus(self) -> Bus:
        return RabbitBus(self.url)

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start)
        self._killed = False

    async def kill(self) -> None:
        self._killed = True
        async with self._connecting:
            await self.hang_up()
        await asyncio.to_thread(self.server.kill)

    async def pause(self) -> None:
        await self.hang_up()
        self.server.pause()

    async def resume(self) -> None:
        self.server.resume()

    async def hang_up(self) -> None:
        connection, self._connection, self._channels = self._connection, None, {}
        if connection is not None:
            with contextlib.suppress(Exception):
                await connection.close()

    async def channel(self, purpose: str) -> Any:
        """A channel of its own for each purpose: a queue that is not there closes the channel that asked for it."""
        async with self._connecting:
            if self._killed:
                # aio-pika leaves the socket open when its greeting is cut off: nobody knocks while nobody is there.
                raise ConnectionError("the broker was killed")
            if self._connection is None or self._connection.is_closed:
                self._connection, self._channels = await aio_pika.connect(self.url), {}
            channel = self._channels.get(purpose)
            if channel is None or channel.is_closed:
                try:
                    channel = await self._connection.channel()
                except BaseException:
                    # aio-pika does not call a connection closed whose transport was lost.
                    await self.hang_up()
                    raise
                self._channels[purpose] = channel
            return channel

    async def receive(self, job: str) -> bytes:
        """Asked for again and again: a consumer of aio-pika may wait for ever on a connection that was closed."""
        channel = await self.channel("receive")
        async with asyncio.timeout(SILENCE_SECONDS):
            queue = await channel.declare_queue(f"scheduler.job.{job}.action", durable=True)
        while True:
            # Where the connection was closed under it, aio-pika may wait for an answer for ever.
            async with asyncio.timeout(SILENCE_SECONDS):
                message = await queue.get(fail=False)
            if message is not None:
                await message.ack()
                return bytes(message.body)
            await asyncio.sleep(0.01)

    async def send(self, job: str, kind: str, bodies: Sequence[bytes]) -> None:
        exchange = await (await self.channel("send")).get_exchange(f"scheduler.job.{job}", ensure=False)
        for start in range(0, len(bodies), 200):
            messages = [aio_pika.Message(body, delivery_mode=2) for body in bodies[start : start + 200]]
            await asyncio.gather(*(exchange.publish(message, routing_key=kind) for message in messages))

    async def waiting(self, job: str, kind: str) -> int:
        queue = await (await self.channel("look")).declare_queue(f"scheduler.job.{job}.{kind}", passive=True)
        return int(queue.declaration_result.message_count or 0)

    async def delete_queues(self, job: str) -> None:
        channel = await self.channel("delete")
        for kind in KINDS:
            await channel.queue_delete(f"scheduler.job.{job}.{kind}")

    async def has_queues(self, job: str) -> bool:
        try:
            await (await self.channel("exchange")).get_exchange(f"scheduler.job.{job}", ensure=True)
            for kind in KINDS:
                await (await self.channel("look")).get_queue(f"scheduler.job.{job}.{kind}", ensure=True)
        except aio_pika.exceptions.ChannelNotFoundEntity:
            return False
        return True


class NatsWorkers:
    """A NATS server, and workers that know streams and subjects alone."""

    def __init__(self, server: Nats) -> None:
        self.server = server
        self.url = server.url
        self._client: Any = None

    def bus(self) -> Bus:
        return NatsBus(self.url)

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start)

    async def kill(self) -> None:
        await self.hang_up()
        await asyncio.to_thread(self.server.kill)

    async def pause(self) -> None:
        await self.hang_up()
        self.server.pause()

    async def resume(self) -> None:
        self.server.resume()

    async def hang_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                await client.close()

    async def stream(self) -> Any:
        if self._client is None or self._client.is_closed:
            self._client = await nats.connect(self.url, allow_reconnect=False, error_cb=_ignore)
        return self._client.jetstream()

    async def receive(self, job: str) -> bytes:
        stream = await self.stream()
        durable = "worker-" + re.sub(r"\W", "-", job, flags=re.ASCII)
        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT)

        async def subscribe() -> Any:
            return await stream.pull_subscribe(
                _subject(job, "action"), durable=durable, stream="scheduler-actions", config=config
            )

        # A worker may be there before the scheduler has made its streams.
        pulled = await until(subscribe, what="the stream of actions", ignoring=NotFoundError)
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    (message,) = await pulled.fetch(1, timeout=5)
                    await message.ack_sync()
                    return bytes(message.data)
        finally:
            with contextlib.suppress(Exception):
                await pulled.unsubscribe()

    async def send(self, job: str, kind: str, bodies: Sequence[bytes]) -> None:
        stream = await self.stream()
        for start in range(0, len(bodies), 200):
            batch = bodies[start : start + 200]
            await asyncio.gather(*(stream.publish(_subject(job, kind), body) for body in batch))

    async def waiting(self, job: str, kind: str) -> int:
        stream = await self.stream()
        name = "scheduler-actions" if kind == "action" else "scheduler-reports"
        info = await stream.stream_info(name, subjects_filter=_subject(job, kind))
        return sum((info.state.subjects or {}).values())

    async def delete_queues(self, job: str) -> None:
        stream = await self.stream()
        for name in ("scheduler-actions", "scheduler-reports"):
            await stream.delete_stream(name)

    async def has_queues(self, job: str) -> bool:
        stream = await self.stream()
        try:
            return all([await stream.find_stream_name_by_subject(_subject(job, kind)) for kind in KINDS])
        except NotFoundError:
            return False


class RedisWorkers:
    """A Redis, and workers that know streams and their fields alone."""

    def __init__(self, server: Redis) -> None:
        self.server = server
        self.url = server.url
        self._client: Any = None
        self._killed = False
        self._writers: list[asyncio.StreamWriter] = []

    def bus(self) -> Bus:
        return RedisBus(self.url)

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start)
        self._killed = False

    async def kill(self) -> None:
        self._killed = True
        await self.hang_up()
        await asyncio.to_thread(self.server.kill)

    async def pause(self) -> None:
        await self.hang_up()
        self.server.pause()

    async def resume(self) -> None:
        self.server.resume()

    async def hang_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                await client.aclose()
        # A pool that is closed connects again for a caller that was between two commands, and forgets that connection.
        while self._writers:
            self._writers.pop().transport.abort()
        await asyncio.sleep(0)

    def client(self) -> Any:
        if self._killed:
            raise ConnectionError("the broker was killed")
        if self._client is None:
            # The driver's own repetitions would connect again after `hang_up`.
            pool = ConnectionPool.from_url(
                self.url, connection_class=_keeping(self._writers), retry=Retry(NoBackoff(), 0)
            )
            self._client = RedisClient.from_pool(pool)
        return self._client

    async def receive(self, job: str) -> bytes:
        key, client = f"scheduler.job.{job}.action", self.client()
        while True:
            with contextlib.suppress(ResponseError):
                await client.xgroup_create(key, "workers", id="0", mkstream=True)
            answer = await client.xreadgroup("workers", "worker", {key: ">"}, count=1, block=200)
            if answer:
                ((_, entries),) = answer.items() if isinstance(answer, dict) else answer
                ((entry, fields),) = entries[0] if isinstance(answer, dict) else entries
                await client.xack(key, "workers", entry)
                await client.xdel(key, entry)
                return bytes(fields[b"body"])

    async def send(self, job: str, kind: str, bodies: Sequence[bytes]) -> None:
        pipe = self.client().pipeline(transaction=False)
        for body in bodies:
            pipe.xadd(f"scheduler.job.{job}.{kind}", {"body": body})
        await pipe.execute()

    async def waiting(self, job: str, kind: str) -> int:
        return int(await self.client().xlen(f"scheduler.job.{job}.{kind}"))

    async def delete_queues(self, job: str) -> None:
        await self.client().delete(*(f"scheduler.job.{job}.{kind}" for kind in KINDS))

    async def has_queues(self, job: str) -> bool:
        keys = [f"scheduler.job.{job}.{kind}" for kind in KINDS]
        return int(await self.client().exists(*keys)) == len(keys)


def _subject(job: str, kind: str) -> str:
    return f"scheduler.job.{quote(job, safe=':@').replace('.', '%2E')}.{kind}"


def _keeping(writers: list[asyncio.StreamWriter]) -> type[Connection]:
    """A connection that notes what it opened."""

    class Keeping(Connection):
        async def _connect(self) -> None:
            await super()._connect()  # type: ignore[no-untyped-call]
            assert self._writer is not None
            writers.append(self._writer)

    return Keeping


async def _ignore(_: Exception) -> None:
    pass
