"""Many runs retried or cancelled at once: all that a filter matches, with their number said before anything is done."""

from __future__ import annotations

from collections.abc import Container
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

from horarium.access.roles import Scope
from horarium.api.runs import shown_queue
from horarium.clock import to_text
from horarium.dashboard.formats import instant_of
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.errors import InvalidRequest
from horarium.model import State
from horarium.model.identity import is_run_id
from horarium.operations.runs.bulk import CANCELLED, LOOKED_MAX, RETRIED_BEFORE, RETRIED_KNOWN_MAX, Batch, Selection
from horarium.operations.runs.runs import RETRIED
from horarium.ports import PAGE_MAX, RunFilter
from horarium.triggers.words import counted

CHOSEN_MAX = 200
COUNTED_MAX = 2_000
"""Runs that a page counts before it says that there are more."""
BATCHES_MAX = 10
"""Batches of one request; where there is more, the page asks again."""
REACH = {"retry": RETRIED, "cancel": CANCELLED}
VERBS = {"retry": "Retry", "cancel": "Cancel"}
DONE = {"retry": "will run again", "cancel": "cancelled"}
FIELDS, TIMES = ("job", "queue", "since", "until", "error"), ("since", "until")
WHY_NOT = {
    "retried_before": "retried before",
    "overlap": "left out by their job's overlap policy",
    "job_deleted": "of a job that was deleted",
    "forbidden": "out of your reach",
    "key_missing": "without part of a key of their job in their payload",
    "state": "over by now",
}


class Filter(Struct, frozen=True):
    """The filter, as it was written, and as the store takes it."""

    chosen: dict[str, str]
    states: frozenset[State]
    where: RunFilter

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The same as parts of an address."""
        kept = [(name, value) for name, value in self.chosen.items() if value]
        return [*kept, *(("state", state.value) for state in sorted(self.states))]

    @property
    def words(self) -> str:
        """The same in words."""
        said = {"job": "of the job", "queue": "in the queue", "since": "from", "until": "to", "error": "with the error"}
        parts = [f"{said[name]} {value}" for name, value in self.chosen.items() if value]
        return " ".join(parts) or "of all jobs"


def read_filter(visit: Visit) -> Filter:
    """The filter of an address or a form, its times in UTC: a link shows the same runs in every zone. Raises
    InvalidRequest."""
    chosen = {name: visit.text(name).strip() for name in FIELDS}
    since, until = (instant_of(chosen[name], name, visit.zone) for name in TIMES)
    chosen |= {name: to_text(at) for name, at in zip(TIMES, (since, until), strict=True) if at is not None}
    visit.one_of("state", [state.value for state in State])
    states = frozenset(map(State, filter(None, visit.texts("state"))))
    where = RunFilter(
        job=chosen["job"] or None,
        states=states,
        queue=shown_queue(chosen["queue"]) if chosen["queue"] else None,
        since=since,
        until=until,
    )
    return Filter(chosen, states, where)


class BulkRuns(Pages):
    """The page at `/bulk-runs`."""

    @Page("GET", "/bulk-runs", "bulk-runs", scope=Scope.RUNS_WRITE, place="runs")
    @Page("POST", "/bulk-runs/chosen", "bulk-runs-chosen", scope=Scope.RUNS_WRITE, place="runs", reads=True)
    async def ask(self, visit: Visit) -> Answer:
        """How many there are, and the consequences."""
        action, selected, chosen = action_of(visit, REACH), read_filter(visit), _chosen(visit)
        batch = await self._counted(action, selected, chosen)
        before, before_least = batch.left.get(RETRIED_BEFORE, 0), batch.matched > RETRIED_KNOWN_MAX
        values: dict[str, Any] = {
            "action": action,
            "verb": VERBS[action],
            "number": batch.matched if before_least and before < batch.matched else batch.matched - before,
            "before": before,
            "before_least": before_least,
            "chosen": chosen,
            "at_least": batch.after is not None,
            "selected": selected,
            "states": sorted(_reach(action, selected)),
            "back": _back(visit, selected),
            "looked_max": LOOKED_MAX,
        }
        return Shown("bulk-runs.html", values)

    async def _counted(self, action: str, selected: Filter, chosen: tuple[str, ...] | None) -> Batch:
        states = _reach(action, selected)
        selection = _selection(selected, states, chosen)
        if action == "retry":
            return await self._operations.bulk.count_retries(selection, states, of_more=PAGE_MAX, most=COUNTED_MAX)
        return await self._operations.bulk.count(selection, states, None, COUNTED_MAX)

    @Page("POST", "/bulk-runs", "bulk-runs-done", scope=Scope.RUNS_WRITE, place="runs")
    async def do(self, visit: Visit) -> Answer:
        action, selected = action_of(visit, REACH), read_filter(visit)
        states, after = _reach(action, selected), visit.text("after") or None
        if after is not None and not is_run_id(after):
            raise InvalidRequest("after: no run has such an id", field="after")
        selection = _selection(selected, states, _chosen(visit))
        reason = f"cancelled by {visit.principal.name}"
        done, left, next_at = 0, dict[str, int](), visit.now
        for _ in range(BATCHES_MAX):
            if action == "retry":
                batch = await self._operations.bulk.retry(selection, states, after, None, next_at)
            else:
                batch = await self._operations.bulk.cancel(selection, states, after, None, reason)
            done, after, next_at = done + batch.done, batch.after, batch.next_at
            for why, count in batch.left.items():
                left[why] = left.get(why, 0) + count
            if after is None:
                break
        said = f"{counted(done, 'run')} {DONE[action]}."
        if left:
            said += " Not " + ", ".join(f"{count:,} {WHY_NOT.get(why, why)}" for why, count in left.items()) + "."
        if after is not None:
            said += " There are more: repeat it to go on."
        return Went(_back(visit, selected), said)


def action_of(visit: Visit, known: Container[str]) -> str:
    """One of these actions, which the page asks for. Raises InvalidRequest."""
    action = visit.text("action")
    if action not in known:
        raise InvalidRequest(f"there is no action {action[:50]!r}", field="action")
    return action


def _reach(action: str, selected: Filter) -> frozenset[State]:
    """The states that are asked for and that this can be done to."""
    return REACH[action] & selected.states if selected.states else REACH[action]


def _chosen(visit: Visit) -> tuple[str, ...] | None:
    """The ids that were chosen in a list; None: all that the filter matches are meant."""
    if visit.text("which") != "chosen":
        return None
    return tuple(each for each in visit.texts("chosen") if is_run_id(each))[:CHOSEN_MAX]


def _back(visit: Visit, selected: Filter) -> str:
    back = visit.text("back")
    return back if back.startswith("/runs") else "/runs?" + urlencode(selected.pairs)


def _selection(selected: Filter, states: frozenset[State], chosen: tuple[str, ...] | None) -> Selection:
    if chosen is not None:
        return Selection(ids=chosen)
    where = selected.where
    narrowed = RunFilter(job=where.job, states=states, queue=where.queue, since=where.since, until=where.until)
    return Selection(where=narrowed, error_contains=selected.chosen["error"] or None, any_case=True)
