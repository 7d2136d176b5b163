"""The job: what to run, when, under which policies."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from horarium.clock import Instant
from horarium.model.follows import Follow, Occasion
from horarium.model.missed import Missed
from horarium.model.overrides import Override
from horarium.model.states import JobState
from horarium.model.targets import Target, queue_of
from horarium.policies import (
    DEFAULT_CATCH_UP,
    DEFAULT_RETENTION,
    DEFAULT_RETRY,
    DEFAULT_TIMEOUTS,
    Approval,
    CatchUp,
    Concurrency,
    Overlap,
    Rate,
    Retention,
    Retry,
    Timeouts,
)


class Definition(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The owner's part of a job: what to run, when, under which policies. `title` is its text for people.
    `buffer_max`: fire times are skipped while that number of its runs is pending."""

    name: str
    trigger: dict[str, Any]
    target: Target
    enabled: bool = True
    labels: dict[str, str] = {}
    catch_up: CatchUp = DEFAULT_CATCH_UP
    overlap: Overlap = Overlap.ALLOW
    retry: Retry = DEFAULT_RETRY
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    priority: int = 0
    concurrency: Concurrency | None = None
    rate: tuple[Rate, ...] = ()
    fair: str | None = None
    jitter_seconds: float = 0.0
    starts_at: Instant | None = None
    ends_at: Instant | None = None
    fires_max: int | None = None
    retention: Retention = DEFAULT_RETENTION
    title: str | None = None
    buffer_max: int | None = None
    approval: Approval | None = None
    on: dict[Occasion, tuple[Follow, ...]] = {}


OWNED = Definition.__struct_fields__
"""The fields that only a job's owner changes."""


class Job(Definition, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The stored job: its definition, and our state of it.

    `version` grows with every write: the writer names the version that it read. `planned_until` is the cursor: every
    fire time up to it (included) has been accounted for. `next_fire_at` is the first fire time after the cursor (None:
    nothing more to plan, or paused); of a job that is paused until an instant, or under a
    hold (`held_until`), this instant. `anchor_at` is the instant
    to which a trigger without a start of its own is anchored. `finished_at` is when it was found that the job has
    nothing left to do: its rule yields no fire time any more, and its runs have ended. `overrides`: fire times that a
    person skipped or moved, by fire time; `overrides_dropped`: those that its last edit dropped, since its rule yields
    them no longer. `missed`: fire times up to the cursor about which a person is asked.
    """

    id: str
    version: int = 1
    anchor_at: Instant = 0
    planned_until: Instant = 0
    next_fire_at: Instant | None = None
    fires_count: int = 0
    paused_at: Instant | None = None
    pause_reason: str | None = None
    paused_until: Instant | None = None
    held_until: Instant | None = None
    created_at: Instant = 0
    updated_at: Instant = 0
    deleted_at: Instant | None = None
    finished_at: Instant | None = None
    overrides: tuple[Override, ...] = ()
    overrides_dropped: tuple[Instant, ...] = ()
    missed: Missed | None = None

    @property
    def queue(self) -> str:
        return queue_of(self.target)

    @property
    def state(self) -> JobState:
        if self.finished_at is not None:
            return JobState.FINISHED
        return JobState.ENABLED if self.enabled else JobState.PAUSED

    @property
    def active(self) -> bool:
        """Whether it goes on by itself: neither paused nor finished."""
        return self.enabled and self.finished_at is None
