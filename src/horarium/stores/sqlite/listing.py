"""Lists of runs: which indexes hold what a filter asks for, and the walks down them.

Everything else that lists need (how walks become a page, why a page may be short) is in `stores.listing`. Each
state has an index that holds nothing else, but `completed`: that is most of history, and is filtered from all runs of
the namespace, the queue or the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from msgspec import Struct

from horarium.clock import Instant
from horarium.model import UNFINISHED, Run, State
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
from horarium.stores.sqlite.rows import load_runs
from horarium.stores.sqlite.session import Session, is_in_less

ABOVE_ALL_IDS = b"\xff" * 17
UUID_BYTES, MILLIS_BYTES = 16, 6
INSTANT_ABOVE_ALL = (1 << 63) - 1


class _Scope(Struct, frozen=True):
    """All runs of a namespace, a queue or a job: how the names of its statements end, and its number."""

    ending: str
    number: int


def list_runs(session: Session, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
    queue_id = None
    if where.queue is not None:
        queue_id = session.queue_numbers((where.queue,)).get(where.queue)
        if queue_id is None:
            return Page(())
    listing = _Listing(session, where, queue_id, after, limit)
    numbers, below = joined(listing.walks(), limit)
    return Page(tuple(load_runs(session, numbers)), None if below is None else decode_id(below))


def last_runs(
    session: Session, jobs: Sequence[str], since: Instant, until: Instant, limit: int
) -> dict[str, list[Run]]:
    lowest, below = id_bounds(RunFilter(since=since, until=until), None)
    assert lowest is not None
    assert below is not None
    first, beyond = since - since % MILLISECOND, (max(until - 1, 0) // MILLISECOND + 1) * MILLISECOND
    bounds = encode_id(below), encode_id(lowest), limit, first, beyond
    numbers: list[int] = []
    for job in dict.fromkeys(jobs):
        for owner in session.array("owners_named", session.namespace_id, job):
            numbers += session.array("last_runs_of_owner", owner, *bounds)
    return newest_of(jobs, load_runs(session, numbers), limit)


class _Listing:
    """One list: what its statements are given, and which ones it takes."""

    def __init__(self, session: Session, where: RunFilter, queue_id: int | None, after: str | None, limit: int) -> None:
        self._session, self._where, self._queue_id, self._limit = session, where, queue_id, limit
        lowest, below = id_bounds(where, after)
        self._lowest = b"" if lowest is None else encode_id(lowest)
        self._below = ABOVE_ALL_IDS if below is None else encode_id(below)

    def walks(self) -> Iterator[Walk[bytes]]:
        for scope in self._scopes():
            if len(self._where.states) in (0, len(State)):
                yield self._of_any_state(scope, None)
            else:
                yield from self._walks_of_states(scope, self._where.states)

    def _scopes(self) -> list[_Scope]:
        session = self._session
        if self._where.job is not None:
            owners = session.array("owners_named", session.namespace_id, self._where.job)
            return [_Scope("_of_owner", owner) for owner in owners]
        if self._queue_id is not None:
            return [_Scope("_of_queue", self._queue_id)]
        return [_Scope("", session.namespace_id)]

    def _walks_of_states(self, scope: _Scope, states: Set[State]) -> Iterator[Walk[bytes]]:
        if scope.ending == "_of_owner" and states >= UNFINISHED:
            yield self._walk_by_fire(scope.number, None)
            states = states - UNFINISHED
        yield from (self._walk_of_state(scope, state) for state in states)

    def _walk_of_state(self, scope: _Scope, state: State) -> Walk[bytes]:
        if state is State.COMPLETED:
            return self._of_any_state(scope, state)
        if state not in UNFINISHED:
            return self._walk(f"list_ended_runs{scope.ending}", scope.number, state)
        if scope.ending == "_of_owner":
            return self._walk_by_fire(scope.number, state)
        name = "list_pending_runs" if state is State.PENDING else "list_claimed_runs"
        return self._walk(name, self._session.namespace_id, state)

    def _walk(self, name: str, number: int, state: State | None) -> Walk[bytes]:
        found, broken_off = self._session.array(name, *self._values(number, state))
        ids = [(bytes.fromhex(digits), num) for digits, num in found]
        return Walk(ids, None if broken_off is None else bytes.fromhex(broken_off))

    def _of_any_state(self, scope: _Scope, state: State | None) -> Walk[bytes]:
        """A walk through all runs there are; `state`: to filter."""
        if scope.ending == "_of_queue" and is_in_less(self._session):
            found_by_time = self._of_queue_by_time(scope.number, state)
            return found_by_time or self._walk("list_runs", self._session.namespace_id, state)
        if scope.ending != "_of_owner":
            return self._walk(f"list_runs{scope.ending}", scope.number, state)
        values = self._values(scope.number, state)
        found, ended_at = self._session.array("list_runs_of_owner", *values, _last_fire_below(self._below))
        if (rest := rest_of_page([fire_at for _, _, fire_at in found], self._limit)) is not None:
            first, last = rest
            since = first if self._where.since is None else max(first, self._where.since)
            more = *values[:4], SCAN_MAX, *values[5:7], since, values[8], last
            found += self._session.array("list_runs_of_owner", *more)[0]
        return self._cut_at([(digits, num) for digits, num, _ in found], ended_at)

    def _of_queue_by_time(self, number: int, state: State | None) -> Walk[bytes] | None:
        """All that is in a queue, by tens of seconds. None: one of these is so full that a walk of all ids finds them
        as soon."""
        values, name = self._values(number, state), "list_runs_of_queue_by_time"
        first, last = tens_of(_first_fire_from(self._lowest)), tens_of(_last_fire_below(self._below))
        found, ended_in = self._session.array(name, *values, last, first)
        broken_off = None if ended_in is None else (ended_in + 1) * TEN_SECONDS - 1
        if broken_off is not None and encode_id(lowest_id_after(broken_off)) >= self._below:
            return None
        if len(found) > self._limit:
            end = found[-1][2]
            rest, more = self._session.array(name, *values[:4], SCAN_MAX, *values[5:], end, end)
            if more is not None or len(rest) >= SCAN_MAX:
                return None
            found += rest
        pairs = {(digits, num) for digits, num, _ in found}
        return self._cut_at(list(pairs), broken_off)

    def _walk_by_fire(self, number: int, state: State | None) -> Walk[bytes]:
        values = *self._values(number, state), _last_fire_below(self._below)
        found, broken_off = self._session.array("list_unfinished_runs_of_owner", *values)
        return self._cut_at(found, broken_off)

    def _cut_at(self, found: Sequence[tuple[str, int]], end: Instant | None) -> Walk[bytes]:
        """A walk by fire time, which was broken off at `end`."""
        frontier = None if end is None else encode_id(lowest_id_after(end))
        ids = sorted(((bytes.fromhex(digits), num) for digits, num in found), reverse=True)
        known = [pair for pair in ids if frontier is None or pair[0] >= frontier]
        return Walk(known[: self._limit + 1], frontier)

    def _values(self, number: int, state: State | None) -> tuple[object, ...]:
        state_number = None if state is None else STATE_NUMBERS[state]
        bounds = self._below, self._lowest, SCAN_MAX, self._limit + 1
        return number, *bounds, self._queue_id, state_number, self._where.since, self._where.until


def _first_fire_from(lowest: bytes) -> Instant:
    """The lowest fire time that an id not below this one can have."""
    return int.from_bytes(lowest[:MILLIS_BYTES], "big") * MILLISECOND


def _last_fire_below(below: bytes) -> Instant:
    """The highest fire time that an id below this one can have."""
    if len(below) != UUID_BYTES:
        return INSTANT_ABOVE_ALL
    return (int.from_bytes(below[:MILLIS_BYTES], "big") + 1) * MILLISECOND - 1
