"""Runs: filters that compose and are an address, and one run's life."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec

from horarium.access.roles import Scope
from horarium.api.reading import is_name, is_run_id, read_cursor, write_cursor
from horarium.api.runs import shown_queue
from horarium.clock import Instant
from horarium.dashboard.charts import life_of
from horarium.dashboard.formats import counted
from horarium.dashboard.marks import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    FAILED,
    OVERLAP,
    PENDING,
    RUNNING,
    Mark,
    first_line,
    mark_of,
    why,
)
from horarium.dashboard.site import Answer, Page, Shown, Visit, Went
from horarium.dashboard.times import instant_of
from horarium.dashboard.views.job import run_row
from horarium.errors import Conflict, InvalidRequest, NotFound
from horarium.model import Event, Job, Run, State, timeline
from horarium.model.logs import LogLine
from horarium.operations.facade import Operations
from horarium.operations.runs import RETRIED
from horarium.ports import RunFilter
from horarium.wire.views import run_view

SHOWN = 50
CHOSEN_MAX = 200
LOG_LINES = 500
STATES: tuple[tuple[State, str, Mark], ...] = (
    (State.FAILED, "Failed", FAILED),
    (State.RUNNING, "Running", RUNNING),
    (State.PENDING, "Pending", PENDING),
    (State.COMPLETED, "Completed", COMPLETED),
    (State.CANCELLED, "Cancelled", CANCELLED),
    (State.CANCELLING, "Cancelling", CANCELLING),
    (State.SKIPPED, "Skipped", OVERLAP),
)
ENDED = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})


class Runs:
    """The pages at `/runs`."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def pages(self) -> list[Page]:
        """The table."""
        place, write, read = "runs", Scope.RUNS_WRITE, Scope.RUNS_READ
        return [
            Page(path="/runs", name="runs", handle=self.show_all, scope=read, place=place),
            Page(path="/runs", name="runs-bulk", handle=self.bulk, method="POST", scope=write, place=place),
            Page(path="/runs/{id}", name="run", handle=self.show, scope=read, place=place),
            Page(path="/runs/{id}/retry", name="run-retry", handle=self.retry, method="POST", scope=write),
            Page(path="/runs/{id}/cancel", name="run-cancel", handle=self.cancel, method="POST", scope=write),
        ]

    # ---- the list

    async def show_all(self, visit: Visit) -> Answer:
        chosen = {name: visit.text(name).strip() for name in ("job", "queue", "since", "until")}
        states = frozenset(state for state, *_ in STATES if state.value in visit.texts("state"))
        job = chosen["job"]
        where = RunFilter(
            job=job or None,
            states=states,
            queue=shown_queue(chosen["queue"]) if chosen["queue"] else None,
            since=instant_of(chosen["since"], "since", visit.zone),
            until=instant_of(chosen["until"], "until", visit.zone),
        )
        cursor = visit.text("cursor")
        after = read_cursor("runs", cursor, is_run_id) if cursor else None
        nothing = bool(job) and not is_name(job)
        page = None if nothing else await self._operations.runs.list_runs(where, after, SHOWN)
        runs = page.items if page else ()
        more = write_cursor("runs", page.next_after) if page else None
        kept = [(name, value) for name, value in chosen.items() if value]
        picked = [("state", state.value) for state in states]
        return Shown(
            "runs.html",
            {
                "rows": [run_row(run, visit.now) for run in runs],
                "chosen": chosen,
                "states": states,
                "chips": _chips(states, kept),
                "filtered": bool(kept or states),
                "more": "/runs?" + urlencode([*kept, *picked, ("cursor", more)]) if more else None,
                "retried": RETRIED,
            },
        )

    async def bulk(self, visit: Visit) -> Answer:
        action, ids = visit.text("action"), [each for each in visit.texts("chosen") if is_run_id(each)][:CHOSEN_MAX]
        if action not in ("retry", "cancel"):
            raise InvalidRequest(f"there is no action {action[:50]!r}")
        done, refused = 0, 0
        for run_id in ids:
            try:
                if action == "retry":
                    await self._operations.runs.retry_run(run_id)
                else:
                    await self._operations.runs.cancel_run(run_id, f"cancelled by {visit.principal.name}")
                done += 1
            except (NotFound, Conflict):
                refused += 1
        said = f"{counted(done, 'run')} {'will run again' if action == 'retry' else 'cancelled'}."
        if refused:
            said += f" {counted(refused, 'run')} could not be: of another state by now, or gone."
        back = visit.text("back")
        return Went(back if back.startswith("/runs") else "/runs", said)

    # ---- one of them

    async def show(self, visit: Visit) -> Answer:
        run = await self._operations.runs.get_run(_run_id(visit))
        job = None if run.job_id is None else (await self._operations.store.get_jobs_by_id([run.job_id]))[0]
        events = timeline(run)
        attempts = attempts_of(run, events, visit.now)
        return Shown(
            "run.html",
            {
                "run": run,
                "job": job,
                "state_mark": mark_of(run, visit.now),
                "sentence": why(run, visit.now),
                "life": life_of(run, attempts, visit.now, visit.zone),
                "history": history_rows(run, events),
                "errors": [event for event in reversed(run.history) if event.detail or event.kind == "failed"],
                "payload": _shown(run_view(run).payload),
                "result": _shown(run_view(run).result),
                "progress": _shown(run_view(run).progress),
                "attempts_max": _attempts_max(run, job),
                "can_retry": run.state in RETRIED and visit.may(Scope.RUNS_WRITE),
                "can_cancel": not run.finished and run.state is not State.CANCELLING and visit.may(Scope.RUNS_WRITE),
                "curl": as_curl(visit, run),
                "log": await self._log(run),
            },
        )

    async def _log(self, run: Run) -> list[LogLine]:
        """The end of its log."""
        page = await self._operations.logs.read(run.id, 0, LOG_LINES)
        while page.next_line is not None and len(page.lines) == LOG_LINES:
            later = await self._operations.logs.read(run.id, page.next_line, LOG_LINES)
            if not later.lines:
                break
            page = later
        return list(page.lines)

    async def retry(self, visit: Visit) -> Answer:
        made = await self._operations.runs.retry_run(_run_id(visit))
        return Went(f"/runs/{made.id}", "This is the new run.")

    async def cancel(self, visit: Visit) -> Answer:
        run_id = _run_id(visit)
        reason = visit.text("reason").strip() or f"cancelled by {visit.principal.name}"
        run = await self._operations.runs.cancel_run(run_id, reason)
        said = "Cancelled." if run.finished else "It was asked to stop."
        return Went(f"/runs/{run_id}", said)


