"""A person takes note of a cause, with a reason and until when; and takes that back."""

from __future__ import annotations

from urllib.parse import urlencode

from horarium.access.acting import reading
from horarium.access.roles import Scope
from horarium.clock import DAY, HOUR
from horarium.dashboard.attention import Watching
from horarium.dashboard.formats import fault_in
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.dashboard.troubles import Trouble
from horarium.errors import InvalidRequest, NotFound
from horarium.operations.deciding.acknowledging import Acknowledging, Cause
from horarium.operations.facade import Operations
from horarium.operations.looking.attending import OF_BOUND
from horarium.wire.faults import Fault

LENGTHS = {"4h": (4 * HOUR, "for 4 hours"), "1d": (DAY, "until this time tomorrow"), "7d": (7 * DAY, "for 7 days"),
           "30d": (30 * DAY, "until it changes, for 30 days at most")}  # fmt: skip


class Acknowledge(Pages):
    """The page at `/acknowledge`."""

    def __init__(self, operations: Operations, watching: Watching) -> None:
        self._acknowledging, self._watching = Acknowledging(operations.context), watching

    async def _trouble(self, visit: Visit) -> tuple[Trouble, Cause]:
        """The open or acknowledged line that is meant, as this visitor sees it. Raises NotFound."""
        key = visit.text("cause")
        with reading(visit.principal):
            attention = await self._watching.look(0)
        for trouble in (*attention.troubles, *(each for each, _ in attention.known)):
            cause = next((cause for cause in trouble.causes if cause.key == key), None)
            if cause is not None and may_note(visit, trouble):
                return trouble, cause
        raise NotFound(f"nothing of {key[:200]!r} needs attention now")

    @Page("GET", "/acknowledge", "acknowledge", scope=Scope.RUNS_WRITE, also=Scope.JOBS_READ, place="overview")
    async def ask(self, visit: Visit) -> Answer:
        trouble, cause = await self._trouble(visit)
        return self._form(trouble, cause, visit)

    def _form(self, trouble: Trouble, cause: Cause, visit: Visit, problem: Fault | None = None) -> Shown:
        values = {
            "trouble": trouble,
            "cause": cause.key,
            "lengths": [(key, words) for key, (_, words) in LENGTHS.items()],
            "chosen": visit.text("length") or "1d",
            "reason": visit.text("reason"),
            "problem": problem,
        }
        return Shown("acknowledge.html", values, 422 if problem else 200)

    @Page("POST", "/acknowledge", "acknowledge-done", scope=Scope.RUNS_WRITE, place="overview")
    async def do(self, visit: Visit) -> Answer:
        trouble, cause = await self._trouble(visit)
        length = LENGTHS.get(visit.text("length"))
        if length is None:
            raise InvalidRequest("length: choose one of those listed", field="length")
        reason, by = visit.text("reason").strip(), visit.principal.name
        try:
            for each in trouble.causes:
                await self._acknowledging.put(each, reason, by, visit.now + length[0])
        except InvalidRequest as error:
            return self._form(trouble, cause, visit, fault_in(error, ("reason",)))
        self._watching.forget()
        undo = "/acknowledge/undo?" + urlencode({"cause": cause.key}), "Take it back"
        what = "What fails with one error" if trouble.kind == "alike" else trouble.subject
        return Went("/", f"{what} is acknowledged {length[1]}, or until it changes.", undo)

    @Page("POST", "/acknowledge/undo", "acknowledge-undo", scope=Scope.RUNS_WRITE)
    async def undo(self, visit: Visit) -> Answer:
        trouble, _ = await self._trouble(visit)
        for each in trouble.causes:
            await self._acknowledging.take_back(each.key)
        self._watching.forget()
        what = "What fails with one error" if trouble.kind == "alike" else trouble.subject
        return Went("/", f"{what} is open again.")


def may_note(visit: Visit, trouble: Trouble) -> bool:
    """Whether this visitor may take note of it."""
    cause = trouble.cause
    return cause is not None and (not visit.principal.bound or cause.key.startswith(OF_BOUND))
