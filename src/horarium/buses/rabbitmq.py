"""RabbitMQ: for each job a durable topic exchange `scheduler.job.NAME` and three durable queues bound to it.

It speaks through aiormq, the driver beneath aio-pika, publishes in groups (`amqp_publisher.py`), and keeps connection
and topology by itself: what reconnects behind our back can't say what became of a message. Of its three channels one
publishes (confirms, mandatory, persistent), one consumes, one declares, so that a refused declaration closes none of
the others.

Many jobs are brought in groups: their declarations and consumers are sent one after the other, and only the last of a
group is answered, since the broker works in the order of a channel. One round trip for each of a job's nine commands
took twenty times our processor time.

When a queue is gone, a publish comes back as unroutable: the topology is declared again, and the message is sent once
more. A consumer is cancelled by the broker: it is set up again. A broker that is short of memory or disk takes no
messages for a while: nothing is sent then, so nothing becomes uncertain.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import aiormq
from aiormq.abc import AbstractChannel, AbstractConnection, ChannelFrame, DeliveredMessage
from aiormq.channel import Channel
from aiormq.exceptions import (
    AMQPChannelError,
    AuthenticationError,
    ChannelInvalidStateError,
    ChannelPreconditionFailed,
    DeliveryError,
    ProbableAuthenticationError,
    PublishError,
)
from pamqp.base import Frame
from pamqp.commands import Basic, Exchange, Queue
from pamqp.constants import DOMAIN_REGEX
from yarl import URL

from horarium.buses.amqp_publisher import Publisher
from horarium.buses.link import (
    CLOSE_SECONDS,
    CONFIRM_SECONDS,
    CONNECT_SECONDS,
    KINDS,
    Link,
    asking_to_end,
    queue_name,
    words,
)
from horarium.errors import BusUnavailable
from horarium.ports import RECEIVED_MAX, Report

HEARTBEAT_SECONDS = 10
"""A broker that is silent for three times as long is given up. The URL may say otherwise (`?heartbeat=60`)."""
PREFETCH_MAX = 500
"""Unacknowledged reports of one consumer; all of them together may hold `RECEIVED_MAX`."""
ROUTES_MAX = 3
"""How often a message that came back is sent."""
BLOCKED = "the broker takes no messages: it has raised an alarm (memory or disk)"
GROUP_JOBS = 50
"""Jobs whose queues are declared and consumed by one round trip: others that wait to be declared wait that long."""
LOOK_SECONDS = 0.2
"""How often to look whether the broker takes messages."""

log = logging.getLogger("horarium")

# The names of jobs that came by a door may be any text. The broker takes it; the library alone would not.
DOMAIN_REGEX.update(dict.fromkeys(("exchange-name", "queue-name"), re.compile(".*", re.DOTALL)))


class RabbitBus(Link):
    """A bus on the virtual host of an `amqp://` or `amqps://` URL."""

    kind = "rabbitmq"

    def __init__(self, url: str, confirm_seconds: float = CONFIRM_SECONDS) -> None:
        super().__init__(confirm_seconds)
        given = URL(url)
        self._url = given if "heartbeat" in given.query else given.update_query(heartbeat=HEARTBEAT_SECONDS)
        self._line: BrokerConnection | None = None

    # ---- the connection

    async def _session(self) -> None:
        async with asyncio.timeout(CONNECT_SECONDS):
            connection = await self._connect()
        line = BrokerConnection(connection, self._heard, self._interest.changed)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await line.open()
            self._line = line
            watching = asyncio.create_task(self._watch(line))
            try:
                await self._serve(line)
            finally:
                watching.cancel()
        finally:
            self._line = None
            await line.close()

    async def _connect(self) -> AbstractConnection:
        try:
            return await aiormq.connect(self._url)
        except (AuthenticationError, ProbableAuthenticationError) as error:
            raise BusUnavailable(f"the broker refuses the user name or password ({words(error)})") from None
        except Exception as error:
            if "OpenOk" not in str(error):
                raise
            host = self._url.path.removeprefix("/") or "/"
            message = f"the broker refuses the virtual host {host!r}: it is not there, or this user may not use it"
            raise BusUnavailable(message) from None

    async def _serve(self, line: BrokerConnection) -> None:
        """Consume the wanted queues, until something breaks."""
        self._went_up()
        while not line.broken:
            self._interest.changed.clear()
            consuming = asyncio.ensure_future(line.consume(self._interest.jobs))
            await self._while_whole(line, consuming)
            if not line.broken:
                consuming.result()
                await self._while_whole(line, asyncio.ensure_future(self._interest.changed.wait()))

    async def _while_whole(self, line: BrokerConnection, step: asyncio.Future[Any]) -> None:
        """Wait for the step, or for the line's end: the driver may leave a call on a lost connection unanswered."""
        try:
            await asyncio.wait({step, *line.endings()}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            step.cancel()

    async def _watch(self, line: BrokerConnection) -> None:
        """Say when the broker takes no messages, and when it does again."""
        while True:
            blocked = await line.is_blocked()
            if blocked and not line.blocked:
                self._standing.problem = f"{self.kind}: {BLOCKED}"
                log.warning("%s: %s", self.kind, BLOCKED)
            elif line.blocked and not blocked:
                self._went_up()
            line.blocked = blocked
            await asyncio.sleep(LOOK_SECONDS)

    def _cut(self) -> None:
        """Not where the broker has said why it does not answer: a new connection would get the same answer."""
        if self._line is not None and not self._line.blocked:
            self._line.cut.set()

    # ---- actions

    async def _send(self, job: str, body: bytes, expires_seconds: float) -> None:
        line = self._line
        if line is None or line.blocked:
            raise BusUnavailable(self.problem or "rabbitmq: not connected")
        expires_ms = max(int(expires_seconds * 1000), 1)
        for _ in range(ROUTES_MAX):
            if job not in line.declared:
                await self._declare(line, job)
            if await line.publish(job, body, expires_ms, self._confirm_seconds):
                return
        raise BusUnavailable(f"rabbitmq: {queue_name(job, 'action')} can't be reached, though it was declared")

    async def _declare(self, line: BrokerConnection, job: str) -> None:
        """Make the job's queues; if that fails, nothing was sent."""
        try:
            async with asyncio.timeout(self._confirm_seconds):
                await line.declare(job)
        except asyncio.CancelledError:
            if asking_to_end():
                raise
            raise BusUnavailable("rabbitmq: the connection was cut while the job's queues were declared") from None
        except Exception as error:
            if isinstance(error, TimeoutError):
                self._cut()
            raise BusUnavailable(f"rabbitmq: can't declare the job's queues: {words(error)}") from error

    # ---- reports

    def _heard(self, line: BrokerConnection, kind: str, job: str, message: DeliveredMessage) -> None:
        if line is self._line and not self._interest.over:
            self._inbox.add(Report(kind, job, message.body, (line, message.delivery_tag)))

    async def _answer(self, reports: Sequence[Report], how: str) -> None:
        line = self._line
        tags = [report.receipt[1] for report in reports if report.receipt[0] is line]
        if line is not None and tags:
            await line.answer(tags, how)

    async def _stop_receiving(self) -> None:
        if self._line is not None:
            await self._line.consume(set())


class BrokerConnection:
    """One connection, its channels, and what depends on it."""

    _publisher: Channel
    _publishing: Publisher
    _consumer: Channel
    _declarer: AbstractChannel

    def __init__(
        self,
        connection: AbstractConnection,
        heard: Callable[[BrokerConnection, str, str, DeliveredMessage], None],
        changed: asyncio.Event,
    ) -> None:
        self._connection = connection
        self._heard = heard
        self._changed = changed
        self.cut = asyncio.Event()
        self.blocked = False
        self.declared: set[str] = set()
        self._declaring = asyncio.Lock()
        self._subscribing = asyncio.Lock()
        self._consuming: dict[str, tuple[str, str]] = {}
        self._cutting: asyncio.Future[Any] | None = None
        self._closings: list[asyncio.Future[Any]] = []

    async def open(self) -> None:
        """Open the channels."""
        publisher = await self._connection.channel(publisher_confirms=True)
        assert isinstance(publisher, Channel)
        self._publisher = publisher
        consumer = await self._connection.channel(publisher_confirms=False)
        assert isinstance(consumer, Channel)
        self._consumer = consumer
        self._declarer = await self._connection.channel(publisher_confirms=False)
        self._consumer.on_consumer_cancel_callbacks.add(self._lost_consumer)
        self._publishing = Publisher(publisher)
        self._cutting = asyncio.ensure_future(self.cut.wait())
        self._closings = [part.closing for part in (self._connection, self._publisher, self._consumer)]

    async def close(self) -> None:
        """Hang up; one that does not answer is left to itself."""
        if self._cutting is not None:
            self._cutting.cancel()
            self._publishing.close()
        with suppress(Exception, asyncio.CancelledError):
            async with asyncio.timeout(CLOSE_SECONDS if not self.cut.is_set() else 0.5):
                await self._connection.close()

    async def is_blocked(self) -> bool:
        """Whether the broker has said that it takes no messages."""
        try:
            async with asyncio.timeout(0.01):
                await self._connection.ready()
        except TimeoutError:
            return True
        return False

    def endings(self) -> list[asyncio.Future[Any]]:
        """Futures of which one is done when this line is of no more use."""
        assert self._cutting is not None
        return [self._cutting, *self._closings]

    @property
    def broken(self) -> bool:
        return any(ending.done() for ending in self.endings())

    # ---- topology

    async def declare(self, job: str) -> None:
        """Make the job's exchange and queues where they are missing."""
        async with self._declaring:
            if job not in self.declared:
                await self._declare_one(job)
                self._changed.set()

    async def declare_all(self, jobs: Sequence[str]) -> None:
        """The same for a group of jobs. A queue of theirs that exists with other arguments costs a round trip each; a
        job whose queues can't be made is tried again with its next action."""
        async with self._declaring:
            missing = [job for job in jobs if job not in self.declared]
            if not missing:
                return
            try:
                await _send_unanswered(self._declarer, [frame for job in missing for frame in _topology(job)])
                await self._declarer.queue_declare(queue_name(missing[-1], "action"), durable=True)
            except (AMQPChannelError, ChannelInvalidStateError):
                self._declarer = await self._connection.channel(publisher_confirms=False)
                for job in missing:
                    try:
                        await self._declare_one(job)
                    except AMQPChannelError as error:
                        why = words(error)
                        log.warning("rabbitmq: runs of job %r wait, for its queues can't be made: %s", job, why)
            else:
                self.declared.update(missing)

    async def _declare_one(self, job: str) -> None:
        """One that the broker refuses leaves the others as they are. Raises AMQPChannelError."""
        exchange = f"scheduler.job.{job}"
        try:
            await self._declarer.exchange_declare(exchange, exchange_type="topic", durable=True)
            for kind in ("action", *KINDS):
                name = queue_name(job, kind)
                await self._declare_queue(name)
                await self._declarer.queue_bind(name, exchange, routing_key=kind)
        except AMQPChannelError:
            self._declarer = await self._connection.channel(publisher_confirms=False)
            raise
        self.declared.add(job)

    async def _declare_queue(self, name: str) -> None:
        """A durable queue. One that exists with other arguments (a quorum queue, a limit) is used as it is."""
        try:
            await self._declarer.queue_declare(name, durable=True)
        except ChannelPreconditionFailed as error:
            log.info("rabbitmq: %s exists with arguments of its own, and is used as it is (%s)", name, error)
            self._declarer = await self._connection.channel(publisher_confirms=False)

    # ---- publishing

    async def publish(self, job: str, body: bytes, expires_ms: int, seconds: float) -> bool:
        """Send and wait for the confirmation. False: there was no queue to take it."""
        try:
            async with asyncio.timeout(seconds):
                await self._publishing.publish(f"scheduler.job.{job}", "action", body, expires_ms)
        except PublishError:
            self.declared.discard(job)
            return False
        except DeliveryError as error:
            raise BusUnavailable(f"rabbitmq: the broker refused the message: {error}") from None
        except ChannelInvalidStateError as error:
            raise BusUnavailable(f"rabbitmq: {error}") from None
        return True

    # ---- consuming

    async def consume(self, jobs: set[str]) -> None:
        """Bring the consumers to these jobs."""
        async with self._subscribing:
            await self._bring(jobs)

    async def _bring(self, jobs: set[str]) -> None:
        wanted = {(job, kind) for job in jobs for kind in KINDS}
        for tag, queue in list(self._consuming.items()):
            if queue not in wanted:
                self._consuming.pop(tag)
                await self._consumer.basic_cancel(tag)
        missing: dict[str, list[str]] = {}
        for job, kind in sorted(wanted - set(self._consuming.values())):
            missing.setdefault(job, []).append(kind)
        found = list(missing)
        share = max(1, min(PREFETCH_MAX, RECEIVED_MAX // max(len(wanted), 1)))
        if found:
            await self._consumer.basic_qos(prefetch_count=share)
        for start in range(0, len(found), GROUP_JOBS):
            group = found[start : start + GROUP_JOBS]
            await self.declare_all(group)
            begun = [self._consume(job, kind) for job in group if job in self.declared for kind in missing[job]]
            await _send_unanswered(self._consumer, begun)
            # Said again for its answer: it comes once these consumers are there.
            await self._consumer.basic_qos(prefetch_count=share)

    def _consume(self, job: str, kind: str) -> Basic.Consume:
        """The command that begins the consumer of a queue."""

        async def heard(message: DeliveredMessage) -> None:
            self._heard(self, kind, job, message)

        tag = f"{kind}.{job}"
        self._consumer.consumers[tag] = heard
        self._consuming[tag] = (job, kind)
        return Basic.Consume(queue=queue_name(job, kind), consumer_tag=tag, nowait=True)

    def _lost_consumer(self, frame: Basic.Cancel) -> None:
        """The broker ended a consumer: its queue was deleted, or has moved."""
        lost = self._consuming.pop(frame.consumer_tag or "", None)
        if lost is not None:
            self.declared.discard(lost[0])
            self._changed.set()

    async def answer(self, tags: Sequence[int], how: str) -> None:
        """Acknowledge, give back, or reject. Returns when the socket has taken the last of it."""
        if how == "ack":
            frames: list[Frame] = [Basic.Ack(delivery_tag=tag) for tag in tags]
        else:
            frames = [Basic.Reject(delivery_tag=tag, requeue=how == "nack") for tag in tags]
        await _send_unanswered(self._consumer, frames, taken := self._consumer.create_future())
        await taken


def _topology(job: str) -> list[Frame]:
    """The commands that make a job's exchange and queues, none of them answered."""
    exchange = f"scheduler.job.{job}"
    frames: list[Frame] = [
        Exchange.Declare(exchange=exchange, exchange_type="topic", durable=True, nowait=True),
    ]
    for kind in ("action", *KINDS):
        name = queue_name(job, kind)
        frames += (
            Queue.Declare(queue=name, durable=True, nowait=True),
            Queue.Bind(queue=name, exchange=exchange, routing_key=kind, nowait=True),
        )
    return frames


async def _send_unanswered(
    channel: AbstractChannel, frames: Sequence[Frame], taken: asyncio.Future[Any] | None = None
) -> None:
    """Send commands that the broker does not answer, in one write; `taken` is done when the socket has it. Raises
    ChannelInvalidStateError."""
    assert isinstance(channel, Channel)
    if channel.is_closed:
        raise ChannelInvalidStateError(f"{channel} is closed")
    block = ChannelFrame.marshall(channel_number=channel.number, frames=list(frames), drain_future=taken)
    await channel.write_queue.put(block)
