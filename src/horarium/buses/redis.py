"""Redis Streams: one stream each for a job's actions, statuses and heartbeats, under the wire's own names.

An entry has the field `body`; an action also `expires_at`, in ms of the server's time. Workers read actions through a
consumer group of theirs, created from id 0, and delete what they have acknowledged; all nodes read reports through the
group `horarium`. A confirmed action is as durable as
Redis itself: with `appendfsync everysec`, a crash may forget the last second of it, which the run's lease makes good.

Redis knows no messages that expire, and workers that are slower than the leases would for ever be given actions that
have been replaced: so a publisher clears the expired ones away first (`clear.lua`). Nor does it know "not now": a
message that is given back is put at the stream's end again in the transaction that acknowledges it. What a node took
and never answered is claimed by another after a while. Actions of many runs share one round trip. The driver's own
repetitions are off: they would send an action twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from os import urandom
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from horarium.buses.link import CLOSE_SECONDS, CONFIRM_SECONDS, CONNECT_SECONDS, KINDS, Link, end, queue_name
from horarium.errors import BusUnavailable
from horarium.ports import RECEIVED_MAX, Report, Unconfirmed

GROUP = "horarium"
FIELD, EXPIRES_AT = b"body", b"expires_at"
CLEAR = files("horarium.buses").joinpath("clear.lua").read_text()
ACTIONS_MAX = 100_000
"""Actions that a stream keeps, about: where no worker deletes them, the oldest go. Leases bring lost ones back."""
BATCH = 500
CLEAR_SECONDS = 0.5
"""How often the expired actions of a stream are cleared away, while actions are published to it."""
STREAMS_MAX = 500
"""Streams that are read with one command."""
BLOCK_SECONDS = 0.25
PAUSE_SECONDS = 0.1
RECLAIM_SECONDS = 5.0
IDLE_SECONDS = 10.0
"""After this a report that a node took and never answered goes to another."""

log = logging.getLogger("horarium")


class Sending(NamedTuple):
    """An action on its way."""

    key: str
    body: bytes
    expires_seconds: float
    done: asyncio.Future[None]


class Receipt(NamedTuple):
    """Where a report is."""

    key: str
    entry: bytes


class RedisBus(Link):
    """A bus on the database of a `redis://` or `rediss://` URL."""

    kind = "redis"

    def __init__(self, url: str, confirm_seconds: float = CONFIRM_SECONDS) -> None:
        super().__init__(confirm_seconds)
        self._url = url
        self._name = f"node-{urandom(8).hex()}"
        self._writer: Any = None
        self._sendings: deque[Sending] = deque()
        self._queued = asyncio.Event()
        self._ended = asyncio.Event()
        self._room = asyncio.Event()
        self._receiving = asyncio.Lock()
        self._held: dict[Receipt, bytes] = {}
        self._grouped: set[str] = set()
        self._odd: dict[str, float] = {}
        self._cleared: dict[str, float] = {}
        self._ahead_seconds = 0.0

    # ---- the connection

    async def _session(self) -> None:
        ended = self._ended = asyncio.Event()
        writer, reader = self._client(self._confirm_seconds), self._client(self._confirm_seconds + BLOCK_SECONDS)
        tasks: list[asyncio.Task[Any]] = []
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                # The driver leaks a socket when it is cancelled while it connects: both connect here, in peace.
                (seconds, micros), _ = await asyncio.gather(writer.time(), reader.ping())
            self._writer = writer
            self._grouped.clear()
            self._cleared.clear()
            loop = asyncio.get_running_loop()
            self._ahead_seconds = seconds + micros / 1e6 - loop.time()
            tasks = [loop.create_task(part) for part in (ended.wait(), self._write(writer), self._read(reader))]
            self._went_up()
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._writer = None
            await self._leave(tasks, writer, reader)

    def _client(self, seconds: float) -> Any:
        return Redis.from_url(
            self._url,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=seconds,
            single_connection_client=False,
            retry=Retry(NoBackoff(), 0),
        )

    async def _leave(self, tasks: list[asyncio.Task[Any]], writer: Any, reader: Any) -> None:
        """Hang up; unanswered messages are given back, where that can still be said."""
        if tasks:
            await end(tasks, 0.1)
        while self._sendings:
            _fail(self._sendings.popleft(), BusUnavailable("redis: the connection was lost"))
        held, self._held = self._held, {}
        self._inbox.clear()
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_SECONDS if self._keeper is None else 0.5):
                await self._give_back(writer, held)
        for client in (writer, reader):
            with suppress(Exception):
                async with asyncio.timeout(1.0):
                    await client.aclose()

    def _cut(self) -> None:
        self._ended.set()

    # ---- actions

    async def _send(self, job: str, body: bytes, expires_seconds: float) -> None:
        if self._writer is None:
            raise BusUnavailable(self.problem or "redis: not connected")
        done = asyncio.get_running_loop().create_future()
        sending = Sending(queue_name(job, "action"), body, expires_seconds, done)
        self._sendings.append(sending)
        self._queued.set()
        async with asyncio.timeout(self._confirm_seconds):
            await done

    async def _write(self, writer: Any) -> None:
        """Send the gathered messages, batch by batch."""
        while True:
            await self._queued.wait()
            self._queued.clear()
            while self._sendings:
                count = min(len(self._sendings), BATCH)
                batch = [self._sendings.popleft() for _ in range(count)]
                await self._write_batch(writer, [sending for sending in batch if not sending.done.done()])

    async def _write_batch(self, writer: Any, batch: list[Sending]) -> None:
        pipe = writer.pipeline(transaction=False)
        now = asyncio.get_running_loop().time()
        for sending in batch:
            expires_at = int((now + self._ahead_seconds + sending.expires_seconds) * 1000)
            entry = {FIELD: sending.body, EXPIRES_AT: expires_at}
            pipe.xadd(sending.key, entry, maxlen=ACTIONS_MAX, approximate=True)
        self._cleared = {key: at for key, at in self._cleared.items() if now < at + CLEAR_SECONDS}
        for key in {sending.key for sending in batch}:
            if key not in self._cleared:
                self._cleared[key] = now
                pipe.eval(CLEAR, 1, key)
        try:
            answers = await pipe.execute(raise_on_error=False)
        except BaseException as error:
            for sending in batch:
                _fail(sending, Unconfirmed(f"redis: no confirmation came: {str(error) or type(error).__name__}"))
            raise
        # After them come the answers of `clear.lua`: where it can't clear, expired actions stay as long as they fit.
        for sending, answer in zip(batch, answers, strict=False):
            if isinstance(answer, Exception):
                _fail(sending, BusUnavailable(f"redis: the message was not taken: {answer}"))
            elif not sending.done.done():
                sending.done.set_result(None)

    # ---- reports

    async def _read(self, reader: Any) -> None:
        """Receive, as far as there is room."""
        loop = asyncio.get_running_loop()
        reclaim_at = 0.0
        while self._writer is not None:
            self._room.clear()
            keys = [queue_name(job, kind) for job in sorted(self._interest.jobs) for kind in KINDS]
            room = RECEIVED_MAX - len(self._held)
            if not keys or room <= 0:
                await self._idle()
                continue
            async with self._receiving:
                keys = await self._group(reader, keys)
                if loop.time() >= reclaim_at:
                    reclaim_at = loop.time() + RECLAIM_SECONDS
                    await self._reclaim(reader, keys)
                got = await self._receive(reader, keys, room)
            if not got and not 0 < len(keys) <= STREAMS_MAX:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _idle(self) -> None:
        self._interest.changed.clear()
        waits = [asyncio.ensure_future(event.wait()) for event in (self._interest.changed, self._room)]
        try:
            await asyncio.wait(waits, timeout=BLOCK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _group(self, reader: Any, keys: list[str]) -> list[str]:
        """Make the groups that are missing. The keys to be read: a key that holds no stream is left out for a while."""
        now = asyncio.get_running_loop().time()
        missing = [key for key in keys if key not in self._grouped and now >= self._odd.get(key, now)]
        for start in range(0, len(missing), STREAMS_MAX):
            part = missing[start : start + STREAMS_MAX]
            pipe = reader.pipeline(transaction=False)
            for key in part:
                pipe.xgroup_create(key, GROUP, id="0", mkstream=True)
            for key in {key.rpartition(".")[0] for key in part}:
                # A stream of actions with nothing on it: a worker may make its group before the first one comes.
                pipe.xgroup_create(f"{key}.action", GROUP, id="0", mkstream=True)
                pipe.xgroup_destroy(f"{key}.action", GROUP)
            answers = await pipe.execute(raise_on_error=False)
            for answer in answers:
                if isinstance(answer, Exception) and not str(answer).startswith(("BUSYGROUP", "WRONGTYPE")):
                    raise answer
            # After them come those about the streams of actions: a publisher is told.
            for key, answer in zip(part, answers, strict=False):
                self._sort(key, isinstance(answer, Exception) and str(answer).startswith("WRONGTYPE"), now)
        return [key for key in keys if key in self._grouped]

    def _sort(self, key: str, odd: bool, now: float) -> None:
        if not odd:
            self._odd.pop(key, None)
            self._grouped.add(key)
            return
        if key not in self._odd:
            log.warning("redis: %s holds no stream: no report of this job is heard until it is deleted", key)
        self._odd[key] = now + RECLAIM_SECONDS

    async def _receive(self, reader: Any, keys: list[str], room: int) -> bool:
        """Read each stream once. Whether anything came."""
        got = False
        block = int(BLOCK_SECONDS * 1000) if len(keys) <= STREAMS_MAX and not self._interest.over else None
        for start in range(0, len(keys), STREAMS_MAX):
            part = keys[start : start + STREAMS_MAX]
            count = max(1, min(BATCH, room // len(keys)))
            try:
                answer = await reader.xreadgroup(GROUP, self._name, dict.fromkeys(part, ">"), count=count, block=block)
            except ResponseError as error:
                if "NOGROUP" not in str(error):
                    raise
                self._grouped.clear()
                return got
            for key, entries in _pairs(answer):
                got = True
                self._take_in(_text(key), entries)
        return got

    async def _reclaim(self, reader: Any, keys: list[str]) -> None:
        """Take over what another node took and never answered."""
        for start in range(0, len(keys), STREAMS_MAX):
            part = keys[start : start + STREAMS_MAX]
            pipe = reader.pipeline(transaction=False)
            for key in part:
                pipe.xautoclaim(key, GROUP, self._name, int(IDLE_SECONDS * 1000), "0-0", count=100)
            for key, answer in zip(part, await pipe.execute(raise_on_error=False), strict=True):
                if not isinstance(answer, Exception):
                    self._take_in(key, answer[1])

    def _take_in(self, key: str, entries: Any) -> None:
        job, _, kind = key.removeprefix("scheduler.job.").rpartition(".")
        for entry, fields in entries:
            receipt = Receipt(key, entry)
            if receipt not in self._held and fields:
                body = fields.get(FIELD, b"")
                self._held[receipt] = body
                self._inbox.add(Report(kind, job, body, receipt))

    async def _answer(self, reports: Sequence[Report], how: str) -> None:
        held = {report.receipt: self._held.pop(report.receipt) for report in reports if report.receipt in self._held}
        self._room.set()
        writer = self._writer
        if writer is None or not held:
            return
        if how == "nack":
            await self._give_back(writer, held)
            return
        pipe = writer.pipeline(transaction=False)
        for key, entries in _by_key(held).items():
            pipe.xack(key, GROUP, *entries)
            pipe.xdel(key, *entries)
        await pipe.execute()

    async def _give_back(self, writer: Any, held: dict[Receipt, bytes]) -> None:
        if not held:
            return
        pipe = writer.pipeline(transaction=True)
        for receipt, body in held.items():
            pipe.xack(receipt.key, GROUP, receipt.entry)
            pipe.xdel(receipt.key, receipt.entry)
            pipe.xadd(receipt.key, {FIELD: body})
        await pipe.execute()

    async def _stop_receiving(self) -> None:
        """Wait for the read under way, which may still bring something."""
        async with self._receiving:
            return


def _by_key(held: dict[Receipt, bytes]) -> dict[str, list[bytes]]:
    keys: dict[str, list[bytes]] = {}
    for receipt in held:
        keys.setdefault(receipt.key, []).append(receipt.entry)
    return keys


def _pairs(answer: Any) -> Any:
    """The streams of an answer: a list of pairs, or a mapping of lists, as the protocol's version has it."""
    if isinstance(answer, dict):
        return [(key, [entry for entries in parts for entry in entries]) for key, parts in answer.items()]
    return answer or ()


def _text(key: Any) -> str:
    return key.decode() if isinstance(key, bytes) else str(key)


def _fail(sending: Sending, error: BusUnavailable) -> None:
    if not sending.done.done():
        sending.done.set_exception(error)
        sending.done.exception()
