"""The claim: which runs are next, at a cost that depends neither on history nor on runs due later.

Waiting runs are in two indexes, in claim order: `ready` ones, which nothing can hold back, and `gated` ones, which a
concurrency key or the order of their job may. A level is one priority of one queue in one of the two. As long as no
gated run is due, a claim is one statement that skips what others are taking (`claim_at_once`).

Of gated runs claimers together must not exceed a maximum (docs/architecture/claiming.md). Once any is due, the claim
walks the levels exactly, highest priority first and merged by (due_at, id). Python counts what it took, since that
counts for those that follow; each further chunk of a level is asked for with the counts so far, so that a full key is
skipped inside the server. Where a bounded look found too few, the gates are walked instead, and of each only the first
run counts: no claim looks at each run that waits behind a shut gate. Nothing is locked until the wanted runs are known.
Then their gates are locked, in the order of their numbers, so that claimers can't deadlock; only then does a newer
snapshot show which of the runs no other claimer has taken. Claimers wait for each other only where they want runs of
the same key or job.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any
from zlib import crc32

from msgspec import Struct

from horarium.clock import Instant
from horarium.model import Level as PortLevel
from horarium.model import Run
from horarium.ports import Claimed
from horarium.stores.encoding import decode_id, encode_text
from horarium.stores.postgres.marks import NO_MARKS, not_after_the_next_look
from horarium.stores.postgres.rows import OWNER_COLUMN, is_storable, storable
from horarium.stores.postgres.runs import load
from horarium.stores.postgres.session import Session

CHUNK_MIN = 16
"""How many gated runs are looked at in one go, at least."""

GATED_LOOKS = 200
"""How many gated runs of a level are looked at, at least, before its gates are walked."""

GATES = 128
"""The locks that all keys and jobs of a namespace share, and so the most that one claim holds: a server has room for a
few thousand in all."""

ROUNDS_MAX = 8
"""How often a claim looks again at once because others took all that it wanted."""

Candidate = tuple[Any, ...]
"""due_at, id, owner; if gated: serial, concurrency key, how many the key admitted before this claim."""

Level = tuple[int, int, int, Instant]
"""The priority, negated; 1 if gated, else 0; the queue; and when the first is due."""


class Due(Struct, frozen=True):
    """The levels in which something is due, gated runs too, and when the first future run is due. To look for them
    again would cost as much as it did: each look steps over dead entries of claims since the last vacuum."""

    levels: Sequence[Level]
    next_due_at: Instant | None


async def claim_at_once(
    session: Session, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
) -> Claimed | Due:
    """The claim, unless gated runs are due: then nothing was taken."""
    names, memory = storable(set(queues)), session.memory
    marks = memory.marks.of(names, memory.queues)
    begun = time.monotonic()
    given = session.namespace_id, names, limit, encode_text(worker), now, until, steady - now
    if marks is NO_MARKS:
        rows = await session.rows("claim_at_once", *given)
    else:
        rows = await session.rows("claim_at_marks", *given, *marks)
    first = rows[0]
    if first["gated_due"]:
        return Due([tuple(level) for level in first["levels"]], first["next_due_at"])
    taken, next_due_at = rows if first["id"] is not None else [], first["next_due_at"]
    if marks is NO_MARKS:
        memory.marks.looked(taken, time.monotonic() - begun)
    else:
        next_due_at = not_after_the_next_look(next_due_at, until)
    return await claimed(session, taken, until if len(taken) >= limit else next_due_at)


async def claim_exactly(
    session: Session,
    queues: Sequence[str],
    limit: int,
    worker: str,
    now: Instant,
    until: Instant,
    steady: Instant,
    found: Due | None = None,
) -> Claimed:
    """The claim, gated runs included. In a transaction. Where others took some first, `next_due_at` is `until`.
    `found`: the levels seen a moment ago; None: look."""
    await session.enter_gates()
    levels = await levels_after(session, queues, -1) if found is None else found.levels
    rows, wanted = await take(session, levels, limit, worker, now, until, steady)
    if len(rows) >= limit or len(rows) < wanted:
        return await claimed(session, rows, until)
    return await claimed(
        session, rows, await next_after(session, queues, until) if found is None else found.next_due_at
    )


async def levels_after(session: Session, queues: Sequence[str], instant: Instant) -> list[Level]:
    """The levels of these queues in which something waits that is due after this instant."""
    rows = await session.rows("claim_levels", session.namespace_id, storable(set(queues)), instant)
    return [tuple(row) for row in rows]


async def first_due(session: Session, levels: Sequence[PortLevel]) -> list[Instant | None]:
    queues, priorities, gated = zip(*levels, strict=True)
    names = [queue if is_storable(queue) else "" for queue in queues]
    rows = await session.rows("first_due", session.namespace_id, names, list(priorities), list(gated))
    return [row[0] for row in rows]


async def next_after(session: Session, queues: Sequence[str], until: Instant) -> Instant | None:
    """When the first run after `until` is due."""
    return min((level[3] for level in await levels_after(session, queues, until)), default=None)


async def take(
    session: Session, levels: Sequence[Level], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
) -> tuple[list[Any], int]:
    """The rows that were claimed from these levels, and how many were wanted. In a transaction."""
    chosen = await _Walk(session, limit, now, until).choose(sorted(level for level in levels if level[3] <= until))
    admitted = await _admitted(session, chosen)
    if not admitted:
        return [], len(chosen)
    # In the order in which every statement takes runs, so that none waits for another that waits for it.
    admitted.sort(key=decode_id)
    given = admitted, encode_text(worker), now, steady - now
    return await session.rows("claim_runs", session.namespace_id, *given), len(chosen)


async def _admitted(session: Session, chosen: Sequence[Candidate]) -> list[bytes]:
    """The ids of those that nothing holds back, now that no other claim can take them."""
    gated = [candidate for candidate in chosen if len(candidate) > 3]
    if not gated:
        return [candidate[1] for candidate in chosen]
    await session.lock_gates(sorted({gate for candidate in gated for gate in gates_of(candidate)}))
    ids = [candidate[1] for candidate in gated]
    rows = await session.rows("free_gates", session.namespace_id, ids)
    free = {row[0]: row[1] for row in rows if row[2]}
    counts: Counter[bytes] = Counter()
    admitted = []
    for candidate in chosen:
        if len(candidate) > 3:
            key = candidate[4]
            if candidate[1] not in free or (key is not None and counts[key] >= free[candidate[1]]):
                continue
            counts[key] += key is not None
        admitted.append(candidate[1])
    return admitted


def gates_of(candidate: Candidate) -> Iterator[int]:
    """The locks under which a gated run may be claimed: of its key, and of its job if that wants order."""
    owner, serial, key = candidate[2:5]
    if key is not None:
        yield crc32(key) % GATES
    if serial and owner is not None:
        yield owner % GATES


async def claimed(session: Session, rows: Sequence[Any], next_due_at: Instant | None) -> Claimed:
    if not rows:
        return Claimed(next_due_at=next_due_at)
    runs = await load(session, rows)
    versions = {
        run.job_id: (row[OWNER_COLUMN], row["job_version"])
        for run, row in zip(runs, rows, strict=True)
        if run.job_id is not None and row["job_version"] is not None
    }
    runs.sort(key=_due_at_and_id if len(set(map(_priority, runs))) == 1 else _claim_order)
    jobs = await session.jobs_at(versions) if versions else {}
    return Claimed(tuple(runs), jobs, next_due_at)


_due_at_and_id, _priority = attrgetter("due_at", "id"), attrgetter("priority")


def _claim_order(run: Run) -> tuple[int, Instant, str]:
    return -run.priority, run.due_at, run.id


class _Walk:
    """One claim: which runs may be taken, in claim order, as if each were taken before the next is looked at."""

    def __init__(self, session: Session, limit: int, now: Instant, until: Instant) -> None:
        self._session, self._limit = session, limit
        self._now, self._until = now, until
        self._keys: Counter[bytes] = Counter()
        self._owners: set[int] = set()

    async def choose(self, levels: Sequence[Level]) -> list[Candidate]:
        """The runs to take, from levels that are sorted by rank."""
        chosen: list[Candidate] = []
        if self._limit <= 0:
            return chosen
        for _, group in groupby(levels, key=lambda level: level[0]):
            lanes = [
                self._gated(queue_id, -rank, first) if is_gated else self._ready(queue_id, -rank)
                for rank, is_gated, queue_id, first in group
            ]
            async for candidate in _merged(lanes):
                if len(candidate) > 3 and not self._admits(candidate):
                    continue
                if candidate[2] is not None:
                    self._owners.add(candidate[2])
                chosen.append(candidate)
                if len(chosen) >= self._limit:
                    return chosen  # before the next is looked for, which may cost another statement
        return chosen

    async def _ready(self, queue_id: int, priority: int) -> AsyncIterator[Candidate]:
        values = queue_id, priority, self._until, self._now, self._limit
        for row in await self._session.rows("claim_ready", *values):
            yield tuple(row)

    async def _gated(self, queue_id: int, priority: int, first_due_at: Instant) -> AsyncIterator[Candidate]:
        size = max(self._limit, CHUNK_MIN)
        looks = max(GATED_LOOKS, 2 * size)
        level = queue_id, priority, self._until, self._now
        after: tuple[Instant, bytes] = (first_due_at, b"")
        while True:
            values = *level, size, self._session.namespace_id, *after, *self._counts(), looks
            chunk = [tuple(row) for row in await self._session.rows("claim_gated", *values)]
            for row in chunk:
                if row[5] is not None:
                    yield row[:6]
            if not chunk:
                return
            after, place = (chunk[-1][0], chunk[-1][1]), chunk[-1][6]
            if place == looks:
                break
            if len(chunk) < size:
                return
        async for candidate in self._by_gates(level, size, after):
            yield candidate

    async def _by_gates(
        self, level: tuple[int, int, Instant, Instant], size: int, after: tuple[Instant, bytes]
    ) -> AsyncIterator[Candidate]:
        """Most runs looked at are held back: so gate by gate."""
        values = *level, self._session.namespace_id, *after, *self._counts()
        rows = await self._session.rows("claim_gates", *values)
        heads = sorted((tuple(row) for row in rows), key=lambda head: head[:2])
        async for candidate in _merged([self._behind(level, size, head) for head in heads]):
            yield candidate

    async def _behind(
        self, level: tuple[int, int, Instant, Instant], size: int, head: Candidate
    ) -> AsyncIterator[Candidate]:
        """The runs of one gate that may be taken, in order. Of a job in order, one."""
        *first, gate = head
        _, _, owner, serial, key, free = first
        yield tuple(first)
        last: Sequence[Any] = first
        while not (serial and owner is not None) and self._keys[key] < free:
            chunk = await self._session.rows("claim_behind_gate", *level, size, last[0], last[1], gate)
            for due_at, run_id, its_owner in chunk:
                yield due_at, run_id, its_owner, False, key, free
            if len(chunk) < size:
                return
            last = chunk[-1]

    def _counts(self) -> tuple[list[bytes], list[int], list[int]]:
        """What this claim took already, as the statements are given it."""
        return list(self._keys), list(self._keys.values()), list(self._owners)

    def _admits(self, candidate: Candidate) -> bool:
        _, _, owner, serial, key, free = candidate
        if serial and owner is not None and owner in self._owners:
            return False
        if key is None:
            return True
        if self._keys[key] >= free:
            return False
        self._keys[key] += 1
        return True


async def _merged(lanes: Sequence[AsyncIterator[Candidate]]) -> AsyncIterator[Candidate]:
    """The candidates of all lanes by (due_at, id), each lane read only as far as needed."""
    heads = [(head, lane) for lane in lanes if (head := await anext(lane, None)) is not None]
    while heads:
        place = min(range(len(heads)), key=lambda index: heads[index][0][:2])
        candidate, lane = heads[place]
        yield candidate
        following = await anext(lane, None)
        if following is None:
            del heads[place]
        else:
            heads[place] = following, lane
