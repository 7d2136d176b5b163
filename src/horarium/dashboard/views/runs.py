"""Runs: filters that compose and are an address, and one run's life."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from horarium.access.roles import Scope
from horarium.api.reading import is_name, write_cursor
from horarium.clock import MINUTE, Instant
from horarium.dashboard.formats import local
from horarium.dashboard.marks import CANCELLED, CANCELLING, COMPLETED, FAILED, OVERLAP, PENDING, RUNNING, Mark
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.dashboard.views.bulk import REACH, TIMES, VERBS, Filter, read_filter
from horarium.dashboard.views.job import run_row
from horarium.model import Run, State, retry_key
from horarium.model.identity import is_run_id
from horarium.operations.facade import Operations
from horarium.operations.looking.saved import SavedViews
from horarium.ports import PAGE_MAX, RunFilter

SHOWN = 50
LOOKS_MAX = 10
STATES: tuple[tuple[State, str, Mark], ...] = (
    (State.FAILED, "Failed", FAILED),
    (State.RUNNING, "Running", RUNNING),
    (State.PENDING, "Pending", PENDING),
    (State.COMPLETED, "Completed", COMPLETED),
    (State.CANCELLED, "Cancelled", CANCELLED),
    (State.CANCELLING, "Cancelling", CANCELLING),
    (State.SKIPPED, "Skipped", OVERLAP),
)


class Runs(Pages):
    """The pages at `/runs`."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._saved = SavedViews(operations.context)

    # ---- the list

    @Page("GET", "/runs", "runs", scope=Scope.RUNS_READ, place="runs")
    async def show_all(self, visit: Visit) -> Answer:
        wanted = visit.text("job").strip().lower()
        if is_run_id(wanted) and (await self._operations.store.get_runs([wanted]))[0] is not None:
            return Went(f"/runs/{wanted}")
        selected = read_filter(visit)
        if any(visit.text(name).strip() != selected.chosen[name] for name in TIMES):
            return Went("/runs?" + urlencode(selected.pairs))
        states, job, error = selected.states, selected.chosen["job"], selected.chosen["error"]
        after = visit.after("runs", is_run_id)
        nothing = bool(job) and not is_name(job)
        runs, beyond = ([], None) if nothing else await self._found(selected.where, error, after)
        more = write_cursor("runs", beyond)
        kept = [(name, value) for name, value in selected.chosen.items() if value]
        return Shown(
            "runs.html",
            {
                "rows": await self._rows(runs, visit),
                "chosen": selected.chosen,
                "since": _wall(selected.where.since, visit.zone),
                "until": _wall(selected.where.until and selected.where.until + MINUTE - 1, visit.zone),
                "states": states,
                "chips": _chips(states, kept),
                "filtered": bool(kept or states),
                "saved": await self._saved.of(visit.principal, "/runs"),
                "view_to": "/runs?" + urlencode(selected.pairs) if kept or states else "",
                "more": "/runs?" + urlencode([*selected.pairs, ("cursor", more)]) if more else None,
                "bulk": _bulk_links(selected) if kept or states else [],
            },
        )

    async def _rows(self, runs: list[Run], visit: Visit) -> list[dict[str, Any]]:
        """Lines of the table; of a failed run with the run that does its work again, where there is one."""
        failed = [run for run in runs if run.state is State.FAILED]
        found = await asyncio.gather(*(self._operations.store.get_run_by_key(retry_key(run.id)) for run in failed))
        again = {run.id: each for run, each in zip(failed, found, strict=True)}
        return [{**run_row(run, visit.now), "again": again.get(run.id)} for run in runs]

    async def _found(self, where: RunFilter, error: str, after: str | None) -> tuple[list[Run], str | None]:
        """A page of them. No index holds the text of errors: a bounded number of runs is searched."""
        found: list[Run] = []
        for _ in range(LOOKS_MAX if error else 1):
            page = await self._operations.runs.list_runs(where, after, PAGE_MAX if error else SHOWN)
            for place, run in enumerate(page.items):
                if error.casefold() in (run.error or "").casefold():
                    found.append(run)
                if len(found) == SHOWN and place + 1 < len(page.items):
                    return found, run.id
            after = page.next_after
            if after is None or len(found) >= SHOWN:
                break
        return found, after


def _wall(instant: Instant | None, zone: str) -> str:
    """As a field of a form holds it, to the minute."""
    return "" if instant is None else f"{local(instant, zone):%Y-%m-%dT%H:%M}"


def _bulk_links(selected: Filter) -> list[tuple[str, str]]:
    """The actions on all that match."""
    fits = {action: not selected.states or bool(selected.states & reach) for action, reach in REACH.items()}
    return [
        (f"{VERBS[action]} all that match", "/bulk-runs?" + urlencode([("action", action), *selected.pairs]))
        for action in REACH
        if fits[action]
    ]


def _chips(states: frozenset[State], kept: list[tuple[str, str]]) -> list[dict[str, Any]]:
    chips: list[dict[str, Any]] = []
    for state, word, mark in STATES:
        after = states ^ {state}
        pairs = [*kept, *(("state", one.value) for one, *_ in STATES if one in after)]
        chips.append({"word": word, "mark": mark, "current": state in states, "to": "/runs?" + urlencode(pairs)})
    return chips
