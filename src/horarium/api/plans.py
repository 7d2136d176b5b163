"""The endpoints that say what a change, and the days to come, will do: /plans and /forecast."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from horarium.access.roles import Principal, Scope
from horarium.api import examples
from horarium.api.endpoints import Answer, Call, Endpoint, Handlers, answer, answer_text
from horarium.api.problems import Problem, problem_of
from horarium.api.reading import (
    check_rule,
    is_name,
    read_cursor,
    to_definition,
    without_read_only,
    write_cursor,
)
from horarium.api.routing import AnyRequest
from horarium.api.runs import bounded_instant
from horarium.api.schemas import Page, PageQuery, Since, Until
from horarium.errors import NotFound
from horarium.model.labels import Labels
from horarium.model.plans import PLAN_ID, PlanKind
from horarium.operations.bounds.evaluating import in_thread
from horarium.operations.plans.applying import Applied
from horarium.operations.plans.documents import read_documents
from horarium.operations.plans.fires import FireDifferences
from horarium.operations.plans.foreseen import Foreseen
from horarium.operations.plans.making import HORIZON_SECONDS, HORIZON_SECONDS_MAX, Action, Change
from horarium.operations.plans.shown import change_shown, forecast_text, listed_shown, plan_shown
from horarium.rules.calendars import FireChange
from horarium.rules.differing import FieldChange

PLAN_BYTES_MAX = 8 * 1024 * 1024
"""The body of one request for a plan: some 20,000 jobs."""
DOCUMENTS_MAX = 20_000
Listed = Annotated[list[dict[str, Any]], Meta(max_length=DOCUMENTS_MAX)]


class DocumentsRequest(Struct, forbid_unknown_fields=True):
    """Definitions, each with its `name`, as GET and exports show them."""

    jobs: Listed = []
    calendars: Listed = []
    channels: Listed = []


class ApplyQuery(Struct, forbid_unknown_fields=True):
    """How a plan is applied."""

    approve: Annotated[
        bool, Meta(description="Make no change yet, but let callers apply it that have `runs:write` alone.")
    ] = False


class PruneRequest(Struct, forbid_unknown_fields=True):
    """Jobs with all of these labels that are not among the documents are to be deleted."""

    labels: Annotated[Labels, Meta(min_length=1)]


class PlanRequest(Struct, forbid_unknown_fields=True):
    """What is to be stored, and how far ahead fire times are compared."""

    documents: DocumentsRequest
    prune: PruneRequest | None = None
    horizon_seconds: Annotated[int, Meta(ge=1, le=HORIZON_SECONDS_MAX)] = HORIZON_SECONDS


class ChangeView(Struct):
    """What would become of one definition. `fires`: fire times within the horizon that come, go and move, the first of
    each. `jobs`: of a calendar, the jobs whose fire times change with it."""

    kind: PlanKind
    name: str
    action: Action
    fields: list[FieldChange]
    fires: FireDifferences
    jobs: list[FireChange] | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class PeakView(Struct):
    """The minute in which the most runs start, within 14 days."""

    at: datetime
    starts: int


class Peaks(Struct):
    """The busiest minute as it is, and as it would be; null where nothing starts."""

    before: PeakView | None
    after: PeakView | None


class PlanView(Struct):
    """What documents would change. `fires_at_once`: jobs that fire within a minute of being applied."""

    id: str
    changes: list[ChangeView]
    fires_at_once: list[str]
    peak: Peaks
    warnings: list[Foreseen]
    expires_at: datetime


class ListedView(Struct):
    """A plan in a list. `ref`: the first half of its id, which opens nothing; the second half is its key, and only who
    made it has it. `changes`: how many by action."""

    ref: str
    by: str
    changes: dict[str, int]
    applied: bool
    expires_at: datetime


class PlanPage(Page[ListedView]):
    """One page of plans, the newest first."""


class ForecastQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which span (left out: seven days from now on), in buckets of which length, counted by what."""

    since: Since | UnsetType = UNSET
    until: Until | UnsetType = UNSET
    bucket_seconds: Annotated[int, Meta(ge=1, le=31 * 86_400, description="The length of a bucket.")] = 3600
    by: Annotated[
        str,
        Meta(pattern=r"^(queue|job|host|label:[A-Za-z0-9][A-Za-z0-9._/-]{0,62})$(?!\n)",
             description="`queue`, `job`, `host` (of HTTP targets) or `label:NAME`."),
    ] = "queue"  # fmt: skip


class BucketView(Struct):
    """One bucket: by label how many runs start, and how many run at once on average. Labels with nothing are left
    out; the label "" is what has none, and all beyond the first hundred."""

    at: datetime
    starts: dict[str, int]
    running: dict[str, float]


class ForecastView(Struct):
    """What will run. `peaks`: the buckets with the most starts, `quiet`: those with the fewest. `left_out`: jobs whose
    rule takes too long to evaluate."""

    buckets: list[BucketView]
    peaks: list[BucketView]
    quiet: list[BucketView]
    left_out: list[str]


