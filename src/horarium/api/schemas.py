"""The shapes of requests and answers that are not jobs or runs themselves (those are in `definitions`).

A body or a query that does not fit its struct is refused with 422. The bounds that people read in the OpenAPI document
are these very annotations.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from horarium.api.limits import (
    FIRES_DEFAULT,
    PAGE_DEFAULT,
    QUEUES_MAX,
    REASON_CHARS_MAX,
    WORKER_CHARS_MAX,
)
from horarium.api.problems import Problem
from horarium.model import NAME_LENGTH_MAX, Name, State
from horarium.model.labels import Labels
from horarium.ports import BATCH_MAX, PAGE_MAX
from horarium.rules.settling import RETRY_AFTER_SECONDS_MAX
from horarium.services.polling.claims import WAIT_SECONDS_MAX
from horarium.triggers import FIRES_MAX
from horarium.wire.definitions import Moment
from horarium.wire.history import SYSTEM_CHARS_MAX, PastRun
from horarium.wire.overrides import OverrideView
from horarium.wire.views import JobView, NodeView, RunOutcome, RunView

T = TypeVar("T")

# ---- parts ------------------------------------------------------------------------------------------------------

WITHOUT_NUL = r"^[^\x00]*(?!\n)$"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._:@-]*"

Cursor = Annotated[str, Meta(max_length=500, description="The `next_cursor` of the page before.")]
PageLimit = Annotated[int, Meta(ge=1, le=PAGE_MAX, description="How many items a page holds at most.")]
Token = Annotated[int, Meta(ge=0, le=2**63 - 1, description="The fencing token of the claim.")]
Reason = Annotated[
    str, Meta(max_length=REASON_CHARS_MAX, pattern=WITHOUT_NUL, description="Why, for those who read it later.")
]
WorkQueue = Annotated[
    str,
    Meta(
        max_length=NAME_LENGTH_MAX + 8,
        pattern=rf"^((pull|handler)/)?{_NAME}(?!\n)$",
        description="A queue as in the target `{type: queue, queue: NAME}`, or `pull/NAME`, or `handler/NAME`.",
    ),
]
AnyQueue = Annotated[
    str,
    Meta(
        max_length=NAME_LENGTH_MAX + 8,
        pattern=rf"^((pull|handler|bus)/)?{_NAME}(?!\n)$",
        description="`http`, `external`, `notify`, `follow`, `handler/NAME`, `pull/NAME`, `bus/NAME`; another plain "
        "name means `pull/NAME`.",
    ),
]
Worker = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=WORKER_CHARS_MAX,
        pattern=r"^[^\x00-\x1f\x7f]+(?!\n)$",
        description="Who claims: shown with the run.",
    ),
]
LabelPair = Annotated[
    str,
    Meta(
        max_length=300,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*=[^\x00]*(?!\n)$",
        description="`name=value`; given several times, all must match.",
    ),
]
NamePrefix = Annotated[
    str,
    Meta(max_length=NAME_LENGTH_MAX, pattern=r"^[A-Za-z0-9._:@-]*(?!\n)$", description="What the name begins with."),
]
FireCount = Annotated[int, Meta(ge=1, le=FIRES_MAX, description="How many fire times.")]
Since = Annotated[datetime, Meta(tz=True, description="Fire times from this instant on (RFC 3339).")]
Until = Annotated[datetime, Meta(tz=True, description="Fire times before this instant (RFC 3339).")]

# ---- query strings ----------------------------------------------------------------------------------------------


class PageQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Where a page begins, and how long it is."""

    limit: PageLimit = PAGE_DEFAULT
    cursor: Cursor | UnsetType = UNSET


class JobQuery(PageQuery, forbid_unknown_fields=True, kw_only=True):
    """Which jobs to list."""

    label: Annotated[list[LabelPair], Meta(max_length=64)] = []
    enabled: Annotated[bool, Meta(description="Only jobs that are (not) enabled.")] | UnsetType = UNSET
    prefix: NamePrefix | UnsetType = UNSET
    finished: Annotated[
        Literal["false", "true", "any"],
        Meta(description="Jobs that can never fire again: left out, only these, or listed with the others."),
    ] = "false"


RunIdPrefix = Annotated[
    str,
    Meta(
        min_length=4,
        max_length=36,
        pattern=r"^[0-9a-f]{4}[0-9a-f-]*(?!\n)$",
        description="Only runs whose id begins so.",
    ),
]


class RunQuery(PageQuery, forbid_unknown_fields=True, kw_only=True):
    """Which runs to list."""

    id: RunIdPrefix | UnsetType = UNSET
    job: Name | UnsetType = UNSET
    state: Annotated[
        list[State], Meta(max_length=32, description="Runs in one of these states; repeated, or split by commas.")
    ] = []
    queue: AnyQueue | UnsetType = UNSET
    since: Since | UnsetType = UNSET
    until: Until | UnsetType = UNSET


