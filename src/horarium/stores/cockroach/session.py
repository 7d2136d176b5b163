"""The queries of CockroachDB, and how jobs and runs are inserted in several statements of one transaction.

Queries that work unchanged come from the PostgreSQL store, with every integer as an int8, since types must agree in a
UNION. The others are in this package's `queries.sql`, under the same names.

An insert must not add a run that is in history: the statement looks there itself, which is enough only because the
transaction is serializable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from horarium.model import UNFINISHED, Job, Run
from horarium.stores.batches import job_identities, run_identities, unlike, weighed_parts
from horarium.stores.encoding import encode_json, label_text
from horarium.stores.postgres.connect import Connection
from horarium.stores.postgres.rows import job_columns, run_columns
from horarium.stores.postgres.session import Memory, Session
from horarium.stores.queries import Queries, read_queries

T = TypeVar("T")

PATIENCE = "SET LOCAL lock_timeout = '2s'"
"""A unique key may be held by a transaction of a caller's own, which is open for as long as the caller likes."""
OVERTAKE = "SET TRANSACTION PRIORITY HIGH"
NOT_INHERITED = frozenset(
    {
        "claim_at_once",
        "claim_at_marks",
        "add_runs_elsewhere",
        "add_runs_elsewhere_along",
        "fold_job_counts",
        "finish_alike",
        "finish_alike_of_jobs",
        "lock_jobs",
        "lock_runs",
        "list_finished_runs_of_queue_by_time",
        "list_finished_runs_within_ten_seconds",
    }
)
_SMALL_INT = re.compile(r"::int[24]\b")


def _dialect() -> Queries:
    """Every integer is an int8 here, and texts are always compared by code point."""
    theirs = _SMALL_INT.sub("::int8", read_queries("horarium.stores.postgres")).replace(' COLLATE "C"', "")
    return Queries(theirs, read_queries("horarium.stores.cockroach"), without=NOT_INHERITED)


QUERIES = _dialect()


def label_list(labels: Mapping[str, str]) -> str:
    """Labels as a JSON array, whose members are what is searched for."""
    return json.dumps([label_text(*pair) for pair in sorted(labels.items())])


class CockroachSession(Session):
    """A connection for the time of one call."""

    __slots__ = ("_known_queues",)

    queries = QUERIES
    labels = staticmethod(label_list)
    tells_alike = False
    walks_by_time = False

    def __init__(
        self, connection: Connection, namespace_id: int, memory: Memory, queues: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(connection, namespace_id, memory)
        self._known_queues = queues

    async def rows(self, name: str, *values: Any) -> list[Any]:
        return await super().rows(name, *_whole_columns(self.queries[name], values))

    async def change(self, name: str, *values: Any) -> int:
        return await super().change(name, *_whole_columns(self.queries[name], values))

    async def insert_jobs(self, jobs: Sequence[Job]) -> Collection[str]:
        """In a transaction."""
        numbers = await self._owner_numbers([job.id for job in jobs], [job.name for job in jobs])
        added: set[str] = set()
        for part in _parts(jobs, job_identities, lambda job: (1, len(encode_json(job)))):
            columns = job_columns(part, [0] * len(part), self.labels)
            nums, ids, names = [numbers[job.id] for job in part], [job.id for job in part], [job.name for job in part]
            rows = await self.rows("add_jobs", self.namespace_id, nums, ids, names, *columns)
            added.update(row[0] for row in rows)
        return added

    async def insert_runs(self, runs: Sequence[Run]) -> Collection[bytes]:
        """In a transaction, which must be serializable."""
        _, queue_names, job_ids, job_names, *_ = run_columns(self.namespace_id, runs)
        if any(run.unique_key is not None for run in runs):
            await self.connection.execute(PATIENCE)
        queues = self._known_queues or await self.queue_numbers(queue_names)
        owners = await self._owner_numbers(job_ids, job_names) if job_ids else {}
        added: set[bytes] = set()
        for part in _parts(runs, run_identities, lambda run: (1, len(run.payload or b""))):
            columns = run_columns(self.namespace_id, part)[4:]
            columns[1] = [queues[run.queue] for run in part]
            columns[6] = [None if run.job_id is None else owners[run.job_id] for run in part]
            added.update(row[0] for row in await self.rows("add_runs", self.namespace_id, *columns))
        if added and any(run.state not in UNFINISHED for run in runs):
            await self.change("file_runs", self.namespace_id, list(added))
        return added

    async def lock_runs(self, ids: Iterable[str]) -> None:
        """Here transactions that meet are repeated anyway."""

    async def lock_jobs(self, ids: Iterable[str]) -> None:
        """Nor here."""

    async def fold_job_counts(self) -> None:
        """Jobs are counted when their number is asked for."""

    async def enter_gates(self) -> None:
        await self.one("lock_gates", self.namespace_id)

    async def lock_gates(self, gates: Sequence[int]) -> None:
        """All are locked already."""

    async def overtake(self) -> None:
        """In a transaction that only reads, as its first statement: it waits for no other one that has written and not
        ended, which may be a caller's own and take long. That one commits later than what is read here."""
        await self.connection.execute(OVERTAKE)

    async def queue_numbers(self, names: Sequence[str]) -> dict[str, int]:
        """The numbers of these queues; those that have none get one. In a transaction."""
        found = await self.rows("queues_named", self.namespace_id, names)
        if len(found) < len(names):
            await self.change("intern_queues", self.namespace_id, names)
            found = await self.rows("queues_named", self.namespace_id, names)
        return {row[0]: row[1] for row in found}

    async def _owner_numbers(self, job_ids: Sequence[str], names: Sequence[str]) -> dict[str, int]:
        found = await self.rows("owners_of", self.namespace_id, job_ids)
        if len(found) < len(job_ids):
            await self.change("intern_owners", self.namespace_id, job_ids, names)
            found = await self.rows("owners_of", self.namespace_id, job_ids)
        return {row[0]: row[1] for row in found}


def _parts(
    items: Sequence[T], identities: Callable[[T], Sequence[Hashable]], weigh: Callable[[T], tuple[int, int]]
) -> Iterator[Sequence[T]]:
    """What one statement may insert: a connection that sends a message of more than 16 MiB is closed."""
    return (part for alike in unlike(items, identities) for part in weighed_parts(alike, weigh))


def _whole_columns(text: str, values: Sequence[Any]) -> Sequence[Any]:
    """A column of NULLs as an array of them: `unnest` of a NULL array may give no rows at all."""
    if "unnest(" not in text or None not in values:
        return values
    count = max(len(value) for value in values if isinstance(value, (list, tuple)))
    return [[None] * count if value is None else value for value in values]
