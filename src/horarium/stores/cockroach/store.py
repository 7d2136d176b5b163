"""`ports.Store` over CockroachDB: the PostgreSQL store, where it differs.

What adds jobs or runs is one transaction, since nothing in the server does it in one statement. A claim first looks,
in a transaction apart, so that what it saw can't become a conflict; then it takes runs from locked rows. The look
overtakes writers, as lists do: here a reader waits for a transaction that has written what it reads, and such a one may
be a caller's own (`add_runs_in`), open for as long as the caller likes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from horarium.clock import Instant
from horarium.errors import InvalidRequest
from horarium.model import Level as PortLevel
from horarium.model import Run
from horarium.model.records import Record, RecordFilter
from horarium.ports import NOTHING_ALONG, Along, Claimed, Page, Placeholders, RunFilter
from horarium.stores.cockroach.connect import PAUSES, parse_cockroach_url
from horarium.stores.cockroach.migrate import PACKAGE, migrate
from horarium.stores.cockroach.session import CockroachSession
from horarium.stores.migrations import known_migrations
from horarium.stores.postgres import claim, listing, records, runs
from horarium.stores.postgres.claim import Level
from horarium.stores.postgres.connect import Connection, Location, teach_arrays
from horarium.stores.postgres.elsewhere import is_asyncpg
from horarium.stores.postgres.pool import Pool
from horarium.stores.postgres.session import Session
from horarium.stores.postgres.store import TIME, PostgresStore

T = TypeVar("T")


class CockroachStore(PostgresStore):
    """A store in a CockroachDB, version 22.2 or newer. For its methods see `ports.Store`; for the forms of `url`,
    `connect.parse_cockroach_url`."""

    _server_time = f"SELECT NULL, {TIME}"
    _overtakes = False
    """Whether looks are made with high priority."""

    @staticmethod
    def _parse_url(url: str) -> Location:
        return parse_cockroach_url(url)

    async def _locate(self) -> Location:
        return self.location

    def _new_pool(self) -> Pool:
        return Pool(self.location, PAUSES)

    async def _migrate(self, pool: Pool) -> None:
        known, shown = known_migrations(PACKAGE), self.location.shown
        await pool.call(lambda connection: migrate(connection, known, shown), transaction=False)

    async def _find_namespace(self, connection: Connection) -> int:
        number = await super()._find_namespace(connection)
        rows = await connection.fetch("SELECT version()")
        # A PostgreSQL that is used in its place, as in tests, knows no priorities, and its readers do not wait.
        self._overtakes = "CockroachDB" in rows[0][0]
        await self._session(connection).change("intern_gates", number)
        return number

    def _session(self, connection: Connection) -> Session:
        return CockroachSession(connection, self._namespace_id, self._memory)

    async def add_runs(self, runs_: Sequence[Run], along: Along = NOTHING_ALONG) -> list[bool]:
        with runs.keys_waited_for(runs_):
            return (
                await self._call(lambda session: runs.add_runs(session, runs_, along), transaction=True)
                if runs_
                else []
            )

    async def add_runs_in(self, connection: Any, runs_: Sequence[Run], along: Along = NOTHING_ALONG) -> list[bool]:
        """`add_runs` on the caller's own asyncpg connection, in the caller's own transaction, which must be
        serializable and retried as a whole by the caller. The store must be open."""
        if not is_asyncpg(connection):
            given = type(connection).__name__
            raise InvalidRequest(f"connection: {given} is not an asyncpg connection", field="connection")
        teach_arrays(connection)
        if not runs_:
            return []
        names = sorted({run.queue for run in runs_})
        # Not in the caller's transaction, for the end of which others would wait that name the same queue.
        numbers = await self._call(
            lambda session: cast(CockroachSession, session).queue_numbers(names), transaction=True
        )
        session = CockroachSession(connection, self._namespace_id, self._memory, numbers)
        with runs.keys_waited_for(runs_):
            return await runs.add_runs(session, runs_, along)

    def add_runs_sql(
        self, runs_: Sequence[Run], placeholders: Placeholders = "$1", along: Along = NOTHING_ALONG
    ) -> tuple[str, tuple[Any, ...]]:
        """There is no single statement here. Raises InvalidRequest."""
        raise InvalidRequest(
            "cockroachdb:// can't add runs by a single statement; use an asyncpg connection", field="connection"
        )

    async def claim_runs(
        self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
    ) -> Claimed:
        if not queues:
            return Claimed()
        levels = await self._levels_after(queues, -1)
        due = [level for level in levels if level[3] <= until]
        if any(is_gated for _, is_gated, _, _ in due):
            return await self._claim_exactly(queues, limit, worker, now, until, steady)
        taken = await self._take_ready(due, limit, worker, now, until, steady)
        if len(taken.runs) >= limit:
            return taken
        later = await self._levels_after(queues, until)
        return Claimed(taken.runs, taken.jobs, min((level[3] for level in later), default=None))

    async def first_due(self, levels: Sequence[PortLevel]) -> list[Instant | None]:
        return await self._overtaking(lambda session: claim.first_due(session, levels)) if levels else []

    async def _levels_after(self, queues: Sequence[str], instant: Instant) -> list[Level]:
        return await self._overtaking(lambda session: claim.levels_after(session, queues, instant))

    async def list_runs(self, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        return await self._overtaking(lambda session: listing.list_runs(session, where, after, limit))

    async def list_records(self, where: RecordFilter, after: str | None, limit: int) -> Page[Record]:
        return await self._overtaking(lambda session: records.list_records(session, where, after, limit))

    async def _overtaking(self, look: Callable[[Session], Awaitable[T]]) -> T:
        """What there is, without what others have begun to add in transactions that are open."""

        async def work(session: Session) -> T:
            if self._overtakes:
                assert isinstance(session, CockroachSession)
                await session.overtake()
            return await look(session)

        return await self._call(work, transaction=True)

    async def _take_ready(
        self, due: Sequence[Level], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
    ) -> Claimed:
        if not due:
            return Claimed()

        async def work(session: Session) -> Claimed:
            rows, _ = await claim.take(session, due, limit, worker, now, until, steady)
            return await claim.claimed(session, rows, until)

        return await self._call(work, transaction=True)
