"""Lists of runs, where some of them ran by a clock that was wrong.

A run's place in a list is its fire time, which is part of its id and never changes. Runs of a future that turned out to
be wrong would stay the newest ones until that time comes, perhaps for years. So a list begins with runs that may lie
ahead (waiting or cancelled) and goes on with the present; those runs are found by their id, or with `since`.
"""

from __future__ import annotations

from msgspec.structs import replace

from horarium.clock import SECOND, Instant
from horarium.model import Run, State
from horarium.ports import Page, RunFilter, Store

RAN = frozenset({State.COMPLETED, State.FAILED, State.SKIPPED})
"""States of the past alone: a fire time that was skipped, too, has come."""
EARLY = SECOND
"""Clocks of nodes differ by less than this."""


PAGES_MAX = 50
"""Pages of runs cancelled in a wrong future that are passed by in one go."""
PAGE_MIN = 200
"""Runs of such a page, however few are asked for: the newest run is found, though hundreds were cancelled."""


def is_of_a_wrong_future(run: Run, now: Instant) -> bool:
    """Whether it ran, or was made, before its time could have come: the clock was ahead, and was set back. (Its end
    is brought back with the clock, but a moment later.)"""
    if run.fire_at <= now + EARLY:
        return False
    return run.state in RAN or (run.state is State.CANCELLED and run.created_at > now + EARLY)


async def list_runs(store: Store, where: RunFilter, after: str | None, limit: int, now: Instant) -> Page[Run]:
    """As `Store.list_runs`, without runs of a wrong future, unless `since` is given."""
    page = await store.list_runs(where, after, limit)
    if where.since is not None or not any(is_of_a_wrong_future(run, now) for run in page.items):
        return page
    ahead = now + EARLY
    found, more = await _still_to_come(store, replace(where, since=ahead), after, limit, now)
    if len(found) >= limit:
        return Page(tuple(found[:limit]), found[limit - 1].id if limit > 0 else None)
    if more is not None:
        return Page(tuple(found), more)
    until = ahead if where.until is None else min(ahead, where.until)
    rest = await store.list_runs(replace(where, until=until), after, limit - len(found))
    return Page((*found, *rest.items), rest.next_after)


async def _still_to_come(
    store: Store, where: RunFilter, after: str | None, limit: int, now: Instant
) -> tuple[list[Run], str | None]:
    """Runs that wait, or were cancelled before their time; and where to go on, if not all of it was looked at."""
    found: list[Run] = []
    where = replace(where, states=(where.states or frozenset(State)) - RAN)
    for _ in range(PAGES_MAX if where.states else 0):
        page = await store.list_runs(where, after, max(limit, PAGE_MIN))
        found += (run for run in page.items if not is_of_a_wrong_future(run, now))
        after = page.next_after
        if after is None or len(found) >= limit:
            return found, after
    return found, after if where.states else None
