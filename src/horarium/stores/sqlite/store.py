"""`ports.Store` over one SQLite file.

Each method hands a function to one of three lanes: writes go to the writer, which commits in groups; reads of the
services go to the reader, whose snapshot never waits for a write; lists and counts, which users ask for and which may
take long, have a reader of their own. A method's answer comes only when its commit is on disk, and a reading
that begins afterwards sees it. `claim` reads and writes in one transaction that begins IMMEDIATE, as every write does:
of several processes on one file one writes at a time, the others wait a bounded time.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from horarium.clock import Instant
from horarium.model import NODES_KEPT, Node
from horarium.ports import Stats
from horarium.stores.migrations import known_migrations
from horarium.stores.sqlite import claim, health, jobs, listing, records, runs, stats
from horarium.stores.sqlite.connect import connect, parse_url, undo_in_memory
from horarium.stores.sqlite.migrate import PACKAGE, migrate
from horarium.stores.sqlite.session import Session
from horarium.stores.sqlite.writer import GROUP_MAX, Lane

_decode_nodes = msgspec.json.Decoder(list[Node]).decode


T = TypeVar("T")
P = ParamSpec("P")


def _on(
    lane: str, work: Callable[Concatenate[Session, P], T], none: Callable[[], T] | None = None
) -> Callable[Concatenate[SqliteStore, P], Coroutine[Any, Any, T]]:
    """The method of the store that has this done on a lane. `none`: makes the answer where the first argument is
    empty."""

    async def call(self: SqliteStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if none is not None and not args[0]:
            return none()
        given: Lane = getattr(self, f"_{lane}")
        return await given.call(lambda session: work(session, *args, **kwargs))

    update_wrapper(call, work)
    return call


class SqliteStore:
    """A store in a file. For its methods see `ports.Store`; for the forms of `url`, `connect.parse_url`."""

    def __init__(self, url: str, namespace: str = "default") -> None:
        self.namespace = namespace
        self.location = parse_url(url)
        path = self.location.path
        self._writer = Lane("horarium-sqlite-writer", path, "BEGIN IMMEDIATE", GROUP_MAX, self._open_writer)
        self._reader = Lane("horarium-sqlite-reader", path, "BEGIN", 1, self._open_reader)
        self._lister = Lane("horarium-sqlite-lister", path, "BEGIN", 1, self._open_lister)

    def _open_writer(self) -> Session:
        self._version_written = -1
        session = Session(connect(self.location), self.namespace)
        try:
            migrate(session.connection, known_migrations(PACKAGE))
            undo_in_memory(session.connection)
            session.find_namespace()
        except BaseException:
            session.close()
            raise
        return session

    def _open_reader(self) -> Session:
        self._version_read = -1
        return self._open_lister()

    def _open_lister(self) -> Session:
        session = Session(connect(self.location), self.namespace)
        session.namespace_id = session.one("namespace_number", self.namespace)
        return session

    async def open(self) -> None:
        try:
            for lane in (self._writer, self._reader, self._lister):
                await lane.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        for lane in (self._lister, self._reader, self._writer):
            await lane.stop()

    async def check(self) -> None:
        await self._writer.call(_check)

    def written(self) -> int:
        """A number that grows with every row that this store changed."""
        return self._writer.changes

    async def changed(self, *, alone: bool = False) -> bool:
        """Whether another process (or another store of this one) committed anything since this was last asked. Not in
        the port: what other stores learn from their signals, a file has to be asked for. `alone`: at an instant at
        which no process is in the middle of a write, so that none is missed that began before this was asked.

        A connection sees no change in what it committed itself, so the one that writes is asked; where it need not be
        alone, only if the one that reads saw any change, since asking the first takes the lock that others may want."""
        read = self._version_read
        if not alone:
            read = await self._reader.call(_data_version)
            if read == self._version_read:
                return False
        written = await self._writer.call(_data_version)
        self._version_read = read
        changed, self._version_written = written != self._version_written, written
        return changed

    # -- jobs

    add_jobs = _on("writer", jobs.add_jobs, list)
    get_jobs = _on("reader", jobs.get_jobs, list)
    get_jobs_by_id = _on("reader", jobs.get_jobs_by_id, list)
    list_jobs = _on("lister", jobs.list_jobs)
    job_health = _on("reader", health.job_health, dict)
    failing_jobs = _on("reader", health.failing_jobs)
    add_health = _on("writer", health.add_health)
    due_jobs = _on("reader", jobs.due_jobs)
    jobs_ahead = _on("lister", jobs.jobs_ahead)
    jobs_trimmed = _on("lister", jobs.jobs_trimmed)
    commit_plans = _on("writer", jobs.commit_plans, list)
    write_whole = _on("writer", jobs.write_whole)

    # -- runs

    add_runs = _on("writer", runs.add_runs, list)
    get_runs = _on("reader", runs.get_runs, list)
    over = _on("reader", runs.over, list)
    get_run_by_key = _on("reader", runs.get_run_by_key)
    unfinished_runs = _on("reader", runs.unfinished_runs, dict)
    list_runs = _on("lister", listing.list_runs)
    last_runs = _on("lister", listing.last_runs)

    claim_runs = _on("writer", claim.claim_runs)
    first_due = _on("reader", claim.first_due, list)
    settle_runs = _on("writer", runs.settle_runs, list)
    heartbeat_runs = _on("writer", runs.heartbeat_runs, list)
    overdue_runs = _on("reader", runs.overdue_runs)
    prune_runs = _on("writer", runs.prune_runs)
    trim_runs = _on("writer", runs.trim_runs)

    # -- records

    get_records = _on("reader", records.get_records, list)
    list_records = _on("reader", records.list_records)
    put_records = _on("writer", records.put_records, list)
    prune_records = _on("writer", records.prune_records)

    # -- the rest

    async def beat_node(self, node: Node) -> None:
        await self._writer.call(lambda session: _beat_node(session, node))

    async def list_nodes(self, since: Instant) -> list[Node]:
        return await self._lister.call(
            lambda session: _decode_nodes(session.one("list_nodes", session.namespace_id, since))
        )

    async def stats(self, now: Instant) -> Stats:
        return await self._lister.call(lambda session: stats.count(session, now))


def _data_version(session: Session) -> int:
    version: int = session.connection.pragma("data_version")
    return version


def _check(session: Session) -> None:
    session.change("check", session.namespace_id)


def _beat_node(session: Session, node: Node) -> None:
    session.change("delete_nodes", session.namespace_id, node.beat_at - NODES_KEPT)
    definition = msgspec.json.encode(node).decode()
    session.change("beat_node", session.namespace_id, node.name, node.beat_at, definition)
