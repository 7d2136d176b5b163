"""Budgets of keys: how many calls an hour, and runs a day, one may ask for.

A count is a record, raised by compare-and-set before the thing is done: so it is exact over all nodes, and what is
refused costs nothing. Only keys that have a budget pay for it: a read and a write for each call. Hours and days are
those of UTC.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from horarium.access.roles import Principal
from horarium.clock import DAY, HOUR, SECOND, Clock, Instant, to_text
from horarium.errors import OverBudget, StoreUnavailable
from horarium.model.records import put_over
from horarium.ports import Store

PREFIX = "budget/"
What = Literal["calls", "runs"]
WINDOWS: dict[What, tuple[int, str]] = {"calls": (HOUR, "an hour"), "runs": (DAY, "a day")}
TRIES_MAX = 100
"""How often a count is tried that others raise at the same time."""


class Spent(Struct, frozen=True):
    """What was asked for since the window began."""

    begins_at: Instant
    count: int


_decode = msgspec.json.Decoder(Spent).decode


def limit_of(caller: Principal, what: What) -> int | None:
    """How many it may ask for in a window; None: any number."""
    return caller.calls_per_hour if what == "calls" else caller.runs_per_day


async def spend(store: Store, clock: Clock, caller: Principal, what: What, count: int = 1) -> None:
    """Count these against the budget of a key, if it has one. Raises OverBudget, with nothing counted."""
    most = limit_of(caller, what)
    if most is None:
        return
    length, word = WINDOWS[what]
    name = f"{PREFIX}{what}/{caller.subject}"
    for _ in range(TRIES_MAX):
        now = clock.now()
        begins_at = now - now % length
        (stored,) = await store.get_records([name])
        spent = Spent(begins_at, 0) if stored is None else _decode(stored.body)
        # That of a clock which was ahead is void, but for the next one: clocks of nodes differ a little.
        if not begins_at <= spent.begins_at <= begins_at + length:
            spent = Spent(begins_at, 0)
        if spent.count + count > most:
            ends_at = spent.begins_at + length
            raise OverBudget(
                f"the key {caller.name} has a budget of {most:,} {what} {word}, of which {most - spent.count:,} are "
                f"left until {to_text(ends_at)}; asked for: {count:,}",
                retry_after_seconds=max(1.0, (ends_at - now) / SECOND),
            )
        after = msgspec.json.encode(Spent(spent.begins_at, spent.count + count))
        if await store.put_records([put_over(stored, name, after)]) == [True]:
            return
    raise StoreUnavailable(f"the budget of the key {caller.name} is counted by too many at once; try again")


async def forget(store: Store, key: str) -> None:
    """The counts of a key that is gone."""
    names = [f"{PREFIX}{what}/{key}" for what in WINDOWS]
    for stored in await store.get_records(names):
        if stored is not None:
            await store.put_records([stored.removal()])
