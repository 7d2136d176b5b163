"""Two runs beside each other: what differs between a failure and the last one that was well."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from horarium.access.roles import Scope
from horarium.dashboard.formats import duration, escaped, second_text
from horarium.dashboard.marks import mark_of
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit
from horarium.errors import NotFound
from horarium.model import Run
from horarium.model.identity import is_run_id
from horarium.rules.error_lines import error_line

LINES_MAX = 200
"""Lines of each log that are laid beside each other."""


class Comparing(Pages):
    """The page at `/compare`."""

    @Page("GET", "/compare", "compare", scope=Scope.RUNS_READ, place="runs")
    async def show(self, visit: Visit) -> Answer:
        runs = [await self._run(visit.text(field)) for field in ("run", "with")]
        facts = [_facts(run, visit) for run in runs]
        rows = [(name, one, facts[1][name], one != facts[1][name]) for name, one in facts[0].items()]
        logs = [(await self._operations.logs.read(run.id, 0, LINES_MAX)).lines for run in runs]
        lines = list(zip_longest(*([line.text for line in log] for log in logs), fillvalue=""))
        first = next((place for place, (one, other) in enumerate(lines) if one != other), None)
        values: dict[str, Any] = {"runs": runs, "rows": rows, "lines": lines, "first": first,
                                  "logged": [bool(log) for log in logs],
                                  "marks": [mark_of(run, visit.now) for run in runs]}  # fmt: skip
        return Shown("compare.html", values)

    async def _run(self, given: str) -> Run:
        (run,) = await self._operations.store.get_runs([given]) if is_run_id(given) else [None]
        if run is None:
            raise NotFound(f"there is no run {given[:200]!r}")
        return run


def _facts(run: Run, visit: Visit) -> dict[str, str]:
    started, ended = run.started_at, run.finished_at
    return {
        "Outcome": mark_of(run, visit.now).word,
        "Job": run.job or run.queue,
        "Fire time": second_text(run.fire_at, visit.zone),
        "Cause": run.cause.value.replace("_", " "),
        "Late by": duration(None if started is None else max(started - run.due_at, 0)),
        "Took": duration(None if started is None or ended is None else ended - started),
        "Attempts": str(run.attempt),
        "Worker": run.worker or "\u2013",
        "Payload": escaped((run.payload or b"the job's own").decode("utf-8", "replace")),
        "Result": escaped((run.result or b"none").decode("utf-8", "replace")),
        "Error": error_line(run.error) or "none",
    }
