"""NATS JetStream: subjects `scheduler.job.NAME.action`, `.status` and `.heartbeat`, with each dot in NAME as `%2E`,
and characters other than letters, digits and `_~:@-` as in URLs.

Two work-queue streams hold them all: `scheduler-actions` and `scheduler-reports`. Workers pull actions of their job
through a durable consumer of theirs; all nodes share one durable consumer of reports, of every job, so
an installation wants an account of its own. The driver's own reconnection is off: it could not say what became of a
message.

No message announces a deleted stream. A publish then finds no stream to answer it, and an idle session looks after its
consumer now and then; either begins a new session, which makes the missing parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import BadRequestError, NoStreamResponseError

from horarium.buses.link import CLOSE_SECONDS, CONFIRM_SECONDS, CONNECT_SECONDS, KINDS, Link, queue_name
from horarium.buses.nats_publisher import Publisher
from horarium.errors import BusUnavailable
from horarium.ports import RECEIVED_MAX, Report

ACTIONS, REPORTS = "scheduler-actions", "scheduler-reports"
CONSUMER = "horarium"
ACK_WAIT_SECONDS = 10
"""After this a report that a node took and never answered goes to another."""
PING_SECONDS = 5
"""Two pings without an answer end the connection."""
LOOK_SECONDS = 5.0
"""How often a session makes sure that its consumer is still there."""
ANSWERS = {"ack": b"", "nack": Msg.Ack.Nak, "reject": Msg.Ack.Term}
PENDING_BYTES_MAX = 256 * 1024 * 1024


@lru_cache(maxsize=1024)
def subject(job: str, kind: str) -> str:
    """The subject of one of a job's queues; a job's name, which may be any text, is one token of it."""
    return queue_name(quote(job, safe=":@").replace(".", "%2E"), kind)


async def _say(client: Client, receipts: Iterable[str], how: str) -> None:
    """Answer these messages in one piece."""
    word = ANSWERS[how]
    command = b"".join([b"PUB %b %d\r\n%b\r\n" % (receipt.encode(), len(word), word) for receipt in receipts])
    await client._send_command(command)


def _let_go(client: Client) -> None:
    """Do what the driver leaves undone where the server does not answer: release the socket and the waiting callers."""
    transport = getattr(client, "_transport", None)
    if transport is not None:
        with suppress(Exception):
            transport.close()
    for waiting in getattr(client, "_resp_map", {}).values():
        waiting.cancel()


class NatsBus(Link):
    """A bus on the account of a `nats://` URL (several servers: separated by `;`)."""

    kind = "nats"

    def __init__(self, url: str, confirm_seconds: float = CONFIRM_SECONDS) -> None:
        super().__init__(confirm_seconds)
        self._servers = [server if "://" in server else f"nats://{server}" for server in url.split(";")]
        self._client: Client | None = None
        self._publisher: Publisher | None = None
        self._subscription: Any = None
        self._ended = asyncio.Event()
        self._unanswered: set[str] = set()
        self._expire = False

    # ---- the connection

    async def _session(self) -> None:
        ended = self._ended = asyncio.Event()

        async def end(*_: object) -> None:
            ended.set()

        async def ignore(_: Exception) -> None:
            """What matters of it ends the session, or the call that it broke."""

        client = Client()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await client.connect(
                    self._servers,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=int(CONNECT_SECONDS),
                    ping_interval=PING_SECONDS,
                    disconnected_cb=end,
                    closed_cb=end,
                    error_cb=ignore,
                )
            await self._serve(client, ended)
        finally:
            publisher, self._publisher, self._client = self._publisher, None, None
            if publisher is not None and ended.is_set():
                publisher.close()
            try:
                await self._leave(client, ended)
            finally:
                if publisher is not None:
                    publisher.close()

    async def _serve(self, client: Client, ended: asyncio.Event) -> None:
        stream = client.jetstream(timeout=CONNECT_SECONDS)
        await self._declare(stream)
        if not self._interest.over:
            self._subscription = await self._subscribe(stream)
        publisher = Publisher(client, ACTIONS, self._confirm_seconds)
        await publisher.open()
        self._publisher, self._client = publisher, client
        self._went_up()
        while not ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), LOOK_SECONDS)
            if not ended.is_set() and not self._interest.over:
                await stream.consumer_info(REPORTS, CONSUMER)

    async def _leave(self, client: Client, ended: asyncio.Event) -> None:
        """Hang up; unanswered messages are given back, where that can still be said."""
        unanswered, self._unanswered = self._unanswered, set()
        self._inbox.clear()
        with suppress(Exception):
            async with asyncio.timeout(0.5 if ended.is_set() else CLOSE_SECONDS):
                await self._stop_receiving()
                await _say(client, unanswered, "nack")
                await client.close()
        _let_go(client)

    def _cut(self) -> None:
        self._ended.set()

    # ---- topology

    async def _declare(self, stream: JetStreamContext) -> None:
        """Make the streams. Those that exist with other settings are used as they are."""
        self._expire = await self._declare_stream(stream, ACTIONS, [queue_name("*", "action")])
        await self._declare_stream(stream, REPORTS, [queue_name("*", kind) for kind in KINDS])

    async def _declare_stream(self, stream: JetStreamContext, name: str, subjects: list[str]) -> bool:
        """Whether its messages may expire."""
        config = StreamConfig(
            name=name,
            subjects=subjects,
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            allow_msg_ttl=True,
        )
        try:
            made = await stream.add_stream(config)
        except BadRequestError:
            made = await stream.stream_info(name)
        return bool(made.config.allow_msg_ttl)

    async def _subscribe(self, stream: JetStreamContext) -> Any:
        config = ConsumerConfig(
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_SECONDS,
            max_ack_pending=RECEIVED_MAX,
            deliver_policy=DeliverPolicy.ALL,
        )
        return await stream.subscribe(
            "scheduler.job.*.*",
            queue=CONSUMER,
            durable=CONSUMER,
            stream=REPORTS,
            config=config,
            manual_ack=True,
            cb=self._heard,
            pending_msgs_limit=2 * RECEIVED_MAX,
            pending_bytes_limit=PENDING_BYTES_MAX,
        )

    # ---- actions

    async def _send(self, job: str, body: bytes, expires_seconds: float) -> None:
        publisher = self._publisher
        if publisher is None:
            raise BusUnavailable(self.problem or "nats: not connected")
        try:
            await publisher.publish(
                subject(job, "action"), body, max(int(expires_seconds), 1) if self._expire else None
            )
        except NoStreamResponseError:
            self._cut()
            raise BusUnavailable(f"nats: there is no stream {ACTIONS}; making it again") from None

    # ---- reports

    async def _heard(self, message: Msg) -> None:
        *_, name, kind = message.subject.split(".")
        if self._interest.over or message.reply in self._unanswered:
            return
        self._unanswered.add(message.reply)
        self._inbox.add(Report(kind, unquote(name), message.data, message.reply))

    async def _answer(self, reports: Sequence[Report], how: str) -> None:
        client = self._client
        receipts = [report.receipt for report in reports if report.receipt in self._unanswered]
        self._unanswered.difference_update(receipts)
        if client is not None and receipts:
            await _say(client, receipts, how)
            await client.flush(int(max(self._confirm_seconds, 1)))

    async def _stop_receiving(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()
            await subscription._conn.flush(int(CLOSE_SECONDS))
