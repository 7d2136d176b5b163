"""What a call works with: a connection, the namespace's number, the queries, and names by number.

Numbers of queues and owners are never used twice, so a number that was read once stays true and is cached for as long
as the store lives, up to a limit. Decoded jobs are remembered by number and version; a version that is read is
compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from horarium.model import Job, Run
from horarium.stores.encoding import encode_id
from horarium.stores.lately import JOBS_BYTES_MAX, NAMES_MAX, OWNERS_MAX, Lately, weight_of_jobs
from horarium.stores.postgres.connect import Connection
from horarium.stores.postgres.marks import LowWaterMarks
from horarium.stores.postgres.rows import Owner, decode_job, job_columns, label_array, run_columns
from horarium.stores.queries import Queries, load_queries

QUERIES: Queries = load_queries("horarium.stores.postgres")


class Memory:
    """What all sessions of a store share."""

    def __init__(self) -> None:
        self.queues: Lately[int, str] = Lately(NAMES_MAX)
        self.owners: Lately[int, Owner] = Lately(OWNERS_MAX)
        self.jobs: Lately[str, tuple[int, Job]] = Lately(JOBS_BYTES_MAX)
        """By id: the number, which tells a job from a later one of the same id, and the job."""
        self.marks = LowWaterMarks()


class Session:
    """A connection for the time of one call. A server that speaks another dialect brings a session of its own."""

    __slots__ = ("connection", "memory", "namespace_id")

    queries: Queries = QUERIES
    labels = staticmethod(label_array)
    """How a job's labels are sent."""
    tells_alike = True
    """Whether it has a statement of its own for changes that are alike."""
    walks_by_time = True
    """Whether its history of a queue is walked by tens of seconds."""

    def __init__(self, connection: Connection, namespace_id: int, memory: Memory) -> None:
        self.connection = connection
        self.namespace_id = namespace_id
        self.memory = memory

    async def rows(self, name: str, *values: Any) -> list[Any]:
        found: list[Any] = await self.connection.fetch(self.queries[name], *values)
        return found

    async def one(self, name: str, *values: Any) -> Any:
        """The first column of the first row; None if there is none."""
        rows = await self.rows(name, *values)
        return rows[0][0] if rows else None

    async def change(self, name: str, *values: Any) -> int:
        """How many rows a statement changed."""
        status: str = await self.connection.execute(self.queries[name], *values)
        return int(status.rpartition(" ")[2])

    async def insert_jobs(self, jobs: Sequence[Job]) -> Collection[str]:
        """The ids of those that were inserted. No id comes twice."""
        ids, names = [job.id for job in jobs], [job.name for job in jobs]
        rows = await self.rows(
            "add_jobs", self.namespace_id, ids, names, *job_columns(jobs, [0] * len(jobs), self.labels)
        )
        return {row[0] for row in rows}

    async def insert_runs(self, runs: Sequence[Run]) -> Collection[bytes]:
        """The ids, as bytes, of those that were inserted. No id comes twice."""
        return await self.one("add_runs", *run_columns(self.namespace_id, runs)) or ()

    async def fold_job_counts(self) -> None:
        """Keep the counts of jobs, which are sums, short."""
        await self.change("fold_job_counts", self.namespace_id)

    async def enter_gates(self) -> None:
        """Before a claim looks at runs that may be held back. In its transaction."""

    async def lock_gates(self, gates: Sequence[int]) -> None:
        """Until the end of the transaction no other claim takes runs of these gates, which are sorted."""
        await self.rows("lock_gates", self.namespace_id, gates)

    async def lock_runs(self, ids: Iterable[str]) -> None:
        """Before a transaction writes unfinished runs by several statements. Every statement takes them in the order of
        their ids, so that no two transactions wait for each other; several do not, one after the other."""
        blobs = [encode_id(run_id) for run_id in sorted(set(ids))]
        if len(blobs) > 1:
            await self.rows("lock_runs", self.namespace_id, blobs)

    async def lock_jobs(self, ids: Iterable[str]) -> None:
        """The same, before jobs are written by several statements."""
        given = sorted(set(ids))
        if len(given) > 1:
            await self.rows("lock_jobs", self.namespace_id, given)

    async def queue_names(self, numbers: Iterable[int]) -> Mapping[int, str]:
        known = self.memory.queues
        found, unknown = known.split(numbers)
        if unknown:
            read: dict[int, str] = {row[0]: row[1] for row in await self.rows("queue_names", unknown)}
            known.learn(read)
            found.update(read)
        return found

    async def owners(self, numbers: Iterable[int | None]) -> Mapping[int, Owner]:
        known = self.memory.owners
        found, unknown = known.split(numbers)
        if unknown:
            read: dict[int, Owner] = {row[0]: (row[1], row[2]) for row in await self.rows("owner_names", unknown)}
            known.learn(read)
            found.update(read)
        return found

    async def jobs_at(self, versions: Mapping[str, tuple[int, int]]) -> dict[str, Job]:
        """The jobs of these ids, of this number and version or newer ones. One that is gone meanwhile is left out."""
        known = self.memory.jobs
        remembered, _ = known.split(versions)
        found = {
            job_id: job
            for job_id, (number, job) in remembered.items()
            if number == versions[job_id][0] and job.version == versions[job_id][1]
        }
        unknown = [job_id for job_id in versions if job_id not in found]
        if unknown:
            for row in await self.rows("get_jobs_by_id", self.namespace_id, unknown):
                job = decode_job(row[0])
                found[job.id] = job
                known.learn({job.id: (versions[job.id][0], job)}, weight_of_jobs(1, len(row[0])))
        return found
