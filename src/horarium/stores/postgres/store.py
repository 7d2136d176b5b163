"""`ports.Store` over PostgreSQL.

Each method is one call on one connection: a single statement where that does it, else one short transaction. What was
answered is committed. The methods only say which function does the work and whether it needs a transaction around it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from horarium.clock import Instant
from horarium.errors import StoreUnavailable
from horarium.model import NODES_KEPT, Node, Run, RunChange, Whole
from horarium.ports import (
    NOTHING_ALONG,
    QUEUES_MAX,
    Along,
    Beat,
    Claimed,
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
from horarium.stores.wakeups import Written

T = TypeVar("T")
P = ParamSpec("P")

TIME = "(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8"

_decode_node = msgspec.json.Decoder(Node).decode


def _on(
    work: Callable[Concatenate[Session, P], Awaitable[T]],
    none: Callable[[], T] | None = None,
    *,
    transaction: bool = False,
) -> Callable[Concatenate[PostgresStore, P], Coroutine[Any, Any, T]]:
    """The method of the store that has this done. `none`: makes the answer where the first argument is empty."""

    async def call(self: PostgresStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if none is not None and not args[0]:
            return none()
        return await self._call(lambda session: work(session, *args, **kwargs), transaction=transaction)

    update_wrapper(call, work)
    return call


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

    add_jobs = _on(jobs.add_jobs, list, transaction=True)
    get_jobs = _on(jobs.get_jobs, list)
    get_jobs_by_id = _on(jobs.get_jobs_by_id, list)
    list_jobs = _on(jobs.list_jobs)
    job_health = _on(health.job_health, dict)
    failing_jobs = _on(health.failing_jobs)
    add_health = _on(health.add_health)
    due_jobs = _on(jobs.due_jobs)
    jobs_ahead = _on(jobs.jobs_ahead)
    jobs_trimmed = _on(jobs.jobs_trimmed)
    commit_plans = _on(jobs.commit_plans, list, transaction=True)

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

    get_runs = _on(runs.get_runs, list)
    get_run_by_key = _on(runs.get_run_by_key)
    unfinished_runs = _on(runs.unfinished_runs, dict)

    async def list_runs(self, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        # Several statements, which must see each run in one state.
        return await self._call(
            lambda session: listing.list_runs(session, where, after, limit), transaction="repeatable_read"
        )

    last_runs = _on(listing.last_runs)

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

    first_due = _on(claim.first_due, list)

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

    overdue_runs = _on(runs.overdue_runs)
    prune_runs = _on(runs.prune_runs, transaction=True)
    trim_runs = _on(runs.trim_runs)

    # -- records

    get_records = _on(records.get_records, list)
    list_records = _on(records.list_records)
    put_records = _on(records.put_records, list, transaction=True)
    prune_records = _on(records.prune_records, transaction=True)

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
    await session.change("delete_nodes", session.namespace_id, node.beat_at - NODES_KEPT)
    definition = msgspec.json.encode(node).decode()
    await session.change("beat_node", session.namespace_id, node.name, node.beat_at, definition)


async def _stats(session: Session, now: Instant) -> Stats:
    ((total, enabled),) = await session.rows("count_jobs", session.namespace_id)
    rows = await session.rows("count_runs", session.namespace_id, now, QUEUES_MAX)
    queues = sorted((QueueStats(*row[:5]) for row in rows), key=lambda one: one.queue)
    return Stats(total, enabled, tuple(queues), max(0, rows[0][5] - QUEUES_MAX) if rows else 0)
