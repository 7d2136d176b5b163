"""Plans: what definitions would change, read before it is done; and applied from here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from horarium.access.roles import Scope
from horarium.api.plans import read_planned_job
from horarium.api.reading import decode_any
from horarium.clock import DAY, Instant, to_instant, to_micros
from horarium.dashboard.formats import day_text, duration, in_words, local, span
from horarium.dashboard.marks import Mark
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.dashboard.views.calendar import midnight
from horarium.dashboard.views.jobs import read_search
from horarium.errors import InvalidRequest, NotFound, PlanStale
from horarium.model.plans import PLAN_ID
from horarium.operations.jobs.versions import Version
from horarium.operations.plans.documents import read_documents
from horarium.operations.plans.fires import FireDifferences
from horarium.operations.plans.foreseen import Foreseen
from horarium.operations.plans.making import PLANS_MAX, Change, Plan
from horarium.rules.differing import FieldChange
from horarium.triggers import parse_trigger
from horarium.triggers.words import counted

CHANGES_SHOWN = 100
STALE_SHOWN = 20
MENDED = (
    ("there is no channel", "Open channels", "/channels"),
    ("the calendar ", "Open calendar", "/business-days/"),
    ("no worker has taken", "Open queues", "/queues"),
)
"""How warnings begin, and where they lead."""
FIELDS_SHOWN = 12
DEFAULTED = ("catch_up", "jitter_seconds", "overlap", "priority", "retention", "retry", "timeouts")
"""Fields that have a value where a definition leaves them out."""
APPLIED_IN_ONE_MAX = 20
"""Calls of one request, each of which makes up to 1,000 changes."""
AXIS_DAYS = 14
LEFT = 13.0
"""Where the axis of fire times begins, in percent."""
ACTIONS = {
    "update": Mark("changed", "Update"),
    "create": Mark("added", "Create"),
    "delete": Mark("removed", "Delete"),
    "invalid": Mark("failed", "Invalid"),
}


class Axis(Struct, frozen=True):
    """Fire times before and after on one axis of 14 days; in percent. `moves`: lines from one row to the other."""

    before: tuple[tuple[float, str], ...]
    after: tuple[tuple[float, str], ...]
    moves: tuple[tuple[float, float], ...]
    weekends: tuple[tuple[float, float], ...]
    days: tuple[tuple[float, str], ...]


class Plans(Pages):
    """The pages at `/plans`."""

    @Page("GET", "/plans", "plans", place="plans")
    async def show_all(self, visit: Visit) -> Answer:
        given = visit.text("id").strip()
        if given:
            return Went(f"/plans/{_checked(given)}")
        return await self._form(visit, "", "", "")

    @Page("POST", "/plans", "plan-made", place="plans")
    async def make(self, visit: Visit) -> Answer:
        text, labels = visit.text("documents"), read_search(visit.text("labels"))[0]
        try:
            given = _documents(text)
            documents = await read_documents(*given, read_planned_job)
            plan = await self._operations.planned_changes.make(documents, labels or None, say=lambda change: change)
        except InvalidRequest as error:
            return await self._form(visit, text, visit.text("labels"), error.message)
        if any(change.action == "invalid" for change in plan.changes):
            return Shown("plan.html", _shown(plan, [], visit), 422)
        return Went(f"/plans/{plan.id}")

    async def _form(self, visit: Visit, documents: str, labels: str, problem: str) -> Answer:
        page = await self._operations.planned_changes.page(None, PLANS_MAX)
        rows = [(plan, _counted(plan.changes)) for plan in page.items]
        values = {"documents": documents, "labels": labels, "problem": problem, "rows": rows}
        return Shown("plans.html", values, 422 if problem else 200)

    @Page("GET", "/plans/{id}", "plan", place="plans")
    async def show(self, visit: Visit) -> Answer:
        looked = await self._operations.planned_changes.look(_id(visit))
        if any(change.kind == "channel" for change in looked.plan.changes):
            visit.principal.require(Scope.ADMIN)
        values = _shown(looked.plan, looked.stale, visit)
        values["since"] = await self._since(looked.plan, looked.stale[:STALE_SHOWN])
        values.update(by=looked.by, approved_by=looked.approved_by)
        return Shown("plan.html", values)

    async def _since(self, plan: Plan[Change], stale: Sequence[str]) -> list[tuple[str, Version | None]]:
        """Definitions that have changed since the plan was made; of a job, with its last version."""
        jobs = {change.name for change in plan.changes if change.kind == "job"}
        found: dict[str, Version] = {}
        for job in await self._operations.store.get_jobs([name for name in stale if name in jobs]):
            if job is not None:
                (found[job.name], *_) = (await self._operations.versions.page(job, None, 1)).items
        return [(name, found.get(name)) for name in stale]

    @Page("POST", "/plans/{id}/apply", "plan-apply", scope=Scope.RUNS_WRITE, place="plans")
    async def apply(self, visit: Visit) -> Answer:
        plan_id, done = _id(visit), 0
        try:
            for _ in range(APPLIED_IN_ONE_MAX):
                applied = await self._operations.applying.apply(plan_id)
                done += applied.applied
                if not applied.left:
                    break
        except PlanStale:
            return Went(f"/plans/{plan_id}", "Nothing was applied: the plan is stale.")
        left = f" {counted(applied.left, 'change')} of it wait: apply it again." if applied.left else ""
        return Went(f"/plans/{plan_id}", f"{counted(done, 'change')} applied.{left}")

    @Page("POST", "/plans/{id}/approve", "plan-approve", scope=Scope.JOBS_WRITE, place="plans")
    async def approve(self, visit: Visit) -> Answer:
        plan_id = _id(visit)
        try:
            await self._operations.applying.approve(plan_id)
        except PlanStale:
            return Went(f"/plans/{plan_id}", "It was not approved: the plan is stale.")
        return Went(f"/plans/{plan_id}", "It is approved: operators may apply it.")

    @Page("POST", "/plans/{id}/discard", "plan-discard", scope=Scope.JOBS_WRITE, place="plans")
    async def discard(self, visit: Visit) -> Answer:
        await self._operations.planned_changes.discard(_id(visit))
        return Went("/plans", "The plan is discarded.")


def _id(visit: Visit) -> str:
    return _checked(str(visit.request.path_params["id"]))


def _checked(plan_id: str) -> str:
    if not PLAN_ID.fullmatch(plan_id):
        raise NotFound(f"there is no plan {plan_id[:100]!r}; its id, from `horarium plan`, is its key too")
    return plan_id


def _documents(text: str) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Jobs, calendars and channels of a JSON text. Raises InvalidRequest."""
    found = decode_any(text.encode())
    if isinstance(found, list) or (isinstance(found, dict) and "name" in found):
        found = {"jobs": found if isinstance(found, list) else [found]}
    if not isinstance(found, dict) or not found.keys() <= {"jobs", "calendars", "channels"}:
        message = "documents: give a job, a list of jobs, or an object with jobs, calendars and channels"
        raise InvalidRequest(message, field="documents")
    parts = [found.get(kind, []) for kind in ("jobs", "calendars", "channels")]
    if not all(isinstance(part, list) and all(isinstance(each, dict) for each in part) for part in parts):
        raise InvalidRequest("documents: jobs, calendars and channels are lists of objects", field="documents")
    return parts[0], parts[1], parts[2]


