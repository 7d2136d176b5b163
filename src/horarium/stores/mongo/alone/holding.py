"""A standalone server, which has no transactions: one process holds the database, and writes what it intends first.

The hold is a document with a lease by the server's clock, which its process renews; a process that died is succeeded
when the lease has run out. All stores of a process on one database share its hold. Their calls take place at the same
time, as those of nodes do; a transaction of other servers takes place alone. Its writes are stored in the document of
the hold, journaled, provided that the hold is still ours: from then on they count, and are carried out, which may be
done again. An intent left over by a process or a connection that was cut off in the middle is carried out by the next
call before anything else, or by the next process.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from horarium.errors import HorariumError, StoreRefused, StoreUnavailable
from horarium.stores.mongo.alone.turns import Turns
from horarium.stores.mongo.connect import (
    LONG_AGO,
    Location,
    busy_with,
    how_to_become_a_set,
    make_client,
    new_mark,
    translated,
    unjournaled,
)
from horarium.stores.mongo.indexes import INTENTS
from horarium.stores.mongo.writes import Document, Write, carry_out, packed, unpacked

T = TypeVar("T")

HOLD_ID = "hold"
LEASE_SECONDS = 20.0
RENEWED_SECONDS = 4.0
SURE_SECONDS = 14.0
"""After so long without a renewal a process no longer counts on its hold, well before another one may have it."""
LOOK_SECONDS = 0.25
DRAIN_SECONDS = 5.0
PART_BYTES = 8_000_000
"""How much of an intent goes into one document; the server allows 16 MiB."""

_holds: dict[tuple[str, asyncio.AbstractEventLoop], Hold] = {}


async def hold(location: Location) -> Hold:
    """This process's hold of a database, got now unless it has it. Raises StoreRefused if another process has it."""
    key = location.shown, asyncio.get_running_loop()
    held = _holds.get(key)
    if held is None:
        held = _holds[key] = Hold(location)
    held.users += 1
    try:
        await held.begin()
    except BaseException:
        await let_go(held)
        raise
    return held


async def let_go(held: Hold) -> None:
    """Give it back when no store of this process uses it any more."""
    held.users -= 1
    if held.users == 0:
        _holds.pop((held.location.shown, asyncio.get_running_loop()), None)
        await held.end()


