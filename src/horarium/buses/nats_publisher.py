"""JetStream publishing in groups: the messages of many runs go out in one write, acknowledged one by one.

nats-py, the driver, makes an inbox, a timer and three coroutines for each message that a stream is to acknowledge; that
costs more than all the rest of a run. Here the commands are put together from parts that stay the same, handed to the
driver as one block for all that has gathered, and the stream's answers are looked up by a number in their subject, as
they are read. One timer looks after all that waits. Connection and parser stay the driver's.

A message that was not handed to the driver was certainly not taken; the fate of any other is known from the stream's
answer alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import MaxPayloadError
from nats.js.errors import NoStreamResponseError

from horarium.errors import BusUnavailable
from horarium.ports import Unconfirmed

WRITE_BYTES_MAX = 256 * 1024
"""How much goes out in one write, about."""
AT_ONCE = 50
"""While fewer are unanswered, a message goes out at once; beyond, when as many wait as are unanswered. So answers that
drip in let messages go out in groups, and not one by one."""
NO_RESPONDERS = "503"
CLOSED = "the connection is closed"


class Message(NamedTuple):
    """One that waits to be written."""

    number: int
    subject: str
    body: bytes
    ttl_seconds: int | None


class Sent(NamedTuple):
    """One that waits for the stream's answer."""

    confirmed: asyncio.Future[None]
    ends_at: float


class PublishReply(Struct):
    """The answer of a stream that did not take the message."""

    error: Any = None


_answer = msgspec.json.Decoder(PublishReply).decode


class Publisher:
    """All publishing to one stream on one connection. Every message names the stream that it expects.

    To the driver it is a future that waits for a message: `set_result` is called for each of the stream's answers, as
    it is read. A callback would cost a queue and a task.
    """

    def __init__(self, client: Client, stream: str, confirm_seconds: float) -> None:
        self._client = client
        self._stream = stream
        self._confirm_seconds = confirm_seconds
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._waiting: deque[Message] = deque()
        self._sent: dict[int, Sent] = {}
        self._some = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._prefix = f"{client.new_inbox()}."

    async def open(self) -> None:
        """Listen to the stream's answers."""
        taker: Any = self
        await self._client.subscribe(f"{self._prefix}*", future=taker)
        self._writing = self._loop.create_task(self._write(), name="horarium-nats-publisher")

    def close(self) -> None:
        """Write nothing more. Waiting messages were not sent; whether the rest was taken is unknown."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        self._refuse()
        sent, self._sent = self._sent, {}
        for confirmed, _ in sent.values():
            if not confirmed.done():
                confirmed.set_exception(Unconfirmed(f"nats: {CLOSED}, and no confirmation came"))

    def publish(self, subject: str, body: bytes, ttl_seconds: int | None) -> asyncio.Future[None]:
        """Send soon. The future ends with the stream's acknowledgement. It raises BusUnavailable if the stream did not
        take it, or if it was not sent, NoStreamResponseError if there is no such stream, TimeoutError if no answer came
        in time."""
        confirmed: asyncio.Future[None] = self._loop.create_future()
        if self._writing is None or self._writing.done() or self._client.is_closed:
            confirmed.set_exception(_not_sent(CLOSED))
            return confirmed
        if len(_header(self._stream, ttl_seconds)) + len(body) > self._client.max_payload:
            confirmed.set_exception(_not_sent(str(MaxPayloadError())))
            return confirmed
        number = next(self._numbers)
        ends_at = self._loop.time() + self._confirm_seconds
        self._sent[number] = Sent(confirmed, ends_at)
        self._waiting.append(Message(number, subject, body, ttl_seconds))
        self._go()
        if self._timer is None:
            self._timer = self._loop.call_at(ends_at, self._look)
        return confirmed

    # ---- out

    def _go(self) -> None:
        """Write, if it is time to."""
        waiting = len(self._waiting)
        if waiting and len(self._sent) - waiting < max(waiting, AT_ONCE):
            self._some.set()

    async def _write(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                block = self._gather()
                if block:
                    await self._client._send_command(block)
                    await self._client._flush_pending()

    def _gather(self) -> bytes:
        """The commands of waiting messages, as many as one write may hold."""
        if not self._client.is_connected:
            self._refuse()
            return b""
        parts: list[bytes] = []
        size = 0
        while self._waiting and size < WRITE_BYTES_MAX:
            message = self._waiting.popleft()
            sent = self._sent.get(message.number)
            if sent is not None and not sent.confirmed.done():
                parts.append(self._command(message))
                size += len(parts[-1])
        return b"".join(parts)

    def _command(self, message: Message) -> bytes:
        header, body = _header(self._stream, message.ttl_seconds), message.body
        sizes = len(header), len(header) + len(body)
        head = f"HPUB {message.subject} {self._prefix}{message.number} {sizes[0]} {sizes[1]}\r\n"
        return b"%b%b%b\r\n" % (head.encode(), header, body)

    def _refuse(self) -> None:
        """Waiting messages are not sent."""
        while self._waiting:
            sent = self._sent.pop(self._waiting.popleft().number, None)
            if sent is not None and not sent.confirmed.done():
                sent.confirmed.set_exception(_not_sent(CLOSED))

    # ---- back

    def cancelled(self) -> bool:
        """As the driver asks before it gives a message: never."""
        return False

    def set_result(self, message: Msg) -> None:
        """An answer of the stream, or of the server where there is no such stream."""
        number = message.subject[len(self._prefix) :]
        sent = self._sent.pop(int(number), None) if number.isdecimal() else None
        self._go()
        if sent is None or sent.confirmed.done():
            return
        error = _error(message)
        if error is None:
            sent.confirmed.set_result(None)
        else:
            sent.confirmed.set_exception(error)

    def _look(self) -> None:
        """End messages that have waited for too long, and look again when the next one has. (They wait in the order of
        their numbers.)"""
        self._timer = None
        now = self._loop.time()
        while self._sent:
            number, (confirmed, ends_at) = next(iter(self._sent.items()))
            if ends_at > now:
                self._timer = self._loop.call_at(ends_at, self._look)
                return
            del self._sent[number]
            if not confirmed.done():
                confirmed.set_exception(TimeoutError())
        self._go()


def _error(message: Msg) -> Exception | None:
    """Why the stream did not take it; None: it did."""
    if message.headers and message.headers.get("Status") == NO_RESPONDERS:
        return NoStreamResponseError()
    try:
        answer = _answer(message.data)
    except msgspec.MsgspecError as error:
        return Unconfirmed(f"nats: the stream's answer can't be read: {error}")
    return None if answer.error is None else BusUnavailable(f"nats: the message was not taken: {answer.error}")


def _not_sent(reason: str) -> BusUnavailable:
    return BusUnavailable(f"nats: {reason}; the message was not sent")


@lru_cache(maxsize=256)
def _header(stream: str, ttl_seconds: int | None) -> bytes:
    ttl = "" if ttl_seconds is None else f"Nats-TTL: {ttl_seconds}\r\n"
    return f"NATS/1.0\r\nNats-Expected-Stream: {stream}\r\n{ttl}\r\n".encode()
