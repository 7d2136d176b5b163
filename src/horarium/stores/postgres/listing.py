"""Lists of runs: which indexes hold what a filter asks for, and the walks down them.

Everything else that lists need (how walks become a page, why a page may be short) is in `stores.listing`. What is
finished has a table of its own, and there each state an index that holds nothing else, but `completed`: that is most of
history, and is filtered from all of the namespace, the queue or the job. What is unfinished is walked through as it
comes, unless a queue or a job has but little of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from msgspec import Struct

from horarium.clock import Instant
from horarium.model import CLAIMED, UNFINISHED, Run, State
from horarium.ports import Page, RunFilter
from horarium.stores.encoding import STATE_NUMBERS, decode_id, encode_id
from horarium.stores.listing import (
    MILLISECOND,
    SCAN_MAX,
    TEN_SECONDS,
    Walk,
    id_bounds,
    joined,
    lowest_id_after,
    newest_of,
    rest_of_page,
    tens_of,
)
from horarium.stores.postgres.rows import is_storable, storable
from horarium.stores.postgres.runs import load
from horarium.stores.postgres.session import Session

HIGHEST_ID = b"\xff" * 17
UUID_BYTES, MILLIS_BYTES = 16, 6
LATEST = (1 << 63) - 1


class _Scope(Struct, frozen=True):
    """All runs of a namespace, a queue or a job: how the names of its statements end, and its number."""

    ending: str
    number: int


async def list_runs(session: Session, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
    queue_id = None
    if where.queue is not None:
        found = await session.rows("queue_numbers", session.namespace_id, storable([where.queue]))
        if not found:
            return Page(())
        queue_id = found[0][0]
    listing = _Listing(session, where, queue_id, after, limit)
    rows, below = joined([walk async for walk in listing.walks()], limit)
    return Page(tuple(await load(session, rows)), None if below is None else decode_id(below))


async def last_runs(
    session: Session, jobs: Sequence[str], since: Instant, until: Instant, limit: int
) -> dict[str, list[Run]]:
    lowest, below = id_bounds(RunFilter(since=since, until=until), None)
    assert lowest is not None
    assert below is not None
    first, beyond = since - since % MILLISECOND, (max(until - 1, 0) // MILLISECOND + 1) * MILLISECOND
    named = storable(list(dict.fromkeys(jobs)))
    bounds = encode_id(below), encode_id(lowest), first, beyond, limit
    rows = await session.rows("last_runs", session.namespace_id, named, *bounds) if named else []
    return newest_of(jobs, await load(session, rows), limit)


class _Listing:
    """One list: what its statements are given, and which ones it takes."""

    def __init__(self, session: Session, where: RunFilter, queue_id: int | None, after: str | None, limit: int) -> None:
        self._session, self._where, self._queue_id, self._limit = session, where, queue_id, limit
        lowest, below = id_bounds(where, after)
        self._lowest = b"" if lowest is None else encode_id(lowest)
        self._below = HIGHEST_ID if below is None else encode_id(below)

    async def walks(self) -> AsyncIterator[Walk[bytes]]:
        states = self._where.states
        for scope in await self._scopes():
            if len(states) in (0, len(State)):
                yield await self._unfinished(scope, None)
                yield await self._finished(scope, None)
                continue
            together = states >= UNFINISHED
            if together:
                yield await self._unfinished(scope, None)
            for state in states - UNFINISHED if together else states:
                yield await self._walk_of_state(scope, state)

    async def _scopes(self) -> list[_Scope]:
        session, job = self._session, self._where.job
        if job is not None:
            owners = await session.rows("owners_named", session.namespace_id, job) if is_storable(job) else []
            return [_Scope("_of_owner", row[0]) for row in owners]
        if self._queue_id is not None:
            return [_Scope("_of_queue", self._queue_id)]
        return [_Scope("", session.namespace_id)]

    async def _walk_of_state(self, scope: _Scope, state: State) -> Walk[bytes]:
        if state in UNFINISHED:
            return await self._unfinished(scope, state)
        if state is State.COMPLETED:
            return await self._finished(scope, state)
        return await self._walk(f"list_ended_runs{scope.ending}", scope.number, state)

    async def _finished(self, scope: _Scope, state: State | None) -> Walk[bytes]:
        if scope.ending == "_of_queue" and await self._session.is_in_less():
            by_time = await self._of_queue_by_time(scope.number, state)
            return by_time or await self._walk("list_finished_runs", self._session.namespace_id, state)
        if scope.ending != "_of_owner":
            return await self._walk(f"list_finished_runs{scope.ending}", scope.number, state)
        name, values = "list_finished_runs_of_owner", self._values(scope.number, state)
        rows = await self._session.rows(name, *values, _last_fire_below(self._below))
        found = _matching(rows)
        cut = _is_cut(rows, found, self._limit)
        if (rest := rest_of_page([row["fire_at"] for _, row in found], self._limit)) is not None:
            first, last = rest
            since = first if self._where.since is None else max(first, self._where.since)
            more = *values[:4], SCAN_MAX, *values[5:7], since, values[8], last
            found += _matching(await self._session.rows(name, *more))
        return _cut_at(found, rows[-1]["fire_at"] if cut else None, self._limit)

    async def _of_queue_by_time(self, number: int, state: State | None) -> Walk[bytes] | None:
        """What is finished in a queue, by tens of seconds. None: one of these is so full that a walk of all ids
        finds them as soon."""
        values, name = self._values(number, state), "list_finished_runs_of_queue_by_time"
        first, last = tens_of(_first_fire_from(self._lowest)), tens_of(_last_fire_below(self._below))
        rows = await self._session.rows(name, *values, last, first)
        found = _matching(rows)
        cut = _is_cut(rows, found, self._limit)
        if not cut and len(found) <= self._limit:
            return Walk(sorted(found, key=_id_of, reverse=True))
        end = tens_of(rows[-1]["fire_at"])
        if cut:
            broken_off = (end + 1) * TEN_SECONDS - 1
            ahead = encode_id(lowest_id_after(broken_off)) >= self._below
            return None if ahead else _cut_at(found, broken_off, self._limit)
        rest = await self._session.rows("list_finished_runs_within_ten_seconds", *values, end)
        if rest and rest[0]["place"] >= SCAN_MAX:
            return None
        there = dict([*found, *_matching(rest)])
        return Walk(sorted(there.items(), key=_id_of, reverse=True)[: self._limit + 1])

    async def _unfinished(self, scope: _Scope, state: State | None) -> Walk[bytes]:
        if scope.ending == "_of_owner":
            return await self._by_fire(scope.number, state)
        if state in CLAIMED:
            return await self._walk("list_claimed_runs", self._session.namespace_id, state)
        if scope.ending == "_of_queue":
            few = await self._few_of_queue(state)
            if few is not None:
                return few
        return await self._walk("list_unfinished_runs", self._session.namespace_id, state)

    async def _walk(self, name: str, number: int, state: State | None) -> Walk[bytes]:
        rows = await self._session.rows(name, *self._values(number, state))
        found = _matching(rows)
        return Walk(found, rows[-1]["id"] if _is_cut(rows, found, self._limit) else None)

    async def _few_of_queue(self, state: State | None) -> Walk[bytes] | None:
        """All that is unfinished in the queue; None if that is too much."""
        values = *self._values(self._session.namespace_id, state), self._session.namespace_id
        rows = await self._session.rows("list_unfinished_runs_of_queue", *values)
        if rows and rows[0]["place"] > SCAN_MAX:
            return None
        return Walk(sorted(_matching(rows), key=_id_of, reverse=True)[: self._limit + 1])

    async def _by_fire(self, number: int, state: State | None) -> Walk[bytes]:
        values = *self._values(number, state), _last_fire_below(self._below)
        rows = await self._session.rows("list_unfinished_runs_of_owner", *values)
        ends = [row["fire_at"] for row in rows if row["place"] == SCAN_MAX]
        return _cut_at(_matching(rows), ends[0] if ends else None, self._limit)

    def _values(self, number: int, state: State | None) -> tuple[Any, ...]:
        state_number = None if state is None else STATE_NUMBERS[state]
        bounds = self._below, self._lowest, SCAN_MAX, self._limit + 1
        return number, *bounds, self._queue_id, state_number, self._where.since, self._where.until


def _cut_at(found: Sequence[tuple[bytes, Any]], end: Instant | None, limit: int) -> Walk[bytes]:
    """A walk by fire time, which was broken off at `end`."""
    frontier = None if end is None else encode_id(lowest_id_after(end))
    ids = sorted(found, key=_id_of, reverse=True)
    return Walk([pair for pair in ids if frontier is None or pair[0] >= frontier][: limit + 1], frontier)


def _is_cut(rows: Sequence[Any], found: Sequence[tuple[bytes, Any]], limit: int) -> bool:
    """Whether a walk was broken off before it had found more than the page holds."""
    return len(found) <= limit and bool(rows) and rows[-1]["place"] == SCAN_MAX


def _matching(rows: Sequence[Any]) -> list[tuple[bytes, Any]]:
    return [(row["id"], row) for row in rows if row["matches"]]


def _id_of(pair: tuple[bytes, Any]) -> bytes:
    return pair[0]


def _first_fire_from(lowest: bytes) -> Instant:
    """The lowest fire time that an id not below this one can have."""
    return int.from_bytes(lowest[:MILLIS_BYTES], "big") * MILLISECOND


def _last_fire_below(below: bytes) -> Instant:
    """The highest fire time that an id below this one can have."""
    if len(below) != UUID_BYTES:
        return LATEST
    return (int.from_bytes(below[:MILLIS_BYTES], "big") + 1) * MILLISECOND - 1
