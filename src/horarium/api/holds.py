"""The endpoints under /holds."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from horarium.access.roles import Scope
from horarium.api.endpoints import Answer, Call, Endpoint, Example, Handlers, answer, no_content
from horarium.api.reading import is_name, path_id, read_cursor, write_cursor
from horarium.api.schemas import Page, PageQuery
from horarium.model.holds import Hold
from horarium.wire.holds import HoldDefinition, HoldPatch, HoldView, hold_view


class HoldPage(Page[HoldView]):
    """One page of holds, oldest first."""


class HoldsQuery(PageQuery, forbid_unknown_fields=True, kw_only=True):
    """Which holds."""

    active: Annotated[
        bool | UnsetType,
        Meta(
            description="`true`: those that are in force; `false`: those that are not, ended ones too for a month. "
            "Left out: all that have not ended."
        ),
    ] = UNSET


EXAMPLES = (
    Example(
        "maintenance",
        {
            "scope": {"labels": {"system": "ledger"}},
            "from": "2027-03-06T22:00:00+01:00",
            "until": "2027-03-07T02:00:00+01:00",
            "reason": "The ledger's database is moved",
        },
    ),
    Example(
        "every week",
        {
            "scope": {"host": "api.example.com"},
            "repeat": {"trigger": {"type": "cron", "expression": "0 2 * * SUN"}, "seconds": 7200},
            "missed": "skip",
            "reason": "Their weekly maintenance",
        },
    ),
)


class HoldsApi(Handlers):
    @Endpoint(
        "POST", "/holds", "addHold", tag="holds", scope=Scope.RUNS_WRITE, costly=True,
        summary="Hold jobs, a queue, a host, a worker or everything",
        description="No attempt of what it covers begins while it is in force: on every node within two "
        "seconds, or from its first to its last instant where it lies ahead. What waits loses no attempt.",
        body=HoldDefinition, examples=EXAMPLES,
        answers={201: (HoldView, "The new hold")}, problems=("invalid_trigger", "too_expensive", "conflict"),
    )  # fmt: skip
    async def add(self, call: Call) -> Answer:
        hold = await self._operations.holds.add(call.body)
        return answer(self._view(hold), 201, [("location", f"/api/v1/holds/{hold.id}")])

    @Endpoint(
        "GET", "/holds/{id}", "getHold", tag="holds", scope=Scope.RUNS_READ, bound=True,
        summary="Show a hold",
        answers={200: (HoldView, "The hold")}, problems=("not_found",),
    )  # fmt: skip
    async def get(self, call: Call) -> Answer:
        return answer(self._view(await self._operations.holds.get(path_id(call.request))))

    @Endpoint(
        "GET", "/holds", "listHolds", tag="holds", scope=Scope.RUNS_READ, query=HoldsQuery, bound=True,
        summary="Holds, oldest first",
        answers={200: (HoldPage, "One page")}, problems=("invalid_cursor",),
    )  # fmt: skip
    async def list_all(self, call: Call) -> Answer:
        query: HoldsQuery = call.query
        active = None if isinstance(query.active, UnsetType) else query.active
        page = await self._operations.holds.page(active, read_cursor("holds", query.cursor, is_name), query.limit)
        return answer(HoldPage([self._view(hold) for hold in page.items], write_cursor("holds", page.next_after)))

    @Endpoint(
        "PATCH", "/holds/{id}", "updateHold", tag="holds", scope=Scope.RUNS_WRITE,
        summary="Change the end or the reason of a hold",
        body=HoldPatch,
        answers={200: (HoldView, "The hold")}, problems=("not_found", "conflict"),
    )  # fmt: skip
    async def patch(self, call: Call) -> Answer:
        return answer(self._view(await self._operations.holds.update(path_id(call.request), call.body)))

    @Endpoint(
        "DELETE", "/holds/{id}", "liftHold", tag="holds", scope=Scope.RUNS_WRITE,
        summary="Lift a hold",
        description="What waited goes on, at the usual pace. It stays listed as one that"
        " is not in force for a month.",
        answers={204: (None, "It is lifted")}, problems=("not_found", "conflict"),
    )  # fmt: skip
    async def lift(self, call: Call) -> Answer:
        await self._operations.holds.lift(path_id(call.request))
        return no_content()

    def _view(self, hold: Hold) -> HoldView:
        return hold_view(hold, self._clock.now())
