"""The claim: who is next, at a cost that neither history nor the future changes.

Waiting runs stand in two indexes, in claim order: `ready` ones, which nothing can hold back, and `gated` ones, which a
concurrency key or the order of their job may. A level is one priority of one queue in one of the two. As long as no
gated run is due, a claim is one statement that skips what others are taking (`claim_at_once`).

The hard thing is the gated ones: claimers together must not exceed a maximum. Once any is due, the claim walks the
levels exactly, highest priority first and merged by (due_at, id). Python counts what it took, since that counts for
those that follow; each further chunk of a level is asked for with the counts so far, so that a full key is skipped
inside the server. Nothing is locked until it is known what is wanted. Then the gates of these runs are, in the order of
their numbers, so that no two claimers wait for each other in a circle; and only then, under a newer snapshot, it shows
which of them nobody was faster at. Claimers wait for each other only where they want runs of the same key or job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import groupby
from typing import Any
from zlib import crc32

from horarium.clock import Instant
from horarium.model import Run
from horarium.ports import Claimed
from horarium.stores.encoding import encode_text
from horarium.stores.postgres.rows import OWNER_COLUMN, storable
from horarium.stores.postgres.runs import load
from horarium.stores.postgres.session import Session

CHUNK_MIN = 16
"""How many gated runs are looked at in one go at the least."""

GATES = 128
"""Keys and jobs share so many locks in a namespace, so that no claim holds more of them: a server has room for a few
thousand in all."""

ROUNDS_MAX = 8
"""How often a claim looks again at once because others were faster at all that it wanted."""

Candidate = tuple[Any, ...]
"""due_at, id, owner; if gated: serial, concurrency key, and how many the key admitted before this claim."""

Level = tuple[int, int, int, Instant]
"""The priority, negated; 1 if gated, else 0; the queue; and when the first is due."""


async def claim_at_once(
    session: Session, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant
) -> Claimed | None:
    """The claim, unless gated runs are due: then None, and nothing was taken."""
    names, by = storable(set(queues)), encode_text(worker)
    rows = await session.rows("claim_at_once", session.namespace_id, names, limit, by, now, until)
    first = rows[0]
    if first["gated_due"]:
        return None
    taken, next_due_at = rows if first["id"] is not None else [], first["next_due_at"]
    return await claimed(session, taken, until if len(taken) >= limit else next_due_at)


async def claim_exactly(
    session: Session, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant
) -> Claimed:
    """The claim, gated runs included. In a transaction. Where others were faster at some, `next_due_at` is `until`."""
    await session.enter_gates()
    rows, wanted = await take(session, await levels_after(session, queues, -1), limit, worker, now, until)
    more = len(rows) >= limit or len(rows) < wanted
    return await claimed(session, rows, until if more else await next_after(session, queues, until))


async def levels_after(session: Session, queues: Sequence[str], instant: Instant) -> list[Level]:
    """The levels of these queues in which something waits that is due after this instant."""
    rows = await session.rows("claim_levels", session.namespace_id, storable(set(queues)), instant)
    return [tuple(row) for row in rows]


async def next_after(session: Session, queues: Sequence[str], until: Instant) -> Instant | None:
    """When the first of what is due after `until` is."""
    return min((level[3] for level in await levels_after(session, queues, until)), default=None)


async def take(
    session: Session, levels: Sequence[Level], limit: int, worker: str, now: Instant, until: Instant
) -> tuple[list[Any], int]:
    """The rows that were claimed from these levels, and how many were wanted. In a transaction."""
    chosen = await _Walk(session, limit, now, until).choose(sorted(level for level in levels if level[3] <= until))
    admitted = await _admitted(session, chosen)
    if not admitted:
        return [], len(chosen)
    return await session.rows("claim_runs", session.namespace_id, admitted, encode_text(worker), now), len(chosen)


async def _admitted(session: Session, chosen: Sequence[Candidate]) -> list[bytes]:
    """The ids of those that nothing holds back, now that nobody else can claim beside them."""
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
    _, _, owner, serial, key, _ = candidate
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
    runs.sort(key=_claim_order)
    jobs = await session.jobs_at(versions) if versions else {}
    return Claimed(tuple(runs), jobs, next_due_at)


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
        for _, group in groupby(levels, key=lambda level: level[0]):
            lanes = [
                self._gated(queue_id, -rank) if is_gated else self._ready(queue_id, -rank)
                for rank, is_gated, queue_id, _ in group
            ]
            async for candidate in _merged(lanes):
                if len(chosen) >= self._limit:
                    return chosen
                if len(candidate) > 3 and not self._admits(candidate):
                    continue
                if candidate[2] is not None:
                    self._owners.add(candidate[2])
                chosen.append(candidate)
        return chosen

    async def _ready(self, queue_id: int, priority: int) -> AsyncIterator[Candidate]:
        values = queue_id, priority, self._until, self._now, self._limit
        for row in await self._session.rows("claim_ready", *values):
            yield tuple(row)

    async def _gated(self, queue_id: int, priority: int) -> AsyncIterator[Candidate]:
        size = max(self._limit, CHUNK_MIN)
        values = queue_id, priority, self._until, self._now, size, self._session.namespace_id
        after: tuple[Instant, bytes] = (-1, b"")
        while True:
            counts = list(self._keys), list(self._keys.values()), list(self._owners)
            chunk = await self._session.rows("claim_gated", *values, *after, *counts)
            for row in chunk:
                yield tuple(row)
            if len(chunk) < size:
                return
            after = chunk[-1][0], chunk[-1][1]

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
