"""RabbitMQ publishing in groups: the messages of many runs go out in one write, confirmed one by one.

aiormq, the driver, locks, encodes and writes message by message; that costs more than all the rest of a run. Here the
frames (AMQP 0-9-1, sections 2.3.5 and 4.2) are put together from parts that stay the same, and handed to the driver as
one block for all that has gathered. Confirmations, returns and the end of the channel stay the driver's: it finds what
it expects in its own tables (`confirmations`, `message_id_delivery_tag`), as after a publish of its own.

Delivery tags count the messages on the wire, so nothing else publishes on this channel.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import lru_cache
from itertools import count
from struct import Struct as Layout
from typing import Any, NamedTuple

from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from aiormq.exceptions import ChannelInvalidStateError

WRITE_BYTES_MAX = 256 * 1024
"""How much goes out in one write, about."""
PERSISTENT = 2
METHOD, HEADER, BODY = 1, 2, 3
END = b"\xce"
BASIC, PUBLISH = 60, 40
MANDATORY = 1
CONTENT_TYPE, DELIVERY_MODE, EXPIRATION, MESSAGE_ID = 1 << 15, 1 << 12, 1 << 8, 1 << 7
FLAGS = CONTENT_TYPE | DELIVERY_MODE | EXPIRATION | MESSAGE_ID
JSON = b"application/json"

_frame = Layout(">BHI").pack
_publish = Layout(">HHH").pack
_header = Layout(">HHQH").pack


class Message(NamedTuple):
    """One that waits to be written."""

    exchange: str
    routing_key: str
    body: bytes
    expires_ms: int
    confirmed: asyncio.Future[Any]


class Publisher:
    """All publishing on one channel with confirms. Messages are JSON, persistent and mandatory."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._waiting: deque[Message] = deque()
        self._some = asyncio.Event()
        self._ids = count(1)
        self._writing = asyncio.get_running_loop().create_task(self._write(), name="horarium-amqp-publisher")

    def close(self) -> None:
        """Write nothing more. Waiting messages were not sent."""
        self._writing.cancel()
        while self._waiting:
            _refuse(self._waiting.popleft().confirmed)

    def publish(self, exchange: str, routing_key: str, body: bytes, expires_ms: int) -> asyncio.Future[Any]:
        """Send soon. The future ends with the broker's confirmation. It raises PublishError if no queue took it,
        DeliveryError if the broker refused it, ChannelInvalidStateError if it was not sent."""
        confirmed = self._channel.create_future()
        if self._channel.is_closed or self._writing.done():
            _refuse(confirmed)
            return confirmed
        self._waiting.append(Message(exchange, routing_key, body, expires_ms, confirmed))
        self._some.set()
        return confirmed

    async def _write(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                block = b"".join(self._gather())
                if block:
                    await self._channel.write_queue.put(ChannelFrame(block, should_close=False))

    def _gather(self) -> list[bytes]:
        """The frames of waiting messages, as many as one write may hold, each message entered with the driver."""
        parts: list[bytes] = []
        size = 0
        while self._waiting and size < WRITE_BYTES_MAX:
            message = self._waiting.popleft()
            if not message.confirmed.done():
                size += len(message.body)
                parts += self._frames(message, self._enter(message.confirmed))
        return parts

    def _enter(self, confirmed: asyncio.Future[Any]) -> str:
        """Count the message and have its confirmation awaited. Its id, by which it is known if it comes back."""
        channel, message_id = self._channel, f"{next(self._ids):x}"
        channel.delivery_tag += 1
        channel.confirmations[channel.delivery_tag] = confirmed
        channel.message_id_delivery_tag[message_id] = channel.delivery_tag
        confirmed.add_done_callback(lambda _: channel.message_id_delivery_tag.pop(message_id, None))
        return message_id

    def _frames(self, message: Message, message_id: str) -> list[bytes]:
        number, body = self._channel.number, message.body
        name = message_id.encode()
        header = b"".join(
            (
                _header(BASIC, 0, len(body), FLAGS),
                _properties(message.expires_ms),
                bytes((len(name),)),
                name,
            )
        )
        parts = [
            _method_frame(number, message.exchange, message.routing_key),
            _frame(HEADER, number, len(header)),
            header,
            END,
        ]
        most = self._channel.max_content_size
        for start in range(0, len(body), most):
            piece = body[start : start + most] if len(body) > most else body
            parts += (_frame(BODY, number, len(piece)), piece, END)
        return parts


@lru_cache(maxsize=1024)
def _method_frame(number: int, exchange: str, routing_key: str) -> bytes:
    payload = _publish(BASIC, PUBLISH, 0) + _short(exchange) + _short(routing_key) + bytes((MANDATORY,))
    return _frame(METHOD, number, len(payload)) + payload + END


@lru_cache(maxsize=256)
def _properties(expires_ms: int) -> bytes:
    """Those before the message's id, in the order of their flags."""
    return _short(JSON.decode()) + bytes((PERSISTENT,)) + _short(str(expires_ms))


def _short(text: str) -> bytes:
    encoded = text.encode()
    return bytes((len(encoded),)) + encoded


def _refuse(confirmed: asyncio.Future[Any]) -> None:
    if not confirmed.done():
        confirmed.set_exception(ChannelInvalidStateError("the channel is closed; the message was not sent"))
