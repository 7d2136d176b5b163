"""The batch: runs whose common end brings something about."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from horarium.clock import Instant
from horarium.model.follows import FOLLOWS_MAX
from horarium.model.runs import RunFollow
from horarium.model.targets import Name

BATCH = "batch/"
"""The record of a batch is named by this and its id."""
BATCH_RUNS = "batch-runs/"
"""Its runs, in records of up to a thousand, by the batch and a number."""
BATCH_ENDS = "batch-end/"
"""Ends of its runs that are not counted yet, each written with that end."""

BATCH_OWED = f"{BATCH_ENDS}!"
"""What is left of a request about all runs of a batch, by the batch: listed before the ends."""
BATCH_KEYS = "batch-key/"
"""Which batch a request with an idempotency key has made."""


class BatchOccasion(StrEnum):
    """Events of a batch that something is to follow from."""

    COMPLETED = "completed"
    FAILED = "failed"
    FINISHED = "finished"


class BatchState(StrEnum):
    """`open`: it takes more runs; `closed`: it does not, and some of its runs have not ended."""

    OPEN = "open"
    CLOSED = "closed"
    FINISHED = "finished"


class BatchFollow(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is to follow: a notification to the channel `notify`, a run of the job `trigger`, or a one-off run of the
    handler `handler`. The runs get the counts of the batch (its `result`), or the payload given here."""

    notify: Name | None = None
    trigger: Name | None = None
    handler: Name | None = None
    payload: Any = None

    @property
    def action(self) -> str:
        """What it does, in one word: no occasion has two of one."""
        named = (f"{kind}:{name}" for kind in ("notify", "trigger", "handler") if (name := getattr(self, kind)))
        return next(named, "")


class BatchOwed(Struct, frozen=True, omit_defaults=True):
    """The rest of a request about all runs of a batch, made `at` then: from this page of them on. The request itself
    carried out the first page, unless it died before."""

    action: Literal["cancel", "retry"]
    at: Instant
    page: int = 0
    reason: str | None = None


BatchOn = dict[BatchOccasion, Annotated[tuple[BatchFollow, ...], Meta(max_length=FOLLOWS_MAX)]]


class Batch(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A batch. `total`: its runs; the other counts are of those that have ended. `pages`: records that hold their ids.
    `round`: one more each time that runs of it are done again after it had finished; `told_failed`: the round whose
    first failure was told. `by`: the subject of who made it; `key`: the idempotency key of that request.
    `retrying`: its failed runs are being done again, page by page; it does not finish meanwhile. `then`: runs that
    follow once it is completed, as those of `on` do."""

    id: str
    created_at: Instant
    by: str | None = None
    name: str | None = None
    on: BatchOn = {}
    total: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    pages: int = 0
    queues: tuple[str, ...] = ()
    round: int = 1
    told_failed: int = 0
    closed_at: Instant | None = None
    finished_at: Instant | None = None
    key: str | None = None
    retrying: bool = False
    then: tuple[RunFollow, ...] = ()

    @property
    def state(self) -> BatchState:
        if self.finished_at is not None:
            return BatchState.FINISHED
        return BatchState.OPEN if self.closed_at is None else BatchState.CLOSED


class BatchTold(Struct, frozen=True):
    """What follow-ups of a batch are given."""

    batch: str
    total: int
    completed: int
    failed: int
    cancelled: int
