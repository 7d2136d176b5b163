"""`ports.Store` over one SQLite file.

Each method hands a function to one of three lanes: writes go to the writer, which commits in groups; reads of the
services go to the reader, whose snapshot never waits for a write; lists and counts, which users ask for and which may
take long, have a reader of their own. A method's answer comes only when its commit is on disk, and a reading
that begins afterwards sees it. `claim` reads and writes in one transaction that begins IMMEDIATE, as every write does:
of several processes on one file one writes at a time, the others wait a bounded time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from horarium.clock import Instant
from horarium.model import NODES_KEPT, Health, Job, Level, Node, Plan, Run, RunChange, Whole
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.ports import NOTHING_ALONG, Along, Beat, Claimed, JobFilter, Page, Pulse, RunFilter, Stats
from horarium.stores.migrations import known_migrations
from horarium.stores.sqlite import claim, health, jobs, listing, records, runs, stats
from horarium.stores.sqlite.connect import connect, parse_url, undo_in_memory
from horarium.stores.sqlite.migrate import PACKAGE, migrate
from horarium.stores.sqlite.session import Session
from horarium.stores.sqlite.writer import GROUP_MAX, Lane

_decode_nodes = msgspec.json.Decoder(list[Node]).decode


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

    async def add_jobs(self, jobs_: Sequence[Job], along: Along = NOTHING_ALONG) -> list[bool]:
        return await self._writer.call(lambda session: jobs.add_jobs(session, jobs_, along)) if jobs_ else []

    async def get_jobs(self, names: Sequence[str]) -> list[Job | None]:
        return await self._reader.call(lambda session: jobs.get_jobs(session, names)) if names else []

    async def get_jobs_by_id(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._reader.call(lambda session: jobs.get_jobs_by_id(session, ids)) if ids else []

    async def list_jobs(self, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
        return await self._lister.call(lambda session: jobs.list_jobs(session, where, after, limit))

    async def job_health(self, job_ids: Sequence[str]) -> dict[str, Health]:
        return await self._reader.call(lambda session: health.job_health(session, job_ids)) if job_ids else {}

    async def failing_jobs(self, limit: int) -> dict[str, Health]:
        return await self._reader.call(lambda session: health.failing_jobs(session, limit))

    async def add_health(self, health_: Mapping[str, Health]) -> None:
        await self._writer.call(lambda session: health.add_health(session, health_))

    async def due_jobs(
        self, until: Instant, limit: int, after: Instant | None = None
    ) -> tuple[list[Job], Instant | None]:
        return await self._reader.call(lambda session: jobs.due_jobs(session, until, limit, after))

    async def jobs_ahead(self, until: Instant, after: str | None, limit: int) -> Page[Job]:
        return await self._lister.call(lambda session: jobs.jobs_ahead(session, until, after, limit))

    async def jobs_trimmed(self, after: str | None, limit: int) -> Page[Job]:
        return await self._lister.call(lambda session: jobs.jobs_trimmed(session, after, limit))

    async def commit_plans(self, plans: Sequence[Plan], steady: Instant) -> list[bool]:
        return await self._writer.call(lambda session: jobs.commit_plans(session, plans, steady)) if plans else []

    async def write_whole(self, whole: Whole, steady: Instant) -> bool:
        return await self._writer.call(lambda session: jobs.write_whole(session, whole, steady))

    # -- runs

    async def add_runs(self, runs_: Sequence[Run], along: Along = NOTHING_ALONG) -> list[bool]:
        return await self._writer.call(lambda session: runs.add_runs(session, runs_, along)) if runs_ else []

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        return await self._reader.call(lambda session: runs.get_runs(session, ids)) if ids else []

    async def get_run_by_key(self, unique_key: str) -> Run | None:
        return await self._reader.call(lambda session: runs.get_run_by_key(session, unique_key))

    async def unfinished_runs(self, job_ids: Sequence[str]) -> dict[str, list[Run]]:
        return await self._reader.call(lambda session: runs.unfinished_runs(session, job_ids)) if job_ids else {}

    async def list_runs(self, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        return await self._lister.call(lambda session: listing.list_runs(session, where, after, limit))

    async def last_runs(self, jobs: Sequence[str], since: Instant, until: Instant, limit: int) -> dict[str, list[Run]]:
        return await self._lister.call(lambda session: listing.last_runs(session, jobs, since, until, limit))

    async def claim_runs(
        self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
    ) -> Claimed:
        given = queues, limit, worker, now, until, steady
        return await self._writer.call(lambda session: claim.claim_runs(session, *given))

    async def first_due(self, levels: Sequence[Level]) -> list[Instant | None]:
        return await self._reader.call(lambda session: claim.first_due(session, levels)) if levels else []

    async def settle_runs(self, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
        return await self._writer.call(lambda session: runs.settle_runs(session, changes, steady)) if changes else []

    async def heartbeat_runs(self, beats: Sequence[Beat], steady: Instant) -> list[Pulse | None]:
        return await self._writer.call(lambda session: runs.heartbeat_runs(session, beats, steady)) if beats else []

    async def overdue_runs(self, now: Instant, limit: int, steady: Instant) -> tuple[list[Run], Instant | None]:
        return await self._reader.call(lambda session: runs.overdue_runs(session, now, limit, steady))

    async def prune_runs(self, now: Instant, limit: int) -> int:
        return await self._writer.call(lambda session: runs.prune_runs(session, now, limit))

    async def trim_runs(self, job_id: str, keep: int, limit: int) -> int:
        return await self._writer.call(lambda session: runs.trim_runs(session, job_id, keep, limit))

    # -- records

    async def get_records(self, names: Sequence[str]) -> list[Record | None]:
        return await self._reader.call(lambda session: records.get_records(session, names)) if names else []

    async def list_records(self, where: RecordFilter, after: str | None, limit: int) -> Page[Record]:
        return await self._reader.call(lambda session: records.list_records(session, where, after, limit))

    async def put_records(self, changes: Sequence[RecordChange]) -> list[bool]:
        return await self._writer.call(lambda session: records.put_records(session, changes)) if changes else []

    async def prune_records(self, prefix: str, until: str, limit: int) -> int:
        return await self._writer.call(lambda session: records.prune_records(session, prefix, until, limit))

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
    session.change("forget_nodes", session.namespace_id, node.beat_at - NODES_KEPT)
    definition = msgspec.json.encode(node).decode()
    session.change("beat_node", session.namespace_id, node.name, node.beat_at, definition)