class PlansApi(Handlers):
    @Endpoint(
        "POST", "/plans", "makePlan", tag="plans", scope=Scope.JOBS_READ, costly=True, alone=True,
        body_bytes_max=PLAN_BYTES_MAX,
        summary="Say what definitions would change, before they are stored",
        description="Each definition is judged for itself: an `invalid` one carries its problem, and a plan "
        "with one can't be applied. Fire times are compared within `horizon_seconds`. With `prune`, jobs with "
        "these labels that are not among the documents would be deleted. The plan is kept for seven days.",
        body=PlanRequest, examples=examples.PLANS,
        answers={201: (PlanView, "The plan")}, problems=("too_expensive",),
    )  # fmt: skip
    async def make(self, call: Call) -> Answer:
        asked: PlanRequest = call.body
        given = asked.documents
        documents = await read_documents(given.jobs, given.calendars, given.channels, read_planned_job)
        given.jobs.clear()  # read, they would take their room until the plan is answered
        labels = None if asked.prune is None else asked.prune.labels
        plan = await self._operations.planned_changes.make(documents, labels, asked.horizon_seconds, say=_change_text)
        location = [("location", f"/api/v1/plans/{plan.id}/apply")]
        return await in_thread(lambda: answer(plan_shown(plan), 201, location))

    @Endpoint(
        "GET", "/plans", "listPlans", tag="plans", scope=Scope.JOBS_READ, query=PageQuery, bound=True,
        summary="Plans of the last seven days, the newest first",
        description="Neither their keys nor their definitions are known here: what a plan changes is shown to "
        "those alone who have its id. Callers that are bound see their own.",
        answers={200: (PlanPage, "One page")}, problems=("invalid_cursor",),
    )  # fmt: skip
    async def list_all(self, call: Call) -> Answer:
        query: PageQuery = call.query
        after = read_cursor("plans", query.cursor, is_name)
        page = await self._operations.planned_changes.page(after, query.limit)
        items = [listed_shown(plan) for plan in page.items]
        return answer({"items": items, "next_cursor": write_cursor("plans", page.next_after)})

    async def approved(self, request: AnyRequest, caller: Principal) -> Principal:
        """A caller that may write no jobs, but runs, applies an approved plan."""
        if caller.missing(Scope.RUNS_WRITE):
            caller.require(Scope.JOBS_WRITE)
        await self._operations.applying.require_approved(request.path_params["id"], caller)
        return caller.narrowed(Scope.RUNS_WRITE)

    @Endpoint(
        "POST", "/plans/{id}/apply", "applyPlan", tag="plans", scope=Scope.JOBS_WRITE, without=approved,
        query=ApplyQuery, costly=True,
        summary="Carry out a plan, as a whole or not at all",
        description="Up to 1,000 changes are one transaction; of more, each call makes the next 1,000 and says "
        "how many are `left`. Where a definition is no longer as the plan read it, nothing is written (409 "
        "`plan_stale`, `changed` says what). What is in place already is passed over, so the call may be "
        "repeated. Channels take the scope `admin`. With `approve`, nothing is made yet: from then on callers "
        "that have `runs:write` in place of `jobs:write` may apply this plan.",
        answers={200: (Applied, "How many changes were made")},
        problems=("not_found", "plan_stale", "already_decided", "conflict"),
    )  # fmt: skip
    async def apply(self, call: Call) -> Answer:
        plan_id: str = call.request.path_params["id"]
        if not PLAN_ID.fullmatch(plan_id):
            raise NotFound(f"there is no plan {plan_id[:100]!r}")
        query: ApplyQuery = call.query
        applying = self._operations.applying
        return answer(await (applying.approve if query.approve else applying.apply)(plan_id))

    @Endpoint(
        "GET", "/forecast", "getForecast", tag="plans", scope=Scope.JOBS_READ, query=ForecastQuery, bound=True,
        costly=True,
        summary="How many runs will start, and run at once, in each bucket of a span",
        description="Starts are exact, by the rules as they are now. `running` follows from how long the last "
        "runs of each job took. At most 10,080 buckets.",
        answers={200: (ForecastView, "The forecast")},
    )  # fmt: skip
    async def forecast(self, call: Call) -> Answer:
        query: ForecastQuery = call.query
        since, until = bounded_instant(query.since, "since"), bounded_instant(query.until, "until")
        return await self._operations.forecasting.told(
            lambda found: answer_text(forecast_text(found)), since, until, query.bucket_seconds, query.by
        )


def _change_text(change: Change) -> Raw:
    """As JSON: as plain data, all changes of a large plan take ten times as much memory."""
    return Raw(msgspec.json.encode(change_shown(change, problem_of)))


def read_planned_job(fields: dict[str, Any]) -> Any:
    """The definition of a job among documents. Raises CallerError."""
    definition = to_definition(without_read_only(fields))
    check_rule(definition.trigger)
    return definition