def _shown(plan: Plan[Change], stale: Sequence[str], visit: Visit) -> dict[str, Any]:
    order = {"invalid": 0, "update": 1, "create": 2, "delete": 3, "unchanged": 4}
    counts: Counter[str] = Counter(change.action for change in plan.changes)
    differing = sorted(
        (change for change in plan.changes if change.action != "unchanged"), key=lambda change: order[change.action]
    )
    rows = [_row(change, change.name in stale, visit) for change in differing[:CHANGES_SHOWN]]
    fires = [change.fires for change in differing if change.fires is not None]
    heading, summary = _heading(len(differing), counts["invalid"], plan.fires_at_once, stale)
    return {
        "plan": plan,
        "heading": heading,
        "summary": summary,
        "stale": stale,
        "rows": rows,
        "number": len(differing),
        "more": len(differing) - len(rows),
        "unchanged": counts["unchanged"],
        "wrong": counts["invalid"],
        "kinds": _counted(counts),
        "deleted": counts["delete"],
        "come": sum(len(each.added) for each in fires),
        "go": sum(len(each.removed) for each in fires),
        "move": sum(len(each.moved) for each in fires),
        "cut": any(each.truncated for each in fires),
        "jobs_alone": all(change.kind == "job" for change in differing),
        "warnings": [(one, *_mending(one, visit)) for one in plan.warnings],
        "warnings_words": f"{in_words(len(plan.warnings))} {'warning' if len(plan.warnings) == 1 else 'warnings'}",
        "since": [],
        "by": "",
        "approved_by": "",
    }