class FiresQuery(Struct, forbid_unknown_fields=True):
    """How far to look ahead."""

    count: FireCount = FIRES_DEFAULT


class UpcomingQuery(Struct, forbid_unknown_fields=True):
    """Which span: `since` (left out: now), `until` (left out: a day later)."""

    since: Since | UnsetType = UNSET
    until: Until | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1_000, description="How many, at most.")] = 100


# ---- bodies -----------------------------------------------------------------------------------------------------


class JobReplacement(Struct):
    """A job as its owner writes it; `name` may be left to the path. (Read as a `JobDefinition`.)"""


class JobPatch(Struct):
    """The fields of a job that change. Null takes a field back to its default; objects are merged into the stored ones;
    anything else replaces. (The merged job is read as a `JobDefinition`.)"""


class PauseRequest(Struct, forbid_unknown_fields=True):
    """Why a job is paused. `until`: it goes on by itself then."""

    reason: Reason | None = None
    until: Moment | None = None


class TriggerRequest(Struct, forbid_unknown_fields=True):
    """`payload` replaces the payload, args or body of the target, for this run only."""

    payload: Any = None


class RetryRequest(TriggerRequest, forbid_unknown_fields=True):
    """`payload` takes the place of the payload, args or body of the run that is retried."""


class ImportRequest(Struct, forbid_unknown_fields=True):
    """Jobs, each read as a `JobDefinition`, for itself. `dry_run`: answer the effects, and write nothing. `owned_by`:
    labels of who imports; a job that has another value of one of them is another's, and is left alone."""

    jobs: Annotated[list[dict[str, Any]], Meta(max_length=BATCH_MAX)]
    dry_run: bool = False
    owned_by: Labels = {}


class HistoryRequest(Struct, forbid_unknown_fields=True):
    """Runs that are over, and the name of the system that performed them, which becomes their worker."""

    system: Annotated[str, Meta(min_length=1, max_length=SYSTEM_CHARS_MAX, pattern=WITHOUT_NUL)]
    runs: Annotated[list[PastRun], Meta(max_length=BATCH_MAX)]


class HistoryAnswer(Struct):
    """How many runs were added; for how many the job had one already; how many it would not keep any more."""

    added: int
    known: int
    too_old: int


class BackfillRequest(Struct, forbid_unknown_fields=True):
    """The fire times from `start` (included) to `end` (excluded)."""

    start: Moment
    end: Moment


class PreviewRequest(Struct, forbid_unknown_fields=True):
    """A trigger to try, without a job. `after` left out: now."""

    trigger: dict[str, Any]
    after: Moment | None = None
    count: FireCount = FIRES_DEFAULT


class CancelRequest(Struct, forbid_unknown_fields=True):
    """Why a run is cancelled."""

    reason: Reason | None = None


class RunsRequest(Struct, forbid_unknown_fields=True):
    """Runs that belong to no job, each read as a `RunDefinition`, for itself."""

    runs: Annotated[list[dict[str, Any]], Meta(max_length=BATCH_MAX)]


RunId = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[0-9a-fA-F-]+(?!\n)$")]
PerSecond = Annotated[float, Meta(ge=0.001, le=100_000, description="At most this number of runs each second.")]
ErrorText = Annotated[
    str, Meta(min_length=1, max_length=1_000, pattern=WITHOUT_NUL, description="Only runs whose error holds this text.")
]


class BulkRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which runs: `ids`, or those that fit every field of the filter. `state`: one, or several."""

    ids: Annotated[list[RunId], Meta(max_length=BATCH_MAX)] | None = None
    job: Name | None = None
    state: State | Annotated[list[State], Meta(min_length=1, max_length=32)] | None = None
    queue: AnyQueue | None = None
    since: Moment | None = None
    until: Moment | None = None
    error_contains: ErrorText | None = None
    per_second: PerSecond | None = None
    dry_run: bool = False
    cursor: Cursor | None = None


class CancelManyRequest(BulkRequest, forbid_unknown_fields=True, kw_only=True):
    """As for a retry, and why."""

    reason: Reason | None = None


class ClaimRequest(Struct, forbid_unknown_fields=True):
    """Whose work is wanted, how much of it at most, and how long to wait where there is none."""

    queues: Annotated[list[WorkQueue], Meta(min_length=1, max_length=QUEUES_MAX)]
    limit: Annotated[int, Meta(ge=1, le=BATCH_MAX)] = 1
    wait_seconds: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)] = 0.0
    worker: Worker = "a worker"


class HeartbeatRequest(Struct, forbid_unknown_fields=True):
    """A sign of life; `progress` is kept with the run and shown."""

    token: Token
    progress: Any = None


class CompleteRequest(Struct, forbid_unknown_fields=True):
    """The work is done; `result` is kept with the run."""

    token: Token
    result: Any = None


RetryAfter = Annotated[float, Meta(ge=0, le=RETRY_AFTER_SECONDS_MAX)]


class FailRequest(Struct, forbid_unknown_fields=True):
    """The attempt failed. `retryable` false: no other attempt can help. `error` is kept up to 4,000 characters."""

    token: Token
    error: str
    retryable: bool = True
    retry_after_seconds: RetryAfter | None = None


class Report(Struct, forbid_unknown_fields=True):
    """How one attempt ended. `until` belongs to `deferred`; `error`, `retryable` and `retry_after_seconds` to
    `failed`; `result` to `completed`, for which `succeeded` is another word; `reason` to the other three."""

    id: Annotated[str, Meta(max_length=100)]
    token: Token
    outcome: Literal["completed", "succeeded", "failed", "cancelled", "released", "deferred"]
    result: Any = None
    error: str | None = None
    retryable: bool = True
    retry_after_seconds: RetryAfter | None = None
    until: Moment | None = None
    reason: Reason | None = None


Reports = Annotated[list[Report], Meta(max_length=BATCH_MAX)]

# ---- answers ----------------------------------------------------------------------------------------------------


class Page(Struct, Generic[T]):
    """One page of a list. `next_cursor`: where the next page begins; null on the last."""

    items: list[T]
    next_cursor: str | None


class JobPage(Page[JobView]):
    """One page of jobs, by name. `next_cursor`: where the next page begins; null on the last."""


class RunPage(Page[RunView]):
    """One page of runs, newest fire time first."""


class NodePage(Page[NodeView]):
    """One page of nodes, by name."""


class RunBatch(Struct):
    """Runs that belong together."""

    runs: list[RunView]


class BackfillAnswer(Struct):
    """The runs that a backfill made. `left`: how many fire times of the span are left (counted up to 20,000);
    ask again with `next_start` as `start` for these. 0 and null: there are none."""

    runs: list[RunView]
    left: int = 0
    next_start: datetime | None = None


class Imported(Struct, omit_defaults=True):
    """The outcome of one job of an import; for one that failed, why: nothing of it was written. `warning`: a channel
    that it names is not there yet."""

    name: str
    outcome: Literal["created", "updated", "unchanged", "failed"]
    problem: Problem | UnsetType = UNSET
    warning: str | UnsetType = UNSET


class AddedRun(Struct, omit_defaults=True):
    """The outcome of one run of a batch: its id, or that of the run that holds its key; or why it was not added."""

    id: str | None
    outcome: RunOutcome | Literal["failed"]
    problem: Problem | UnsetType = UNSET


class BulkAnswer(Struct, omit_defaults=True):
    """The result of one request: how many runs matched, how many were changed, and why not the others. `cursor`: where
    the next request goes on; left out: nothing is left."""

    matched: int
    done: int
    left: dict[str, int] = {}
    cursor: str | UnsetType = UNSET


class Fires(Struct):
    """Instants at which a job runs, earliest first, and its rule in plain words. `overrides`: fire times that a person
    skipped, which are not among them, or moved, which are there as the instants they were moved to. `warnings`: of a
    preview, what another scheduler would read otherwise in the same rule."""

    fires: list[datetime]
    words: str
    overrides: list[OverrideView] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class PulseView(Struct):
    """Until when the lease now lasts, and whether the work should stop."""

    cancel_requested: bool
    expires_at: datetime


class Settled(Struct, omit_defaults=True):
    """The outcome of one report: the state in which its run now is, or why nothing was written."""

    id: str
    state: State | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class QueueView(Struct):
    """One queue: runs due, waiting for later, claimed; since when the oldest due one waits.
    `unserved`: one has been due for a minute or more, and no worker claims it. `hold`: a hold lies over it."""

    queue: str
    due: int
    scheduled: int
    running: int
    oldest_due_at: datetime | None
    unserved: bool
    hold: bool


class StatsView(Struct):
    """Counts of unfinished runs. `queues_left_out`: how many queues there are beyond the 1,000 told, in which due runs
    have waited longest. `hold`: a hold lies over everything. The numbers of jobs are left out for callers that are
    bound to queues."""

    queues: list[QueueView]
    workers_waiting: int
    queues_left_out: int = 0
    hold: bool = False
    jobs: int | UnsetType = UNSET
    jobs_enabled: int | UnsetType = UNSET


class Alive(Struct):
    """The process lives."""

    status: Literal["ok"] = "ok"


class Readiness(Struct):
    """Whether this node can work, and by part why not."""

    ready: bool
    problems: dict[str, str]
