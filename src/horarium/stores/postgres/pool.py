"""Connections, and how a call is carried out on one.

A call runs in a task of its own: if the caller is cancelled, the call goes on. It has a connection to itself, which
goes back afterwards only if it is sound: a failure other than an error answer of the server leaves the connection in an
unknown state, so it is closed and replaced by the next call. A transaction that the server rolled back (deadlock,
serialization) is tried again at once, and then twice after a pause: the other one may be slow to take its locks. Where
that is a normal thing, it is tried more often.

The connection that was used last is used next: it has planned most statements. A call that finds none idle opens one.

Not the driver's pool: that one makes a task, a proxy and a reset of each call, which is a fifth of a small call's CPU.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from horarium.errors import BrokenInvariant, StoreUnavailable
from horarium.stores.calls import Calls
from horarium.stores.postgres.connect import Connection, Location, connect, driver, is_rolled_back, translated

T = TypeVar("T")

CLOSE_SECONDS = 2.0
PAUSES = (0.0, 0.1, 0.5)
"""Seconds."""


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
        self._idle: list[Connection] = []
        self._places = asyncio.Semaphore(location.connections_max)
        self._calls = Calls()
        self.open = True

    async def call(self, work: Callable[[Connection], Awaitable[T]], *, transaction: bool | str) -> T:
        """`work` on a connection; in a transaction if asked (of this isolation, or of the location's), and always
        behind a pooler. Raises StoreUnavailable."""
        if not self.open:
            raise StoreUnavailable(f"the store at {self.location.shown} is closed; open it first")
        isolation = transaction if isinstance(transaction, str) else self.location.isolation
        together = transaction or self.location.pooler
        return await self._calls.see_through(self._carry_out(work, isolation if together else None))

    async def _carry_out(self, work: Callable[[Connection], Awaitable[T]], isolation: str | None) -> T:
        async with self._places:
            with translated(self.location):
                for pause in self._pauses:
                    try:
                        return await self._once(work, isolation)
                    except driver().PostgresError as error:
                        if not is_rolled_back(error):
                            raise
                    if pause:
                        await asyncio.sleep(pause * (0.5 + self._entropy(1)[0] / 255))
                return await self._once(work, isolation)

    async def _once(self, work: Callable[[Connection], Awaitable[T]], isolation: str | None) -> T:
        connection = self._sound() or await self._connect()
        try:
            if isolation is None:
                result = await work(connection)
            else:
                async with connection.transaction(isolation=isolation):
                    result = await work(connection)
        except BaseException as error:
            self._after(connection, error)
            raise
        self._idle.append(connection)
        return result

    async def _connect(self) -> Connection:
        return await connect(self.location)

    def _sound(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    def _after(self, connection: Connection, error: BaseException) -> None:
        """An error of the server's own leaves the connection usable, unless it ends the session or its plans."""
        state = getattr(error, "sqlstate", None) or ""
        lasting = isinstance(error, driver().PostgresError) and state[:2] in ("40", "23", "53")
        if lasting and not connection.is_closed() and not connection.is_in_transaction():
            self._idle.append(connection)
            return
        connection.terminate()
        if not isinstance(error, (BrokenInvariant, StoreUnavailable)) and not lasting:
            # What happened to one has probably happened to all.
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
