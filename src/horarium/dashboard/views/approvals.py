"""Pending decisions: each as a question in words, with its payload beside the last one; and recent decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from horarium.access import audit
from horarium.access.roles import Scope
from horarium.clock import Instant
from horarium.dashboard.attention import usual_took
from horarium.dashboard.formats import duration, in_words, json_lines, localized, span
from horarium.dashboard.marks import mark_of
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.dashboard.strips import ahead_of, small
from horarium.errors import InvalidRequest
from horarium.model import Cause, Disposition, EventKind, Job, Run, State
from horarium.operations.facade import Operations
from horarium.ports import RunFilter
from horarium.rules.approving import DECIDED, last_word
from horarium.rules.asking import Waiting
from horarium.rules.catching_up import CATCH_UP_RUNS_MAX
from horarium.rules.compiled import words_of
from horarium.triggers.budget import FIRST_STEPS
from horarium.triggers.words import counted
from horarium.wire.approvals import ApprovalView, Decision, approval_view

SHOWN = 50
RUNS_SHOWN = 10
DECIDED_SHOWN, DECIDED_LISTED = 12, 50
"""Decisions beside those that wait, and in the list of their own."""
DECISIONS = ("approve", "reject", "none", "latest", "all")
SKIPPED_READ = 100
"""The newest skipped runs, among which those are looked for that were not decided in time."""
LINES_MAX, CHARS_MAX = 60, 200
"""How much of a payload is shown."""
MISSED_DRAWN = 6
MISSED: dict[str, tuple[Decision, str]] = {
    "none": ("none", "None of the fire times runs that {} missed."),
    "latest": ("latest", "The latest of the fire times runs that {} missed."),
    "all": ("all", "All fire times run that {} missed."),
}
_THEN = {"run": "it runs", "skip": "it is skipped", "none": "none runs", "latest": "the latest runs", "all": "all run"}


class Approvals(Pages):
    """The page `/approvals`, and its buttons."""

    def __init__(self, operations: Operations) -> None:
        self._approving, self._store = operations.approving, operations.store

    @Page("GET", "/approvals", "approvals", scope=Scope.RUNS_READ, place="approvals")
    async def show(self, visit: Visit) -> Answer:
        page = await self._approving.page(visit.principal, None, SHOWN)
        names = list(dict.fromkeys(each.job.name for each in page.items))
        known = await self._store.last_runs(names, 0, visit.now + 1, RUNS_SHOWN) if names else {}
        rows = [_row(each, known.get(each.job.name, []), visit) for each in page.items]
        more, only_decided = page.next_after is not None, visit.one_of("show", ["decided"]) == "decided"
        values: dict[str, Any] = {"more": more, "heading": _heading(len(rows), more), "sub": _sub(rows, visit)}
        values |= {"waiting": f"{len(rows)}{'+' if more else ''}", "only_decided": only_decided}
        values |= {"asks": [row for row in rows if not row["missed"]], "missed": [row for row in rows if row["missed"]]}
        return Shown(
            "approvals.html",
            {**values, "decided": await self._decided(visit, DECIDED_LISTED if only_decided else DECIDED_SHOWN)},
        )

    async def _decided(self, visit: Visit, most: int) -> list[dict[str, Any]]:
        """The runs about which there was a decision lately, the newest first: those that the audit leads to, and those
        that were skipped; of one decision about many the newest alone."""
        objects = []
        for action in DECISIONS:
            where = audit.AuditFilter(action=f"approval.{action}")
            found = await audit.page(self._store, where, None, most)
            objects += [entry.object.partition("/") for entry in found.items if entry.outcome == "done"]
        ids = list(dict.fromkeys(id for kind, _, id in objects if kind == "run"))
        names = list(dict.fromkeys(name for kind, _, name in objects if kind == "job"))
        runs = list(await self._store.get_runs(ids)) if ids else []
        if names:
            last = await self._store.last_runs(names, 0, visit.now + 1, RUNS_SHOWN)
            runs += [run for each in last.values() for run in each]
        skipped = RunFilter(states=frozenset({State.SKIPPED}))
        runs += (await self._store.list_runs(skipped, None, SKIPPED_READ)).items
        rows: dict[tuple[str | None, Instant], dict[str, Any]] = {}
        for run in sorted((run for run in runs if run is not None), key=lambda run: run.id, reverse=True):
            last_of = last_word(run)
            if last_of is not None and last_of.kind in DECIDED:
                of_many = run.cause is Cause.CATCH_UP or run.disposition is Disposition.MISSED
                key = (run.job if of_many else run.id, last_of.at)
                rows.setdefault(key, {"run": run, "mark": mark_of(run, visit.now), "at": last_of.at,
                                      "said": _decision(run, visit.zone), "missed": of_many})  # fmt: skip
        return sorted(rows.values(), key=lambda row: -row["at"])[:most]

    @Page("POST", "/approvals/{id}/approve", "approve", scope=Scope.RUNS_WRITE)
    async def approve(self, visit: Visit) -> Answer:
        return await self._decide(visit, "approve", "A run of {} is approved.")

    @Page("POST", "/approvals/{id}/reject", "reject", scope=Scope.RUNS_WRITE)
    async def reject(self, visit: Visit) -> Answer:
        return await self._decide(visit, "reject", "A run of {} is rejected.")

    @Page("POST", "/approvals/{id}/missed", "missed", scope=Scope.RUNS_WRITE)
    async def missed(self, visit: Visit) -> Answer:
        if (known := MISSED.get(visit.text("decision"))) is None:
            raise InvalidRequest("decision: none, latest or all", field="decision")
        return await self._decide(visit, *known)

    async def _decide(self, visit: Visit, decision: Decision, done: str) -> Answer:
        run = await self._approving.decide(visit.path_id("run"), decision, visit.text("reason").strip() or None)
        return Went("/approvals", done.format(run.job))


def _heading(count: int, more: bool) -> str:
    decisions = f"{in_words(count)} decision{'s' if count != 1 else ''}{' or more' if more else ''}"
    return f"{decisions} {'waits' if count == 1 and not more else 'wait'}"


def _sub(rows: Sequence[Mapping[str, Any]], visit: Visit) -> str:
    """How long there is, and who may."""
    if not rows:
        return "Runs that begin once a person has decided, and what was missed and may run late."
    mine = sum(row["view"].why_not is None for row in rows) if visit.may(Scope.RUNS_WRITE) else 0
    first = f"The first runs out in {span(max(rows[0]['run'].due_at - visit.now, 0))}."
    if mine == len(rows):
        return f"{first} You may decide {'it' if mine == 1 else 'all'}."
    return f"{first} You may decide {in_words(mine).lower() if mine else 'none'}; the rest are for other people."


def _row(waiting: Waiting, runs: Sequence[Run], visit: Visit) -> dict[str, Any]:
    run, job, view = waiting.run, waiting.job, approval_view(waiting)
    asked, fires = last_word(run), ahead_of(job, visit.now, 1, FIRST_STEPS) if job.enabled else []
    row = {
        "run": run, "view": view, "missed": waiting.missed, "then": _THEN[view.then],
        "next": fires[0] if fires else None, "rule": "its rule, " + words_of(job),
        "mine": waiting.question.by == visit.principal.subject != "",
        "asked_at": run.created_at if asked is None else asked.at,
        "changed_at": None if view.changed_at is None else waiting.changed_at,
    }  # fmt: skip
    if waiting.missed:
        return row | _missed(run, job, view, runs, visit)
    before = next((each for each in runs if each.state is State.COMPLETED and each.id != run.id), None)
    old = None if before is None else _payload(before, view)
    return row | {"before": before, "lines": _differing(old, _payload(run, view))}


def _missed(run: Run, job: Job, view: ApprovalView, runs: Sequence[Run], visit: Visit) -> dict[str, Any]:
    """Its strip with missed fire times among runs, the usual length, and the effect of each choice."""
    mark = replace(run, state=State.SKIPPED, disposition=Disposition.MISSED)
    last = run.last_fire_at or run.fire_at
    after = [each for each in runs if each.fire_at > last]
    strip = [
        *after[: RUNS_SHOWN - MISSED_DRAWN],
        *[mark] * min(run.fires, MISSED_DRAWN),
        *(each for each in runs if each.fire_at < run.fire_at),
    ]
    took = usual_took(runs)
    ran, rest = min(run.fires, CATCH_UP_RUNS_MAX), run.fires - 1
    others = f", the other {rest:,} stay missed" if rest > 1 else ", the other one stays missed" if rest else ""
    work = "" if took is None else f", about {duration(took * ran)} of work"
    choices = [
        ("latest", "The latest", f"runs now{others}", "Run 1"),
        ("all", f"All {run.fires:,}", f"{f'the newest {ran:,} ' if ran < run.fires else ''}run{work}", f"Run {ran:,}"),
        ("none", "None", f"all {run.fires:,} stay missed" if rest else "it stays missed", f"Leave {run.fires:,}"),
    ]
    return {
        "last": last, "took": took, "strip": small(job, strip[:RUNS_SHOWN], visit.now),
        "choices": choices if rest else [choices[0], choices[2]],
        "since": sum(each.state is State.COMPLETED for each in after),
        "chosen": "latest" if view.then == "all" and not rest else view.then if view.then in MISSED else "none",
    }  # fmt: skip


def _payload(run: Run, view: ApprovalView) -> list[str]:
    """A payload in lines, the beginning of it; that of its job where the run has none of its own."""
    text = msgspec.json.encode(view.payload) if run.payload is None else bytes(run.payload)
    if text == b"null":
        return []
    lines = json_lines(text).splitlines()
    shown = [line if len(line) <= CHARS_MAX else f"{line[: CHARS_MAX - 1]}…" for line in lines[:LINES_MAX]]
    return [*shown, f"… {counted(len(lines) - LINES_MAX, 'line')} more"] if len(lines) > LINES_MAX else shown


def _differing(before: list[str] | None, after: list[str]) -> list[tuple[str, str]]:
    """The lines of a payload, with those of the one before it: "" (in both), `del`, `ins`."""
    from difflib import SequenceMatcher

    if before is None:
        return [("", line) for line in after]
    found = []
    for kind, one, end, other, last in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            found += [("", line) for line in after[other:last]]
        else:
            found += [("del", line) for line in before[one:end]] + [("ins", line) for line in after[other:last]]
    return found


def _decision(run: Run, zone: str) -> str:
    """Who decided, and after how long."""
    last = last_word(run)
    assert last is not None, "there was a decision"
    asked = next((event.at for event in reversed(run.history) if event.kind is EventKind.ASKED), None)
    many = f"missed {run.fires:,}: " if run.fires > 1 else ""
    after = "" if asked is None or last.kind is EventKind.EXPIRED else f", after {span(last.at - asked)}"
    return f"{many}{localized(last.message, zone)}{after}"