def _mending(one: Foreseen, visit: Visit) -> tuple[str, str]:
    """Where it is looked at or mended: a word and an address."""
    if one.job is None:
        return "Spread them", "/forecast"
    for begin, word, to in MENDED:
        if one.text.startswith(begin) and (to != "/channels" or visit.may(Scope.ADMIN)):
            name = one.text.removeprefix(begin).split(" ")[0] if to.endswith("/") else ""
            return word, to + quote(name)
    return "Its fire times", f"#job-{one.job}"


def _heading(number: int, wrong: int, at_once: Sequence[str], stale: Sequence[str]) -> tuple[str, str]:
    if wrong:
        return f"{counted(wrong, 'definition')} {_is(wrong)} invalid", "Nothing of this plan can be applied."
    if stale:
        has = "has" if len(stale) == 1 else "have"
        said = f"{counted(len(stale), 'definition')} of it {has} changed since it was made. Nothing was applied."
        return "This plan is stale", said
    if not number:
        return "Nothing is left to do", "What the plan says is as it is stored: it was applied, or nothing differed."
    fires = f"{counted(len(at_once), 'job')} would fire at once" if at_once else "nothing fires at once"
    said = "Read against the present state. Nothing is written yet."
    return f"{in_words(number)} {'change' if number == 1 else 'changes'}, {fires}", said


def _counted(changes: Mapping[str, int]) -> str:
    words = (("create", "new"), ("update", "changed"), ("delete", "deleted"), ("invalid", "invalid"))
    return ", ".join(f"{changes[action]:,} {word}" for action, word in words if changes.get(action)) or "none"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _row(change: Change, stale: bool, visit: Visit) -> dict[str, Any]:
    rule = _rule(change)
    fields = [field for field in change.fields if rule is None or not field.field.startswith("trigger.")]
    if change.action == "create":
        fields = [
            field for field in fields if (field.field, field.after) not in (("name", change.name), ("enabled", True))
        ]
    return {
        "change": change,
        "mark": ACTIONS[change.action],
        "stale": stale,
        "link": f"/jobs/{change.name}" if change.kind == "job" and change.action in ("update", "delete") else "",
        "fields": [_field(field) for field in fields[:FIELDS_SHOWN]],
        "more": max(len(fields) - FIELDS_SHOWN, 0),
        "rule": rule,
        "axis": None if change.fires is None else _axis(change.fires, visit),
        "sentence": "" if change.fires is None else _sentence(change.fires, visit.zone),
    }


