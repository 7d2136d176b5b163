"""The claim: which runs are next, exactly, at a cost that depends neither on history nor on runs due later.

Waiting runs are in two indexes, in claim order: `ready` ones, which nothing can hold back, and `gated` ones, which a
concurrency key or the order of their job may. A level is one priority of one queue in one of the two. First the levels
are found by probes; then those with something due are walked, highest priority first and merged by (due_at, id), until
the limit is reached; then the runs taken are written, and read back by number.

Of gated runs, those that this claim took count for those that follow (docs/architecture/claiming.md). Python counts;
and each further chunk of a level is asked for with the counts so far, so that a full key is skipped inside SQLite. And
however many wait behind a key that is full, or for their turn, a claim must not look at each: where a bounded look
found too few, the gates are walked instead, and of each only the first run counts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import groupby, islice
from typing import Any

from horarium.clock import Instant
from horarium.model import Level as PortLevel
from horarium.model import Run
from horarium.ports import Claimed
from horarium.stores.sqlite.rows import NUMBER, load_runs, runs_of
from horarium.stores.sqlite.session import Session, carray

CHUNK_MIN = 16
"""How many gated runs are looked at in one go, at least."""

GATED_LOOKS = 200
"""How many gated runs of a level are looked at, at least, before its gates are walked."""

Level = tuple[int, int, int, Instant]
"""Minus its priority, whether gated (0 or 1), its queue's number, and when the first run in it is due."""

Candidate = list[Any]
"""due_at, id, number, owner; if gated: serial, concurrency key, and how many the key admitted before this claim."""


def claim_runs(
    session: Session, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
) -> Claimed:
    numbers = session.queue_numbers(queues)
    if not numbers:
        return Claimed()
    queue_ids = carray(numbers.values())
    levels: list[Level] = session.array("claim_levels", queue_ids, -1)
    due = sorted(level for level in levels if level[3] <= until)
    if not due:
        return Claimed(next_due_at=_earliest(levels))
    worker_id = session.worker_number(worker)
    if len(due) == 1 and not due[0][1]:
        runs = _take_level(session, due[0], limit, worker_id, now, until, steady)
    else:
        taken = list(islice(_Claim(session, limit, now, until).takes(due), limit))
        _take(session, taken, worker_id, now, steady)
        runs = load_runs(session, taken)
    left = session.array("claim_levels", queue_ids, until if len(runs) < limit else -1)
    jobs = session.jobs_by_id({run.job_id for run in runs if run.job_id is not None})
    return Claimed(tuple(runs), jobs, _earliest(left))


def _take_level(
    session: Session, level: Level, limit: int, worker_id: int | None, now: Instant, until: Instant, steady: Instant
) -> list[Run]:
    """Take the first runs of this level, in which nothing is held back. Each run is read once."""
    rank, _, queue_id, _ = level
    rows = session.array("claim_level", queue_id, -rank, until, now, limit, worker_id, steady - now)
    _take(session, [row[NUMBER] for row in rows], worker_id, now, steady)
    return runs_of(session, rows)


def _take(session: Session, numbers: Sequence[int], worker_id: int | None, now: Instant, steady: Instant) -> None:
    if numbers:
        session.change("claim_runs", carray(numbers), worker_id, now, steady - now)


def first_due(session: Session, levels: Sequence[PortLevel]) -> list[Instant | None]:
    numbers = session.queue_numbers({queue for queue, _, _ in levels})
    return [
        session.one("first_due", numbers[queue], priority, gated) if queue in numbers else None
        for queue, priority, gated in levels
    ]


def _earliest(levels: Sequence[Level]) -> Instant | None:
    return min((level[3] for level in levels), default=None)


class _Claim:
    """One claim: which runs may be taken, in claim order, as if each were taken before the next is looked at."""

    def __init__(self, session: Session, limit: int, now: Instant, until: Instant) -> None:
        self._session, self._limit = session, limit
        self._now, self._until = now, until
        self._keys: Counter[str] = Counter()
        self._owners: set[int] = set()

    def takes(self, levels: Sequence[Level]) -> Iterator[int]:
        """The numbers of the runs to take. Each one drawn counts as claimed for those that follow."""
        any_gated = any(is_gated for _, is_gated, _, _ in levels)
        for _, group in groupby(levels, key=_rank):
            lanes = [self._gated(level) if level[1] else self._ready(level, any_gated) for level in group]
            for candidate in lanes[0] if len(lanes) == 1 else merge(*lanes):
                if len(candidate) > 4 and not self._admits(candidate):
                    continue
                if candidate[3] is not None:
                    self._owners.add(candidate[3])
                yield candidate[2]

    def _ready(self, level: Level, with_owners: bool) -> Iterator[Candidate]:
        rank, _, queue_id, _ = level
        values = queue_id, -rank, self._until, self._now, self._limit, with_owners
        return iter(self._session.array("claim_ready", *values))

    def _gated(self, level: Level) -> Iterator[Candidate]:
        rank, _, queue_id, _ = level
        size = max(self._limit, CHUNK_MIN)
        values = queue_id, -rank, self._until, self._now, size, self._session.namespace_id
        after: tuple[Instant, bytes] = (-1, b"")
        while True:
            chunk, broken_off = self._session.array(
                "claim_gated", *values, *after, *self._counts(), max(GATED_LOOKS, 2 * size)
            )
            yield from chunk
            if broken_off is not None:
                yield from self._by_gates(values, (broken_off[0], bytes.fromhex(broken_off[1])))
                return
            if len(chunk) < size:
                return
            after = chunk[-1][0], bytes.fromhex(chunk[-1][1])

    def _by_gates(self, values: tuple[Any, ...], after: tuple[Instant, bytes]) -> Iterator[Candidate]:
        """Most runs looked at are held back: so gate by gate."""
        heads = self._session.array("claim_gates", *values, *after, *self._counts())
        yield from merge(*(self._behind(values, head) for head in sorted(heads)))

    def _behind(self, values: tuple[Any, ...], head: Candidate) -> Iterator[Candidate]:
        """The runs of one gate that may be taken, in order. Of a job in order, one."""
        *last, gate = head
        _, _, _, owner, serial, key, free = last
        yield last
        while (serial is None or owner is None) and self._keys[key] < free:
            after = last[0], bytes.fromhex(last[1])
            chunk = self._session.array("claim_behind_gate", *values[:5], *after, gate)
            for candidate in chunk:
                yield [*candidate, None, key, free]
            if len(chunk) < values[4]:
                return
            last = chunk[-1]

    def _counts(self) -> tuple[str, str]:
        """What this claim took already, as the statements are given it."""
        return json.dumps(self._keys), json.dumps(list(self._owners))

    def _admits(self, candidate: Candidate) -> bool:
        _, _, _, owner, serial, key, free = candidate
        if serial is not None and owner in self._owners:
            return False
        if key is None:
            return True
        if self._keys[key] >= free:
            return False
        self._keys[key] += 1
        return True


def _rank(level: Level) -> int:
    return level[0]