class Hold:
    """The hold of one database. `owner`: who we are in its document; `users`: how many stores share it."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.owner = new_mark()
        self.users = 0
        self._client = make_client(location)
        self._database = self._client[location.database]
        self._intents = self._database[INTENTS]
        self._turns = Turns()
        self._starting = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self._sure_until = 0.0
        self._number = 0
        self._left_over = True
        self._in_doubt = True

    # -- having it

    async def begin(self) -> None:
        """Wait until it is ours, unless another process shows that it has it."""
        async with self._starting:
            if self._keeper is not None:
                return
            with translated(self.location):
                never = {"until": LONG_AGO, "number": 0}
                await self._intents.update_one({"_id": HOLD_ID}, {"$setOnInsert": never}, upsert=True)
                seen: Any = None
                while not await self._take():
                    holder = await self._intents.find_one({"_id": HOLD_ID}, {"until": True, "who": True}) or {}
                    until = holder.get("until", LONG_AGO.replace(tzinfo=None))
                    if seen is not None and until > seen:
                        raise StoreRefused(self._held_by(holder))
                    seen = until
                    await asyncio.sleep(LOOK_SECONDS)
            self._keeper = asyncio.get_running_loop().create_task(self._keep())

    def _held_by(self, holder: Document) -> str:
        return (
            f"MongoDB at {self.location.shown} is a standalone server, on which one process works at a time, and "
            f"{holder.get('who', 'another one')} does; end that one, or {how_to_become_a_set(self.location)}"
        )

    async def end(self) -> None:
        """Let another process have it."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        with suppress(HorariumError), translated(self.location):
            if keeper is not None:
                past = {"$set": {"until": LONG_AGO}}
                await self._intents.update_one({"_id": HOLD_ID, "owner": self.owner}, past)
        await self._client.close()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(RENEWED_SECONDS)
            with suppress(HorariumError):
                await self._renew()

    async def _renew(self) -> bool:
        """Whether it is ours: it still was, or is again."""
        began = time.monotonic()
        with translated(self.location):
            until = [{"$set": {"until": {"$add": ["$$NOW", int(LEASE_SECONDS * 1000)]}}}]
            renewed = await self._intents.update_one({"_id": HOLD_ID, "owner": self.owner}, until)
            if not renewed.matched_count:
                return await self._take()
        self._sure_until = began + SURE_SECONDS
        return True

    async def _take(self) -> bool:
        """Have it, if it is free. What its last owner left over is then ours."""
        began = time.monotonic()
        ours = {
            "owner": self.owner,
            "who": {"$literal": f"process {os.getpid()} on {socket.gethostname()}"},
            "until": {"$add": ["$$NOW", int(LEASE_SECONDS * 1000)]},
        }
        free = {"_id": HOLD_ID, "$expr": {"$lt": ["$until", "$$NOW"]}}
        if not (await self._intents.update_one(free, [{"$set": ours}])).matched_count:
            return False
        self._left_over = self._in_doubt = True
        self._sure_until = began + SURE_SECONDS
        return True

    async def make_sure(self) -> None:
        """Raises StoreUnavailable if it may be another one's."""
        if time.monotonic() >= self._sure_until and not await self._renew():
            raise StoreUnavailable(f"MongoDB at {self.location.shown}: another process has taken it over; end this one")

    # -- using it

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """For one call, beside others."""
        async with self._turns.shared():
            while self._left_over:
                async with self._turns.alone():
                    await self.make_sure()
                    if self._left_over:
                        await self._finish()
            await self.make_sure()
            try:
                yield
            except Exception:
                # It may still be under way at the server.
                self._in_doubt = True
                raise

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """For a part of a call, beside no other, when nothing is under way or left over."""
        async with self._turns.alone():
            await self.make_sure()
            if self._left_over:
                await self._finish()
            elif self._in_doubt:
                await self._drain()
            yield

    async def whole(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Read, and write everything that `work` puts into the list that it is given, or nothing."""
        async with self.alone():
            writes: list[Write] = []
            result = await work(writes)
            await self.make_sure()
            if len(writes) == 1 and writes[0].single:
                await carry_out(self._database, writes)
            elif writes:
                await self._commit(writes)
            return result

    async def _commit(self, writes: Sequence[Write]) -> None:
        body = packed(writes)
        in_parts = len(body) > PART_BYTES
        self._left_over = True
        intent = {"parts": await self._store_parts(body)} if in_parts else {"intent": body}
        ours = {"_id": HOLD_ID, "owner": self.owner, "number": self._number}
        if not (await self._intents.update_one(ours, {"$set": intent})).matched_count:
            self._sure_until = 0.0
            raise StoreUnavailable(f"MongoDB at {self.location.shown}: another process has taken it over; end this one")
        await self._carry_out(writes, in_parts=in_parts)
        self._left_over = False

    async def _store_parts(self, body: bytes) -> Any:
        mark = new_mark()
        for start in range(0, len(body), PART_BYTES):
            part = {"of": mark, "start": start, "body": body[start : start + PART_BYTES]}
            await self._intents.insert_one(part)
        return mark

    async def _carry_out(self, writes: Sequence[Write], *, in_parts: bool) -> None:
        """Not journaled until the intent is removed: a journaled write takes along all earlier ones."""
        await carry_out(self._database, writes, unjournaled())
        await forget(self._database, in_parts)

    async def _finish(self) -> None:
        """Carry out left-over intents. An intent that comes late finds another number, and is none."""
        with translated(self.location):
            await self._drain()
            ours = {"_id": HOLD_ID, "owner": self.owner}
            raised = await self._intents.find_one_and_update(ours, {"$inc": {"number": 1}})
            if raised is None:
                self._sure_until = 0.0
                raise StoreUnavailable(f"MongoDB at {self.location.shown}: another process has taken it over")
            self._number = int(raised["number"]) + 1
            await self._carry_out(await left_over(self._database, raised), in_parts=True)
            self._left_over = False

    async def _drain(self) -> None:
        """Wait for calls that were given up here and go on at the server."""
        give_up = time.monotonic() + DRAIN_SECONDS
        while await busy_with(self._client, self.location):
            if time.monotonic() >= give_up:
                raise StoreUnavailable(f"MongoDB at {self.location.shown}: it is still busy with what was given up")
            await asyncio.sleep(LOOK_SECONDS / 10)
        self._in_doubt = False


async def left_over(database: Any, stored: Document, within: Any = None) -> list[Write]:
    """What the document of a hold says that is still to be written."""
    if "intent" in stored:
        return unpacked(stored["intent"])
    if "parts" not in stored:
        return []
    parts = await database[INTENTS].find({"of": stored["parts"]}, session=within).sort({"start": 1}).to_list()
    return unpacked(b"".join(part["body"] for part in parts))


async def forget(database: Any, in_parts: bool = True, within: Any = None) -> None:
    """Remove an intent that is carried out; with `in_parts` the parts of any, also of one that never became one."""
    intents = database[INTENTS]
    await intents.update_one({"_id": HOLD_ID}, {"$unset": {"intent": True, "parts": True}}, session=within)
    if in_parts:
        await intents.delete_many({"of": {"$exists": True}}, session=within)


async def is_held(database: Any) -> bool:
    """Whether a process left a hold behind."""
    return await database[INTENTS].find_one({"_id": HOLD_ID, "owner": {"$exists": True}}, {"_id": True}) is not None


async def succeed(database: Any, within: Any) -> None:
    """The server has become a replica set: carry out what a process left over while it was none, and end its hold."""
    stored = await database[INTENTS].find_one({"_id": HOLD_ID}, session=within)
    if stored is None or "owner" not in stored:
        return
    await carry_out(database, await left_over(database, stored, within), within=within)
    await forget(database, within=within)
    ended = {"$unset": {"owner": True}, "$set": {"until": LONG_AGO}}
    await database[INTENTS].update_one({"_id": HOLD_ID}, ended, session=within)
