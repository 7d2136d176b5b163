"""Holds: what may not begin, until when and why; added and lifted."""

from __future__ import annotations

from typing import Any

from horarium.access.roles import Scope
from horarium.clock import DAY, HOUR, MINUTE, Instant, to_datetime
from horarium.dashboard.formats import fault_in, instant_of
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.dashboard.views.jobs import read_search
from horarium.errors import InvalidRequest
from horarium.model.holds import HeldMissed, HeldRunning, Hold, HoldScope
from horarium.ports import PAGE_MAX
from horarium.rules.holds import next_begin, scope_words, stretch_at
from horarium.triggers.words import counted
from horarium.wire.faults import Fault
from horarium.wire.holds import REASON_CHARS_MAX, HoldDefinition

SCOPES = (("queue", "A queue"), ("job", "A job"), ("labels", "Jobs with labels"), ("host", "A host of HTTP targets"),
          ("worker", "A worker or node"), ("all", "Everything"))  # fmt: skip
LENGTHS = {"15m": (15 * MINUTE, "15 minutes"), "1h": (HOUR, "1 hour"), "4h": (4 * HOUR, "4 hours"),
           "1d": (DAY, "1 day"), "": (0, "until it is lifted")}  # fmt: skip

NEW = {"scope": "queue", "what": "", "length": "1h", "reason": "", "begins": "", "missed": "", "running": ""}
PLACES = {"scope.job": "what", "scope.host": "what", "until": "length"}
"""The fields of the API that the form has under other names."""


class Holds(Pages):
    """The page at `/holds`."""

    @Page("GET", "/holds", "holds", also=Scope.RUNS_READ, place="holds")
    async def show(self, visit: Visit) -> Answer:
        scope = visit.text("scope")
        until_lifted = {"length": ""} if scope == "worker" else {}
        return await self._page(visit, {"scope": scope, "what": visit.text("what"), **until_lifted})

    async def _page(self, visit: Visit, form: dict[str, str], problem: Fault | None = None) -> Answer:
        page = await self._operations.holds.page(None, None, PAGE_MAX)
        rows = sorted((_row(hold, visit.now) for hold in page.items), key=lambda row: not row["active"])
        in_force = sum(row["active"] for row in rows)
        values = {
            "rows": rows,
            "more": page.next_after is not None,
            "heading": f"{counted(in_force, 'hold')} in force" if in_force else "Nothing is held",
            "scopes": SCOPES,
            "lengths": [(key, words) for key, (_, words) in LENGTHS.items()],
            "form": {**NEW, **form},
            "problem": problem,
        }
        return Shown("holds.html", values, 422 if problem else 200)

    @Page("POST", "/holds", "hold-add", scope=Scope.RUNS_WRITE, place="holds")
    async def add(self, visit: Visit) -> Answer:
        form = {name: visit.text(name).strip() for name in NEW}
        try:
            hold = await self._operations.holds.add(_definition(form, visit))
        except InvalidRequest as error:
            return await self._page(visit, form, fault_in(error, form, PLACES))
        return Went("/holds", f"Held: {scope_words(hold.scope)}.", (f"/holds/{hold.id}/lift", "Lift"))

    @Page("POST", "/holds/{id}/lift", "hold-lift", scope=Scope.RUNS_WRITE, place="holds")
    async def lift(self, visit: Visit) -> Answer:
        hold = await self._operations.holds.lift(str(visit.request.path_params["id"])[:200])
        return Went("/holds", f"Lifted: {scope_words(hold.scope)}. What waited goes on.")


def _definition(form: dict[str, str], visit: Visit) -> HoldDefinition:
    """Raises InvalidRequest."""
    if not 0 < len(form["reason"]) <= REASON_CHARS_MAX:
        raise InvalidRequest(f"reason: say why, in 1 to {REASON_CHARS_MAX} characters", field="reason")
    if form["length"] not in LENGTHS:
        raise InvalidRequest("length: choose one of those listed", field="length")
    begins = instant_of(form["begins"], "begins", visit.zone)
    length = LENGTHS[form["length"]][0]
    until = (visit.now if begins is None else begins) + length if length else None
    return HoldDefinition(
        scope=_scope(form["scope"], form["what"]),
        reason=form["reason"],
        begins_at=None if begins is None else to_datetime(begins),
        until=None if until is None else to_datetime(until),
        missed=HeldMissed.SKIP if form["missed"] == "skip" else HeldMissed.CATCH_UP,
        running=HeldRunning.CANCEL if form["running"] == "cancel" else HeldRunning.FINISH,
    )


def _scope(kind: str, what: str) -> HoldScope:
    if kind == "all":
        if what:
            raise InvalidRequest("what: a hold on everything has no name; leave this empty", field="what")
        return HoldScope(all=True)
    if not what:
        raise InvalidRequest("what: name what is to be held", field="what")
    match kind:
        case "labels":
            labels = read_search(what)[0]
            if not labels:
                raise InvalidRequest("what: labels are written as team=billing", field="what")
            return HoldScope(labels=labels)
        case "job":
            return HoldScope(job=what)
        case "queue":
            return HoldScope(queue=what)
        case "host":
            return HoldScope(host=what)
        case "worker":
            return HoldScope(worker=what)
    raise InvalidRequest("scope: choose one of those listed", field="scope")


def _row(hold: Hold, now: Instant) -> dict[str, Any]:
    stretch = stretch_at(hold, now)
    return {
        "hold": hold,
        "what": scope_words(hold.scope),
        "active": stretch is not None,
        "until": hold.ends_at if stretch is None else stretch.ends_at if hold.repeat else hold.ends_at,
        "begins": None if stretch is not None else next_begin(hold, now),
    }
