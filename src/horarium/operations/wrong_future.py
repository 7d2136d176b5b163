"""Lists of runs, where some of them ran by a clock that was wrong.

A run's place in a list is its fire time, which is part of its id and never changes. Runs of a future that turned out to
be wrong would stay the newest ones until that time comes, perhaps for years. So a list begins with what may lie ahead
(runs that wait, or were cancelled) and goes on with the present; those runs are found by their id, or with `since`.
"""

from __future__ import annotations

from msgspec.structs import replace

from horarium.clock import SECOND, Instant
from horarium.model import Run, State
from horarium.ports import Page, RunFilter, Store

RAN = frozenset({State.COMPLETED, State.FAILED, State.SKIPPED})
"""What can only be of the past: a fire time that was skipped, too, has come."""
EARLY = SECOND
"""Clocks of nodes differ by less than this."""


def ran_in_a_wrong_future(run: Run, now: Instant) -> bool:
    """Whether its fire time is still to come: then the clock was ahead, and was set back. (Its end is brought
    back with the clock, but a moment later.)"""
    return run.state in RAN and run.fire_at > now + EARLY


async def list_runs(store: Store, where: RunFilter, after: str | None, limit: int, now: Instant) -> Page[Run]:
    """As `Store.list_runs`, without runs of a wrong future, unless `since` is given."""
    page = await store.list_runs(where, after, limit)
    if where.since is not None or not any(ran_in_a_wrong_future(run, now) for run in page.items):
        return page
    ahead = now + EARLY
    waiting = (where.states or frozenset(State)) - RAN
    before: Page[Run] = Page((), None)
    if waiting:
        before = await store.list_runs(replace(where, states=waiting, since=ahead), after, limit)
    room = limit - len(before.items)
    if before.next_after is not None or room <= 0:
        return before
    until = ahead if where.until is None else min(ahead, where.until)
    rest = await store.list_runs(replace(where, until=until), after, room)
    return Page((*before.items, *rest.items), rest.next_after)