def _run_id(visit: Visit) -> str:
    given = str(visit.request.path_params["id"])
    if not is_run_id(given):
        raise NotFound(f"there is no run {given[:200]!r}")
    return given


def _chips(states: frozenset[State], kept: list[tuple[str, str]]) -> list[dict[str, Any]]:
    chips: list[dict[str, Any]] = []
    for state, word, mark in STATES:
        after = states ^ {state}
        pairs = [*kept, *(("state", one.value) for one, *_ in STATES if one in after)]
        chips.append({"word": word, "mark": mark, "current": state in states, "to": "/runs?" + urlencode(pairs)})
    return chips


def attempts_of(run: Run, events: Sequence[Event], now: Instant) -> list[tuple[int, Instant, Instant, str]]:
    """Number, begin, end, and how it ended, of each attempt that the history knows."""
    found: list[tuple[int, Instant, Instant, str]] = []
    begun: Instant | None = None
    for event in events:
        if event.state is State.RUNNING and begun is None:
            begun = event.at
        elif begun is not None and (event.state is State.PENDING or event.state in ENDED):
            how = event.kind.value if event.kind else event.state.value
            found.append((len(found) + 1, begun, event.at, "lost" if how == "lost" else _how(event.state)))
            begun = None
    if begun is not None:
        found.append((max(run.attempt, len(found) + 1), begun, max(run.finished_at or now, begun), _how(run.state)))
    return found


def _how(state: State) -> str:
    if state in (State.RUNNING, State.CANCELLING):
        return "running"
    return "failed" if state is State.PENDING else state.value


def history_rows(run: Run, events: Sequence[Event]) -> list[dict[str, Any]]:
    """The history as a list: instant, time since the row before, mark, sentence."""
    rows: list[dict[str, Any]] = []
    before: Instant | None = None
    for event in events:
        symbol = {"pending": "retrying" if before is not None else "planned", "skipped": "missed"}.get(
            event.state.value, event.state.value
        )
        rows.append(
            {
                "at": event.at,
                "plus": None if before is None else max(event.at - before, 0),
                "mark": Mark(symbol, event.state.value.capitalize()),
                "text": first_line(event.message, 400),
            }
        )
        before = event.at
    return rows


def _shown(value: Any) -> str | None:
    """JSON, indented."""
    if value is None:
        return None
    text = bytes(value) if isinstance(value, msgspec.Raw) else msgspec.json.encode(value)
    return msgspec.json.format(text, indent=2).decode("utf-8", "replace")


def _attempts_max(run: Run, job: Job | None) -> int:
    retry = job.retry if job is not None else run.policy.retry if run.policy is not None else None
    return retry.attempts_max if retry is not None else 1


def as_curl(visit: Visit, run: Run) -> str:
    """The request that does the same as this page's main button, for a terminal."""
    host = visit.request.headers.get("host", "localhost")
    scheme = visit.request.scope.get("scheme", "http")
    what = "retry" if run.state in RETRIED else "cancel" if not run.finished else ""
    url = f"{scheme}://{host}/api/v1/runs/{run.id}" + (f"/{what}" if what else "")
    words = ["curl", *(["-X", "POST"] if what else []), url]
    return shlex.join(words) + ' -H "Authorization: Bearer $HORARIUM_API_KEY"'
