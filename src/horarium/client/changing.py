"""Runs as they change, seen by looking again and again: a server keeps the present state, and no list of changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING

from horarium.errors import NotFound
from horarium.model import UNFINISHED

if TYPE_CHECKING:
    from horarium.client.api import Client
    from horarium.wire.views import RunView

LOOK_SECONDS = 1.0
LOOKED_AT = 200
"""Runs that one look reads: this number of those with the newest fire times, and as many of those not over."""
ASKED_FOR = 50
"""Runs that one look asks for one by one, of those that were not over and are among neither any more."""

Wait = Callable[[float], object]


def watch_runs(
    client: Client, *, job: str | None = None, queue: str | None = None, states: Sequence[str] = (),
    wait: Wait = time.sleep,
) -> Iterator[RunView]:  # fmt: skip
    """Runs that are not over, then each run whenever its state or attempt changes, for ever, earliest change first.

    A run that went through several states between two looks, a second apart, is given once, as it is then. `states`:
    only changes to one of these. Beside more than 200 runs a second some are left out.
    """
    known: dict[str, tuple[str, int]] = {}
    floor: datetime | None = None
    first = True
    while True:
        newest = list(client.list_runs(job=job, queue=queue, limit=LOOKED_AT))
        open_ones = list(client.list_runs(job=job, queue=queue, states=sorted(UNFINISHED), limit=LOOKED_AT))
        seen = {run.id: run for run in chain(newest, open_ones)}
        gone = [id for id, (state, _) in known.items() if state in UNFINISHED and id not in seen][:ASKED_FOR]
        seen |= {run.id: run for run in _still_there(client, gone)}
        for id in gone:
            if id not in seen:
                del known[id]
        if first:
            first, floor = False, min((run.fire_at for run in newest), default=None)
            known = {run.id: (run.state, run.attempt) for run in newest if run.state not in UNFINISHED}
        for run in sorted(seen.values(), key=_changed_at):
            now = (run.state, run.attempt)
            before = known.get(run.id)
            if now == before or (before is None and _is_old(run, floor)):
                continue
            known[run.id] = now
            if not states or run.state in states:
                yield run
        known = {id: then for id, then in known.items() if id in seen or then[0] in UNFINISHED}
        wait(LOOK_SECONDS)


def watch_run(client: Client, run_id: str, *, wait: Wait = time.sleep) -> Iterator[RunView]:
    """The run, and again whenever its history has grown, until it is over. Raises NotFound."""
    told = -1
    while True:
        run = client.get_run(run_id)
        if len(run.history) != told:
            told = len(run.history)
            yield run
        if run.state not in UNFINISHED:
            return
        wait(LOOK_SECONDS)


def _still_there(client: Client, ids: Iterable[str]) -> Iterator[RunView]:
    for id in ids:
        try:
            yield client.get_run(id)
        except NotFound:
            continue


def _changed_at(run: RunView) -> datetime:
    return run.finished_at or run.started_at or run.due_at


def _is_old(run: RunView, floor: datetime | None) -> bool:
    """Whether it was over before the first look, and only came into view because newer ones were deleted."""
    return run.state not in UNFINISHED and floor is not None and run.fire_at < floor
