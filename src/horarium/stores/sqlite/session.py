"""A connection that knows the names behind the small numbers.

Queues, workers and owners (a job's id and name) are numbers in the rows. A session remembers both directions. What it
learned inside a transaction that was undone must be forgotten (`forget`); committed values never change, and no number
is used twice, so nothing else can make its memory wrong. The one exception: an owner can be pruned with its job, so the
number to write for a job is always read in the transaction that writes it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import apsw
import msgspec

from horarium.model import Job
from horarium.stores.encoding import decode_id_digits, encode_id
from horarium.stores.lately import JOBS_BYTES_MAX, NAMES_MAX, OWNERS_MAX, Lately, weight_of_jobs
from horarium.stores.queries import load_queries

QUERIES = load_queries("horarium.stores.sqlite")

ROWS_MAX = 100
"""How many rows one statement takes."""

SIZES = (1, 4, 20, ROWS_MAX)
"""How many rows a batch statement can have: each size is prepared once; a batch is padded up to the next one."""

TEXTS_KEPT = 250
TEXT_KEPT_MAX = 2_000
"""How many jobs that were read by name, and how long the text of each may be."""

Row = Sequence[Any]

_decode = msgspec.json.Decoder().decode
_decode_jobs = msgspec.json.Decoder(list[Job]).decode


class Session:
    """A connection, its namespace, and the names behind numbers. Belongs to one thread."""

    def __init__(self, connection: apsw.Connection, namespace: str) -> None:
        self.connection = connection
        self.namespace = namespace
        self.namespace_id = 0
        self.forget()

    def forget(self) -> None:
        """Drop everything remembered: part of it may never have been committed."""
        self._queues: Lately[str, int] = Lately(NAMES_MAX)
        self._queue_names: Lately[int, str] = Lately(NAMES_MAX)
        self._workers: Lately[str, int] = Lately(NAMES_MAX)
        self._worker_names: Lately[int, str] = Lately(NAMES_MAX)
        self._owners: Lately[int, tuple[str, str]] = Lately(OWNERS_MAX)
        self._jobs: Lately[str, Job] = Lately(JOBS_BYTES_MAX)
        self._read: dict[str, list[Job]] = {}

    def close(self, force: bool = False) -> None:
        """Close the connection; the last one to close a file copies its log into it. `force`: it no longer works."""
        self.connection.close(force=force)

    # -- statements

    def one(self, query: str, *values: Any) -> Any:
        """The only column of the only row, or None."""
        return self.connection.execute(QUERIES[query], values).get

    def array(self, query: str, *values: Any) -> list[Any]:
        """The JSON array that the query returns."""
        answer: list[Any] = _decode(self.connection.execute(QUERIES[query], values).get)
        return answer

    def rows(self, query: str, *values: Any) -> Sequence[Row]:
        return self.connection.execute(QUERIES[query], values).fetchall()

    def jobs(self, query: str, *values: Any) -> list[Job]:
        """The jobs whose definitions the query returns. A job read by name is the very same value as long as nothing
        else is stored: caches of its text stay valid."""
        text: str = self.connection.execute(QUERIES[query], values).get
        if query != "get_jobs" or len(text) > TEXT_KEPT_MAX:
            return _decode_jobs(text)
        found = self._read.get(text)
        if found is None:
            if len(self._read) >= TEXTS_KEPT:
                self._read.clear()
            found = self._read[text] = _decode_jobs(text)
        return found

    def change(self, query: str, *values: Any) -> int:
        """Write. The number of rows changed."""
        self.connection.execute(QUERIES[query], values)
        return self.connection.changes()

    def change_rows(self, query: str, rows: Sequence[Row], *values: Any) -> int:
        """Write a batch, `values` following its rows. The number of rows changed."""
        changed = 0
        for size, flat in _statements(rows):
            self.connection.execute(QUERIES.rows(query, size), (*flat, *values))
            changed += self.connection.changes()
        return changed

    def first_of_rows(self, query: str, rows: Sequence[Row], *values: Any) -> list[Any]:
        """The only column of what the query returns for a batch."""
        return [
            value
            for size, flat in _statements(rows)
            for (value,) in self.connection.execute(QUERIES.rows(query, size), (*flat, *values))
        ]

    def array_rows(self, query: str, rows: Sequence[Row], *values: Any) -> list[Any]:
        """The JSON arrays that the query returns for a batch, together."""
        answers: list[Any] = []
        for size, flat in _statements(rows):
            answers += _decode(self.connection.execute(QUERIES.rows(query, size), (*flat, *values)).get)
        return answers

    # -- names and numbers

    def find_namespace(self) -> None:
        """Learn the namespace's number, giving it one if it has none. The caller commits."""
        self.change("intern_namespace", self.namespace)
        self.namespace_id = self.one("namespace_number", self.namespace)

    def queue_number(self, name: str) -> int:
        """The number of a queue, new if need be."""
        number = self._queues.recall(name)
        if number is None:
            self.change("intern_queue", self.namespace_id, name)
            number = self.queue_numbers((name,))[name]
        return number

    def queue_numbers(self, names: Iterable[str]) -> dict[str, int]:
        """The numbers of those queues that have one."""
        wanted = set(names)
        if unknown := self._queues.unknown(wanted):
            found = self.array("queue_numbers", self.namespace_id, apsw.carray(tuple(unknown)))
            self._queues.learn({name: number for number, name in found})
        return {name: number for name in wanted if (number := self._queues.recall(name)) is not None}

    def queue_names(self, numbers: Iterable[int]) -> dict[int, str]:
        if unknown := self._queue_names.unknown(numbers):
            self._queue_names.learn(dict(self.array("queue_names", carray(unknown))))
        return self._queue_names

    def worker_number(self, name: str | None) -> int | None:
        """The number of a worker, new if need be; None of None."""
        if name is None:
            return None
        number = self._workers.recall(name)
        if number is None:
            self.change("intern_worker", name)
            number = self.one("worker_number", name)
            self._workers.learn({name: number})
        return number

    def worker_names(self, numbers: Iterable[int | None]) -> dict[int, str]:
        if unknown := self._worker_names.unknown(numbers):
            self._worker_names.learn(dict(self.array("worker_names", carray(unknown))))
        return self._worker_names

    def owner_numbers(self, jobs: dict[str, str]) -> dict[str, int]:
        """The owner numbers for jobs, given as ids and names; new ones where need be."""
        owners = [(encode_id(job_id), name) for job_id, name in jobs.items()]
        new = self.change_rows("intern_owners", owners, self.namespace_id)
        if new == len(jobs) == 1:
            return dict.fromkeys(jobs, self.connection.last_insert_rowid())
        return self.known_owners(jobs)

    def known_owners(self, job_ids: Iterable[str]) -> dict[str, int]:
        """The owner numbers of those of the jobs that have one."""
        blobs = tuple(map(encode_id, job_ids))
        found = self.array("owner_numbers", self.namespace_id, apsw.carray(blobs)) if blobs else []
        return {decode_id_digits(digits): number for number, digits in found}

    def owners(self, numbers: Iterable[int | None]) -> dict[int, tuple[str, str]]:
        """A job's id and name, by owner number."""
        if unknown := self._owners.unknown(numbers):
            found = self.array("owner_names", carray(unknown))
            self._owners.learn({number: (decode_id_digits(digits), name) for number, digits, name in found})
        return self._owners

    def jobs_by_id(self, ids: set[str]) -> dict[str, Job]:
        """The jobs of these ids in their present version; only those that changed are read in full."""
        if not ids:
            return {}
        found = self.array("job_versions", self.namespace_id, apsw.carray(tuple(map(encode_id, ids))))
        versions = {decode_id_digits(digits): version for digits, version in found}
        known = self._jobs
        stale = known.unknown(versions)
        stale |= {
            job_id for job_id, version in versions.items() if job_id not in stale and known[job_id].version != version
        }
        if stale:
            text: str = self.connection.execute(
                QUERIES["get_jobs_by_id"], (self.namespace_id, apsw.carray(tuple(map(encode_id, stale))))
            ).get
            jobs = _decode_jobs(text)
            known.learn({job.id: job for job in jobs}, weight_of_jobs(len(jobs), len(text)))
        return {job_id: known[job_id] for job_id in versions}


def carray(numbers: Iterable[int | None]) -> Any:
    """A parameter that is an array of integers. SQLite has no empty one: there, one that matches nothing."""
    return apsw.carray(array("q", numbers or (-1,)))


def _statements(rows: Sequence[Row]) -> Iterable[tuple[int, Iterable[Any]]]:
    for start in range(0, len(rows), ROWS_MAX):
        part = rows[start : start + ROWS_MAX]
        size = next(size for size in SIZES if size >= len(part))
        padding = (None,) * ((size - len(part)) * len(part[0]))
        yield size, chain(chain.from_iterable(part), padding)
