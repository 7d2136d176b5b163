"""Lists of runs: which indexes hold what a filter asks for, and the walks down them.

Everything else that lists need (how walks become a page, why a page may be short) is in `stores.listing`. Each
state has an index that holds nothing else, but `completed`: that is most of history, and is filtered from all runs of
the namespace, the queue or the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from horarium.clock import Instant
from horarium.model import UNFINISHED, Run, State
from horarium.ports import Page, RunFilter
from horarium.stores.encoding import decode_id
from horarium.stores.listing import SCAN_MAX, Walk, joined, newest_of
from horarium.stores.sqlite.rows import load_runs
from horarium.stores.sqlite.session import Session
from horarium.stores.walks import Scope, Search, bounds_between, search_of


def list_runs(session: Session, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
    queue_id = None
    if where.queue is not None:
        queue_id = session.queue_numbers((where.queue,)).get(where.queue)
        if queue_id is None:
            return Page(())
    listing = _Listing(session, search_of(where, queue_id, after, limit))
    numbers, below = joined(listing.walks(), limit)
    return Page(tuple(load_runs(session, numbers)), None if below is None else decode_id(below))


def last_runs(
    session: Session, jobs: Sequence[str], since: Instant, until: Instant, limit: int
) -> dict[str, list[Run]]:
    below, lowest, first, beyond = bounds_between(since, until)
    numbers: list[int] = []
    for job in dict.fromkeys(jobs):
        for owner in session.array("owners_named", session.namespace_id, job):
            numbers += session.array("last_runs_of_owner", owner, below, lowest, limit, first, beyond)
    return newest_of(jobs, load_runs(session, numbers), limit)


class _Listing:
    """One list: which statements it takes."""

    def __init__(self, session: Session, search: Search) -> None:
        self._session, self._search = session, search

    def walks(self) -> Iterator[Walk[bytes]]:
        for scope in self._scopes():
            if len(self._search.where.states) in (0, len(State)):
                yield self._of_any_state(scope, None)
            else:
                yield from self._walks_of_states(scope, self._search.where.states)

    def _scopes(self) -> list[Scope]:
        session = self._session
        if self._search.where.job is not None:
            owners = session.array("owners_named", session.namespace_id, self._search.where.job)
            return [Scope("_of_owner", owner) for owner in owners]
        if self._search.queue_id is not None:
            return [Scope("_of_queue", self._search.queue_id)]
        return [Scope("", session.namespace_id)]

    def _walks_of_states(self, scope: Scope, states: Set[State]) -> Iterator[Walk[bytes]]:
        if scope.ending == "_of_owner" and states >= UNFINISHED:
            yield self._walk_by_fire(scope.number, None)
            states = states - UNFINISHED
        yield from (self._walk_of_state(scope, state) for state in states)

    def _walk_of_state(self, scope: Scope, state: State) -> Walk[bytes]:
        if state is State.COMPLETED:
            return self._of_any_state(scope, state)
        if state not in UNFINISHED:
            return self._walk(f"list_ended_runs{scope.ending}", scope.number, state)
        if scope.ending == "_of_owner":
            return self._walk_by_fire(scope.number, state)
        name = "list_pending_runs" if state is State.PENDING else "list_claimed_runs"
        return self._walk(name, self._session.namespace_id, state)

    def _walk(self, name: str, number: int, state: State | None) -> Walk[bytes]:
        found, broken_off = self._session.array(name, *self._search.values(number, state))
        return Walk(_ids(found), None if broken_off is None else bytes.fromhex(broken_off))

    def _of_any_state(self, scope: Scope, state: State | None) -> Walk[bytes]:
        """A walk through all runs there are; `state`: to filter."""
        if scope.ending == "_of_queue":
            by_time = self._of_queue_by_time(scope.number, state)
            return by_time or self._walk("list_runs", self._session.namespace_id, state)
        if scope.ending != "_of_owner":
            return self._walk("list_runs", scope.number, state)
        values = self._search.values_by_fire(scope.number, state)
        found, ended_at = self._session.array("list_runs_of_owner", *values)
        rest = self._search.values_of_rest(values, [fire_at for _, _, fire_at in found])
        if rest is not None:
            found += self._session.array("list_runs_of_owner", *rest)[0]
        return self._search.cut_at(_ids((digits, num) for digits, num, _ in found), ended_at)

    def _of_queue_by_time(self, number: int, state: State | None) -> Walk[bytes] | None:
        """All that is in a queue, by tens of seconds. None: one of these is so full that a walk of all ids finds them
        as soon."""
        values, name = self._search.values_by_time(number, state), "list_runs_of_queue_by_time"
        found, ended_in = self._session.array(name, *values)
        end = None if ended_in is None else self._search.cut_above(ended_in)
        if ended_in is not None and end is None:
            return None
        if len(found) > self._search.limit:
            last = found[-1][2]
            rest, more = self._session.array(name, *values[:4], SCAN_MAX, *values[5:9], last, last)
            if more is not None or len(rest) >= SCAN_MAX:
                return None
            found += rest
        return self._search.cut_at(_ids({(digits, num) for digits, num, _ in found}), end)

    def _walk_by_fire(self, number: int, state: State | None) -> Walk[bytes]:
        values = self._search.values_by_fire(number, state)
        found, broken_off = self._session.array("list_unfinished_runs_of_owner", *values)
        return self._search.cut_at(_ids(found), broken_off)


def _ids(found: Iterable[tuple[str, int]]) -> list[tuple[bytes, int]]:
    return [(bytes.fromhex(digits), num) for digits, num in found]
