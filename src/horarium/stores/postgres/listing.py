"""Lists of runs: which indexes hold what a filter asks for, and the walks down them.

Everything else that lists need (how walks become a page, why a page may be short) is in `stores.listing`. Finished runs
have a table of their own, and there each state an index that holds nothing else, but `completed`: that is most of
history, and is filtered from all of the namespace, the queue or the job. Unfinished runs are walked through in their
order, unless a queue or a job has but little of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from horarium.clock import Instant
from horarium.model import CLAIMED, UNFINISHED, Run, State
from horarium.ports import Page, RunFilter
from horarium.stores.encoding import decode_id
from horarium.stores.listing import SCAN_MAX, Walk, joined, newest_of, tens_of
from horarium.stores.postgres.rows import is_storable, storable
from horarium.stores.postgres.runs import load
from horarium.stores.postgres.session import Session
from horarium.stores.walks import Scope, Search, bounds_between, id_of, search_of


async def list_runs(session: Session, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
    queue_ids: list[int | None] = [None]
    if where.queue is not None:
        found = await session.rows("queue_numbers", session.namespace_id, storable([where.queue]))
        queue_ids = [row[0] for row in found]
    listings = [_Listing(session, search_of(where, queue_id, after, limit)) for queue_id in queue_ids]
    rows, below = joined([walk for listing in listings async for walk in listing.walks()], limit)
    return Page(tuple(await load(session, rows)), None if below is None else decode_id(below))


async def last_runs(
    session: Session, jobs: Sequence[str], since: Instant, until: Instant, limit: int
) -> dict[str, list[Run]]:
    named = storable(list(dict.fromkeys(jobs)))
    bounds = bounds_between(since, until)
    rows = await session.rows("last_runs", session.namespace_id, named, *bounds, limit) if named else []
    return newest_of(jobs, await load(session, rows), limit)


class _Listing:
    """One list: which statements it takes."""

    def __init__(self, session: Session, search: Search) -> None:
        self._session, self._search = session, search

    async def walks(self) -> AsyncIterator[Walk[bytes]]:
        states = self._search.where.states
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

    async def _scopes(self) -> list[Scope]:
        session, job = self._session, self._search.where.job
        if job is not None:
            owners = await session.rows("owners_named", session.namespace_id, job) if is_storable(job) else []
            return [Scope("_of_owner", row[0]) for row in owners]
        if self._search.queue_id is not None:
            return [Scope("_of_queue", self._search.queue_id)]
        return [Scope("", session.namespace_id)]

    async def _walk_of_state(self, scope: Scope, state: State) -> Walk[bytes]:
        if state in UNFINISHED:
            return await self._unfinished(scope, state)
        if state is State.COMPLETED:
            return await self._finished(scope, state)
        return await self._walk(f"list_ended_runs{scope.ending}", scope.number, state)

    async def _finished(self, scope: Scope, state: State | None) -> Walk[bytes]:
        if scope.ending == "_of_queue" and self._session.walks_by_time:
            by_time = await self._of_queue_by_time(scope.number, state)
            return by_time or await self._walk("list_finished_runs", self._session.namespace_id, state)
        if scope.ending != "_of_owner":
            return await self._walk(f"list_finished_runs{scope.ending}", scope.number, state)
        name, values = "list_finished_runs_of_owner", self._search.values_by_fire(scope.number, state)
        rows = await self._session.rows(name, *values)
        found = _matching(rows)
        cut = self._is_cut(rows, found)
        rest = self._search.values_of_rest(values, [row["fire_at"] for _, row in found])
        if rest is not None:
            found += _matching(await self._session.rows(name, *rest))
        return self._search.cut_at(found, rows[-1]["fire_at"] if cut else None)

    async def _of_queue_by_time(self, number: int, state: State | None) -> Walk[bytes] | None:
        """Finished runs of a queue, by tens of seconds. None: one of these is so full that a walk of all ids finds them
        as soon."""
        values = self._search.values_by_time(number, state)
        rows = await self._session.rows("list_finished_runs_of_queue_by_time", *values)
        found = _matching(rows)
        if self._is_cut(rows, found):
            end = self._search.cut_above(tens_of(rows[-1]["fire_at"]))
            return None if end is None else self._search.cut_at(found, end)
        if len(found) > self._search.limit:
            values = *self._search.values(number, state), tens_of(rows[-1]["fire_at"])
            rest = await self._session.rows("list_finished_runs_within_ten_seconds", *values)
            if rest and rest[0]["place"] >= SCAN_MAX:
                return None
            found = [*dict([*found, *_matching(rest)]).items()]
        return self._search.cut_at(found, None)

    async def _unfinished(self, scope: Scope, state: State | None) -> Walk[bytes]:
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
        rows = await self._session.rows(name, *self._search.values(number, state))
        found = _matching(rows)
        return Walk(found, rows[-1]["id"] if self._is_cut(rows, found) else None)

    def _is_cut(self, rows: Sequence[Any], found: Sequence[tuple[bytes, Any]]) -> bool:
        """Whether a walk was broken off before it had found more than the page holds."""
        return len(found) <= self._search.limit and bool(rows) and rows[-1]["place"] == SCAN_MAX

    async def _few_of_queue(self, state: State | None) -> Walk[bytes] | None:
        """All that is unfinished in the queue; None if that is too much."""
        values = *self._search.values(self._session.namespace_id, state), self._session.namespace_id
        rows = await self._session.rows("list_unfinished_runs_of_queue", *values)
        if rows and rows[0]["place"] > SCAN_MAX:
            return None
        return Walk(sorted(_matching(rows), key=id_of, reverse=True)[: self._search.limit + 1])

    async def _by_fire(self, number: int, state: State | None) -> Walk[bytes]:
        rows = await self._session.rows("list_unfinished_runs_of_owner", *self._search.values_by_fire(number, state))
        ends = [row["fire_at"] for row in rows if row["place"] == SCAN_MAX]
        return self._search.cut_at(_matching(rows), ends[0] if ends else None)


def _matching(rows: Sequence[Any]) -> list[tuple[bytes, Any]]:
    return [(row["id"], row) for row in rows if row["matches"]]
