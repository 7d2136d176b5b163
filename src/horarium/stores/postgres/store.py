"""`ports.Store` over PostgreSQL.

Each method is one call on one connection: a single statement where that does it, else one short transaction. What was
answered is committed. The methods only say which function does the work and whether it needs a transaction around it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from horarium.clock import Instant
from horarium.errors import StoreUnavailable
from horarium.model import NODES_KEPT, Health, Job, Level, Node, Plan, Run, RunChange, Whole
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.ports import (
    NOTHING_ALONG,
    QUEUES_MAX,
    Along,
    Beat,
    Claimed,
    JobFilter,
    Page,
    Placeholders,
    Pulse,
    QueueStats,
    RunFilter,
    Stats,
)
from horarium.stores.migrations import known_migrations
from horarium.stores.postgres import claim, health, jobs, listing, records, runs
from horarium.stores.postgres.connect import Connection, Location, find_pooler, parse_url
from horarium.stores.postgres.elsewhere import add_elsewhere, add_statement
from horarium.stores.postgres.migrate import PACKAGE, migrate
from horarium.stores.postgres.pool import Pool
from horarium.stores.postgres.session import Memory, Session
from horarium.stores.written import Written

T = TypeVar("T")

TIME = "(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8"

_decode_node = msgspec.json.Decoder(Node).decode


class PostgresStore:
    """A store in a PostgreSQL database. For its methods see `ports.Store`; for the forms of `url`, `connect.parse_url`.
    Everything is in the database's schema `horarium`, which `open` creates."""

    _server_time = f"SELECT pg_catalog.txid_current_snapshot()::text, {TIME}"
    """The time, and which transactions have ended: it is another text as soon as one of them that wrote can be seen, in
    any database of the server. The time comes last, after what the statement does before."""

    def __init__(self, url: str, namespace: str = "default") -> None:
        self.namespace = namespace
        self.location = self._parse_url(url)
        self.written = Written()
        self._memory = Memory()
        self._namespace_id = -1
        self._pool: Pool | None = None

    @staticmethod
    def _parse_url(url: str) -> Location:
        return parse_url(url)

    async def open(self) -> None:
        if self._pool is not None and self._pool.open:
            return
        self.location = await self._locate()
        pool = self._new_pool()
        try:
            await self._migrate(pool)
            self._namespace_id = await pool.call(self._find_namespace, transaction=True)
        except BaseException:
            await pool.close()
            raise
        self._pool = pool

    async def _locate(self) -> Location:
        return await find_pooler(self.location)

    def _new_pool(self) -> Pool:
        return Pool(self.location)

    async def _migrate(self, pool: Pool) -> None:
        known, shown = known_migrations(PACKAGE), self.location.shown
        await pool.call(lambda connection: migrate(connection, known, shown), transaction=True)

    async def _find_namespace(self, connection: Connection) -> int:
        session = self._session(connection)
        await session.change("intern_namespace", self.namespace)
        number: int = await session.one("namespace_number", self.namespace)
        return number

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()

    async def check(self) -> None:
        await self._call(lambda session: session.change("check", session.namespace_id))

    async def _call(self, work: Callable[[Session], Awaitable[T]], *, transaction: bool | str = False) -> T:
        pool = self._pool
        if pool is None:
            raise StoreUnavailable(f"the store at {self.location.shown} is not open; call open() first")
        return await pool.call(lambda connection: work(self._session(connection)), transaction=transaction)

    def _session(self, connection: Connection) -> Session:
        return Session(connection, self._namespace_id, self._memory)

    # -- jobs

    async def add_jobs(self, jobs_: Sequence[Job], along: Along = NOTHING_ALONG) -> list[bool]:
        return await self._call(lambda session: jobs.add_jobs(session, jobs_, along), transaction=True) if jobs_ else []

    async def get_jobs(self, names: Sequence[str]) -> list[Job | None]:
        return await self._call(lambda session: jobs.get_jobs(session, names)) if names else []

    async def get_jobs_by_id(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._call(lambda session: jobs.get_jobs_by_id(session, ids)) if ids else []

    async def list_jobs(self, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
        return await self._call(lambda session: jobs.list_jobs(session, where, after, limit))

    async def job_health(self, job_ids: Sequence[str]) -> dict[str, Health]:
        return await self._call(lambda session: health.job_health(session, job_ids)) if job_ids else {}

    async def failing_jobs(self, limit: int) -> dict[str, Health]:
        return await self._call(lambda session: health.failing_jobs(session, limit))

    async def add_health(self, health_: Mapping[str, Health]) -> None:
        await self._call(lambda session: health.add_health(session, health_))

    async def due_jobs(
        self, until: Instant, limit: int, after: Instant | None = None
    ) -> tuple[list[Job], Instant | None]:
        return await self._call(lambda session: jobs.due_jobs(session, until, limit, after))

    async def jobs_ahead(self, until: Instant, after: str | None, limit: int) -> Page[Job]:
        return await self._call(lambda session: jobs.jobs_ahead(session, until, after, limit))

    async def jobs_trimmed(self, after: str | None, limit: int) -> Page[Job]:
        return await self._call(lambda session: jobs.jobs_trimmed(session, after, limit))

    async def commit_plans(self, plans: Sequence[Plan], steady: Instant) -> list[bool]:
        if not plans:
            return []
        return await self._call(lambda session: jobs.commit_plans(session, plans, steady), transaction=True)

    async def write_whole(self, whole: Whole, steady: Instant) -> bool:
        with runs.keys_waited_for(whole.runs):
            return await self._call(lambda session: jobs.write_whole(session, whole, steady), transaction=True)

    # -- runs

    async def add_runs(self, runs_: Sequence[Run], along: Along = NOTHING_ALONG) -> list[bool]:
        if not runs_:
            return []
        # Alone, a statement is a transaction; but a batch whose runs touch each other is several.
        several = bool(along) or len(runs.parts_to_add(runs_)) > 1
        with runs.keys_waited_for(runs_):
            return await self._call(lambda session: runs.add_runs(session, runs_, along), transaction=several)

    async def add_runs_in(self, connection: Any, runs_: Sequence[Run], along: Along = NOTHING_ALONG) -> list[bool]:
        """`add_runs` on the caller's own connection (see `carriers.py`), in the caller's own
        transaction: the runs exist, and nodes are woken, once that commits. The connection must be to a database that
        this namespace was opened in before. Raises what the driver raises, and InvalidRequest."""
        with runs.keys_waited_for(runs_):
            return await add_elsewhere(connection, self.namespace, runs_, along) if runs_ else []

    def add_runs_sql(
        self, runs_: Sequence[Run], placeholders: Placeholders = "$1", along: Along = NOTHING_ALONG
    ) -> tuple[str, tuple[Any, ...]]:
        """The same for any other driver: see `elsewhere.add_statement`. Nothing is executed, so the store need not be
        open."""
        return add_statement(self.namespace, runs_, placeholders, along)

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        return await self._call(lambda session: runs.get_runs(session, ids)) if ids else []

    async def get_run_by_key(self, unique_key: str) -> Run | None:
        return await self._call(lambda session: runs.get_run_by_key(session, unique_key))

    async def unfinished_runs(self, job_ids: Sequence[str]) -> dict[str, list[Run]]:
        return await self._call(lambda session: runs.unfinished_runs(session, job_ids)) if job_ids else {}

    async def list_runs(self, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        # Several statements, which must see each run in one state.
        return await self._call(
            lambda session: listing.list_runs(session, where, after, limit), transaction="repeatable_read"
        )

    async def last_runs(self, jobs: Sequence[str], since: Instant, until: Instant, limit: int) -> dict[str, list[Run]]:
        return await self._call(lambda session: listing.last_runs(session, jobs, since, until, limit))

    async def claim_runs(
        self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
    ) -> Claimed:
        if not queues:
            return Claimed()
        given = queues, limit, worker, now, until, steady
        claimed = await self._call(lambda session: claim.claim_at_once(session, *given))
        if not isinstance(claimed, claim.Due):
            return claimed
        return await self._claim_exactly(*given, claimed)

    async def _claim_exactly(
        self,
        queues: Sequence[str],
        limit: int,
        worker: str,
        now: Instant,
        until: Instant,
        steady: Instant,
        found: claim.Due | None = None,
    ) -> Claimed:
        given = queues, limit, worker, now, until, steady
        claimed = Claimed()
        for turn in range(claim.ROUNDS_MAX):
            seen = found if turn == 0 else None
            claimed = await self._call(
                lambda session: claim.claim_exactly(session, *given, seen),  # noqa: B023
                transaction=True,
            )
            if claimed.runs or claimed.next_due_at is None or claimed.next_due_at > until or limit <= 0:
                break
        return claimed

    async def first_due(self, levels: Sequence[Level]) -> list[Instant | None]:
        return await self._call(lambda session: claim.first_due(session, levels)) if levels else []

    async def settle_runs(self, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
        if not changes:
            return []
        if (name := runs.simply(changes)) is not None:
            return await self._call(lambda session: runs.settle_simply(session, name, changes, steady))
        return await self._call(lambda session: runs.settle_runs(session, changes, steady), transaction=True)

    async def heartbeat_runs(self, beats: Sequence[Beat], steady: Instant) -> list[Pulse | None]:
        if not beats:
            return []
        several = len({beat.run_id for beat in beats}) < len(beats)
        return await self._call(lambda session: runs.heartbeat_runs(session, beats, steady), transaction=several)

    async def overdue_runs(self, now: Instant, limit: int, steady: Instant) -> tuple[list[Run], Instant | None]:
        return await self._call(lambda session: runs.overdue_runs(session, now, limit, steady))

    async def prune_runs(self, now: Instant, limit: int) -> int:
        return await self._call(lambda session: runs.prune_runs(session, now, limit), transaction=True)

    async def trim_runs(self, job_id: str, keep: int, limit: int) -> int:
        return await self._call(lambda session: runs.trim_runs(session, job_id, keep, limit))

    # -- records

    async def get_records(self, names: Sequence[str]) -> list[Record | None]:
        return await self._call(lambda session: records.get_records(session, names)) if names else []

    async def list_records(self, where: RecordFilter, after: str | None, limit: int) -> Page[Record]:
        return await self._call(lambda session: records.list_records(session, where, after, limit))

    async def put_records(self, changes: Sequence[RecordChange]) -> list[bool]:
        if not changes:
            return []
        return await self._call(lambda session: records.put_records(session, changes), transaction=True)

    async def prune_records(self, prefix: str, until: str, limit: int) -> int:
        return await self._call(lambda session: records.prune_records(session, prefix, until, limit), transaction=True)

    # -- the rest

    async def server_time(self) -> Instant:
        """What time the server has. Not in the port: `ServerClock` asks it."""
        mark = None
        try:
            ((mark, now),) = await self._call(lambda session: session.connection.fetch(self._server_time))
        finally:
            self.written.saw(mark)
        return Instant(now)

    async def beat_node(self, node: Node) -> None:
        await self._call(lambda session: _beat_node(session, node), transaction=True)

    async def list_nodes(self, since: Instant) -> list[Node]:
        rows = await self._call(lambda session: session.rows("list_nodes", session.namespace_id, since))
        return [_decode_node(row[0]) for row in rows]

    async def stats(self, now: Instant) -> Stats:
        return await self._call(lambda session: _stats(session, now))


async def _beat_node(session: Session, node: Node) -> None:
    await session.change("forget_nodes", session.namespace_id, node.beat_at - NODES_KEPT)
    definition = msgspec.json.encode(node).decode()
    await session.change("beat_node", session.namespace_id, node.name, node.beat_at, definition)


async def _stats(session: Session, now: Instant) -> Stats:
    ((total, enabled),) = await session.rows("count_jobs", session.namespace_id)
    rows = await session.rows("count_runs", session.namespace_id, now, QUEUES_MAX)
    queues = sorted((QueueStats(*row[:5]) for row in rows), key=lambda one: one.queue)
    return Stats(total, enabled, tuple(queues), max(0, rows[0][5] - QUEUES_MAX) if rows else 0)
