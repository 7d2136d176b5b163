"""Connections, and how a call is carried out on one.

A call runs in a task of its own: if the caller is cancelled, the call goes on. It has a connection to itself, which
goes back afterwards only if it is sound: a failure other than an error answer of the server leaves the connection in an
unknown state, so it is closed and replaced by the next call. A transaction that the server rolled back (deadlock,
serialization) is tried again at once, and then twice after a pause: the other one may be slow to take its locks. Where
that is a normal thing, it is tried more often.

Each connection plans each statement for itself, which takes the server milliseconds for a claim. So claims, and ends of
attempts, keep to a connection of their own (their kind of call), as long as they do not overlap.

To open a connection takes the server longer than most calls do. So a call that finds all in use waits for one of
them; only the first of its kind does not. Another is opened where calls have been waiting for a moment, and then one
after the other: the services of a node, which all begin at once, share few.

Not the driver's pool: that one asks the server to reset a connection after every use, which would double the round
trips, and waits for a stalled server where we must not.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from horarium.errors import BrokenInvariant, StoreUnavailable
from horarium.stores.calls import Calls
from horarium.stores.postgres.connect import Connection, Location, connect, driver, is_rolled_back, translated

T = TypeVar("T")

CLOSE_SECONDS = 2.0
PAUSES = (0.0, 0.1, 0.5)
"""Seconds."""
SOON_SECONDS = 0.02
"""For so long calls wait for connections that are in use before one of them opens another."""


class Pool:
    """At most `location.connections_max` connections, opened when they are needed. `pauses`: how many seconds pass
    before each further attempt at a rolled-back transaction, on average: transactions that met must not meet again."""

    def __init__(
        self,
        location: Location,
        pauses: Sequence[float] = PAUSES,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.location = location
        self._pauses = pauses
        self._entropy = entropy
        self._idle: deque[Connection] = deque()
        self._homes: dict[str, Connection] = {}
        """Where the last call of each kind was made."""
        self._line: deque[asyncio.Future[Connection | None]] = deque()
        """Calls that wait for a connection; each gets one, or None: it is to open another."""
        self._more: asyncio.TimerHandle | None = None
        self._used = 0
        """Calls that have a connection, or open one."""
        self._places = asyncio.Semaphore(location.connections_max)
        self._calls = Calls()
        self.open = True
        self.opened = 0
        """How many connections were opened in all."""

    async def call(self, work: Callable[[Connection], Awaitable[T]], *, transaction: bool, kind: str = "") -> T:
        """`work` on a connection; in a transaction if asked, and always behind a pooler. Raises StoreUnavailable. Calls
        of one kind are made where the last was, if that is idle."""
        if not self.open:
            raise StoreUnavailable(f"the store at {self.location.shown} is closed; open it first")
        return await self._calls.see_through(self._carry_out(work, transaction or self.location.pooler, kind))

    async def _carry_out(self, work: Callable[[Connection], Awaitable[T]], transaction: bool, kind: str) -> T:
        async with self._places:
            with translated(self.location):
                for pause in self._pauses:
                    try:
                        return await self._once(work, transaction, kind)
                    except driver().PostgresError as error:
                        if not is_rolled_back(error):
                            raise
                    if pause:
                        await asyncio.sleep(pause * (0.5 + self._entropy(1)[0] / 255))
                return await self._once(work, transaction, kind)

    async def _once(self, work: Callable[[Connection], Awaitable[T]], transaction: bool, kind: str) -> T:
        connection = self._sound(kind)
        if connection is None and self._used and kind in self._homes:
            connection = await self._awaited()
        self._homes.setdefault(kind, connection)
        self._used += 1
        try:
            return await self._with(connection or await self._connect(), work, transaction, kind)
        finally:
            self._used -= 1

    async def _with(
        self, connection: Connection, work: Callable[[Connection], Awaitable[T]], transaction: bool, kind: str
    ) -> T:
        self._homes[kind] = connection
        try:
            if not transaction:
                result = await work(connection)
            else:
                async with connection.transaction(isolation=self.location.isolation):
                    result = await work(connection)
        except BaseException as error:
            self._after(connection, error)
            raise
        self._hand_on(connection)
        return result

    async def _awaited(self) -> Connection | None:
        """The first that another call is done with; None: that takes too long."""
        self._line.append(waiter := asyncio.get_running_loop().create_future())
        if self._more is None:
            self._more = asyncio.get_running_loop().call_later(SOON_SECONDS, self._open_more)
        connection = await waiter
        return None if connection is None or connection.is_closed() else connection

    def _hand_on(self, connection: Connection | None) -> None:
        """To the first call that waits for one. None: to let it open one."""
        while self._line:
            waiter = self._line.popleft()
            if not self._line and self._more is not None:
                self._more.cancel()
                self._more = None
            if not waiter.done():
                waiter.set_result(connection)
                return
        if connection is not None:
            self._idle.append(connection)

    def _open_more(self) -> None:
        self._more = asyncio.get_running_loop().call_later(SOON_SECONDS, self._open_more)
        self._hand_on(None)

    async def _connect(self) -> Connection:
        self.opened += 1
        return await connect(self.location)

    def _sound(self, kind: str) -> Connection | None:
        while self._idle:
            connection = self._home(kind)
            self._idle.remove(connection)
            if not connection.is_closed():
                return connection
        return None

    def _home(self, kind: str) -> Connection:
        """Which of those that are idle is the best for calls of this kind: the last one, else one that no other kind
        has for its own. What a connection knows of statements it has to learn on each for itself."""
        last, homes = self._homes.get(kind), self._homes.values()
        if last in self._idle:
            return last
        return next((one for one in reversed(self._idle) if one not in homes), self._idle[-1])

    def _after(self, connection: Connection, error: BaseException) -> None:
        """An error of the server's own leaves the connection usable, unless it ends the session or its plans."""
        state = getattr(error, "sqlstate", None) or ""
        lasting = isinstance(error, driver().PostgresError) and state[:2] in ("40", "23", "53")
        if lasting and not connection.is_closed() and not connection.is_in_transaction():
            self._hand_on(connection)
            return
        connection.terminate()
        self._hand_on(None)
        if not isinstance(error, (BrokenInvariant, StoreUnavailable)) and not lasting:
            # What happened to one has probably happened to all.
            self._drop_idle()

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().terminate()

    async def close(self) -> None:
        """Carry out the calls handed over, then disconnect."""
        self.open = False
        await self._calls.all_over()
        await asyncio.gather(*(_disconnect(connection) for connection in self._idle))
        self._idle.clear()


async def _disconnect(connection: Connection) -> None:
    try:
        await connection.close(timeout=CLOSE_SECONDS)
    except (OSError, TimeoutError, driver().InterfaceError, driver().PostgresError):
        connection.terminate()