def _rule(change: Change) -> tuple[str, str] | None:
    """The rule in words, before (nothing of a new job) and after; None: its fields do not tell it."""
    parts = {
        field.field.removeprefix("trigger."): field for field in change.fields if field.field.startswith("trigger.")
    }
    if change.kind != "job" or not parts or any("." in name for name in parts):
        return None
    if change.action == "update" and parts.keys() != {"expression"}:
        return None
    kind = {"type": "cron"} if change.action == "update" else {}
    try:
        before = {**kind, **{name: field.before for name, field in parts.items() if field.before is not None}}
        after = {**kind, **{name: field.after for name, field in parts.items() if field.after is not None}}
        return (_words(before) if change.action == "update" else ""), _words(after)
    except ValueError:
        return None


def _words(trigger: dict[str, Any]) -> str:
    """A rule whose zone the fields do not tell says none."""
    said = str(parse_trigger(trigger))
    return said if "timezone" in trigger else said.removesuffix(", UTC")


def _field(field: FieldChange) -> tuple[str, str, str, str]:
    """Its name, what it was and will be, and the word for what is left out."""
    absent = "default" if field.field.partition(".")[0] in DEFAULTED else "none"
    was, will = (_text(value, seconds=field.field.endswith("_seconds")) for value in (field.before, field.after))
    return field.field, was, will, absent


def _text(value: Any, *, seconds: bool) -> str:
    if value is None:
        return ""
    if seconds and isinstance(value, int | float):
        return duration(to_micros(value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _instant(text: str) -> Instant:
    return to_instant(datetime.fromisoformat(text))


def _sentence(fires: FireDifferences, zone: str) -> str:
    said = [
        counted(len(some), f"fire time {one}", f"fire times {many}")
        for some, one, many in (
            (fires.moved, "moves", "move"), (fires.removed, "goes", "go"), (fires.added, "comes", "come"),
        )
        if some
    ]  # fmt: skip
    if not said:
        return "No fire time changes."
    first = ""
    if fires.moved:
        move = fires.moved[0]
        before, after = _instant(move.before), _instant(move.after)
        shifts = {_instant(each.after) - _instant(each.before) for each in fires.moved}
        if len(shifts) == 1 and not fires.truncated:
            said[0] += f", each {span(abs(after - before))} {'later' if after > before else 'earlier'}"
        first = f" Next: {day_text(after, zone)} instead of {day_text(before, zone)}."
    elif fires.added:
        first = f" First: {day_text(_instant(fires.added[0]), zone)}."
    elif fires.removed:
        first = f" The next was {day_text(_instant(fires.removed[0]), zone)}."
    return f"{', '.join(said)}{', and more' if fires.truncated else ''}.{first}"


def _axis(fires: FireDifferences, visit: Visit) -> Axis | None:
    if not (fires.added or fires.removed or fires.moved):
        return None
    day = local(visit.now, visit.zone).date()
    begin = midnight(day, visit.zone)

    def place(instant: Instant) -> float:
        return round(LEFT + (100 - LEFT) * (instant - begin) / (AXIS_DAYS * DAY), 2)

    def within(texts: Sequence[str]) -> list[float]:
        return [x for x in map(place, map(_instant, texts)) if x <= 100]

    moves = [(place(_instant(move.before)), place(_instant(move.after))) for move in fires.moved]
    moves = [(old, new) for old, new in moves if max(old, new) <= 100]
    days = [day + timedelta(days=number) for number in range(AXIS_DAYS)]
    width = round((100 - LEFT) / AXIS_DAYS, 2)
    return Axis(
        before=(*((x, "removed") for x in within(fires.removed)), *((old, "planned") for old, _ in moves)),
        after=(*((x, "added") for x in within(fires.added)), *((new, "planned") for _, new in moves)),
        moves=tuple(moves),
        weekends=tuple((place(midnight(each, visit.zone)), width) for each in days if each.weekday() >= 5),
        days=tuple(
            (place(midnight(each, visit.zone)), f"{each:%a} {each.day}")
            for number, each in enumerate(days)
            if number in (0, 7)
        ),
    )
