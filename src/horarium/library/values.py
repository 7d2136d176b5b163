"""Values of `Scheduler`: jobs, runs, batches and pages, as they were when they were read.

Instants are aware datetimes (UTC). `to_dict()` is plain data, ready for `json.dumps`, and the same as the REST API's
JSON: secrets are masked there, and `payload`, `progress` and `result` are values (as attributes they are JSON text).
`view()` is the same as a `msgspec.Struct`. A FastAPI route may return any of them as it is: `dict(value)` is
`to_dict()`, and pydantic is given a schema that says so.

Every name is a field of the stored value; it is read from it when it is asked for, so that handing out thousands of
runs costs nothing. A field annotated `datetime` here is an instant there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec

from horarium import model, ports
from horarium.clock import Clock, moment, to_datetime
from horarium.errors import InvalidRequest
from horarium.model import Cause, Disposition, Follow, JobState, Occasion, RunPolicy, State, Target, shown_state
from horarium.model.batches import BatchFollow, BatchOccasion, BatchState
from horarium.policies import Approval, CatchUp, Concurrency, Overlap, Rate, Retention, Retry, Timeouts

if TYPE_CHECKING:
    from horarium.wire.batches import BatchView
    from horarium.wire.overrides import MissedView, OverrideView
    from horarium.wire.views import EventView, JobView, LastRunView, RunView

V = TypeVar("V", bound="Value")


class Value:
    """One stored value, as programs see it. Two are equal if their stored values are."""

    __slots__ = ("_stored",)
    _instants: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, stored: Any) -> None:
        self._stored = stored

    def __init_subclass__(cls) -> None:
        cls._instants = frozenset(name for name, kind in cls.__annotations__.items() if "datetime" in str(kind))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or name not in type(self).__annotations__:
                raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}", name=name, obj=self)
            value = self._field(name)
            return to_datetime(value) if name in self._instants and value is not None else value

    def _field(self, name: str) -> Any:
        return getattr(self._stored, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *type(self).__annotations__})

    def __eq__(self, other: object) -> bool:
        return self._stored == other._stored if isinstance(other, Value) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), self._stored.id))

    def view(self) -> Any:
        """As the REST API shows it."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON: what the REST API answers."""
        return _plain(self.view())

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """The pairs of `to_dict()`, so that `dict(value)` is the same."""
        return iter(self.to_dict().items())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """An annotation such as `-> Run` of a FastAPI route: checked by its class, written by `to_dict`."""
        return _pydantic_schema(cls)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": "object", "title": cls.__name__}


class Job(Value):
    """A job: its definition and its state. `target` holds its secrets; `to_dict()` and `view()` mask them."""

    __slots__ = ("_health",)

    name: str
    trigger: dict[str, Any]
    target: Target
    enabled: bool
    labels: dict[str, str]
    catch_up: CatchUp
    overlap: Overlap
    retry: Retry
    timeouts: Timeouts
    priority: int
    concurrency: Concurrency | None
    rate: tuple[Rate, ...]
    fair: str | None
    jitter_seconds: float
    starts_at: datetime | None
    ends_at: datetime | None
    fires_max: int | None
    retention: Retention
    title: str | None
    buffer_max: int | None
    approval: Approval | None
    on: dict[Occasion, tuple[Follow, ...]]
    id: str
    version: int
    queue: str
    anchor_at: datetime
    planned_until: datetime
    next_fire_at: datetime | None
    fires_count: int
    paused_at: datetime | None
    pause_reason: str | None
    paused_until: datetime | None
    held_until: datetime | None
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None
    state: JobState
    finished_at: datetime | None

    def __init__(self, stored: model.Job, health: model.Health = model.NO_HEALTH) -> None:
        super().__init__(stored)
        self._health = health

    def _field(self, name: str) -> Any:
        value = super()._field(name)
        if name != "trigger":
            return value
        from horarium.rules.calendars import without_days

        return without_days(value)

    @property
    def words(self) -> str:
        """The trigger in words."""
        from horarium.rules.compiled import trigger_of

        return trigger_of(self._stored).words()

    @property
    def overrides(self) -> list[OverrideView]:
        """Its fire times that are skipped or moved."""
        from horarium.wire.overrides import override_views

        return override_views(self._stored.overrides)

    @property
    def missed(self) -> MissedView | None:
        """The missed fire times about which a person is asked; None: there is no such question."""
        from horarium.wire.overrides import missed_view

        return None if self._stored.missed is None else missed_view(self._stored.missed)

    @property
    def overrides_dropped(self) -> list[datetime]:
        """Those of them that its last edit dropped, since its rule yields them no longer."""
        return [*map(to_datetime, self._stored.overrides_dropped)]

    @property
    def last_run(self) -> LastRunView | None:
        """The run that came to its end last."""
        from horarium.wire.views import health_view

        return health_view(self._health).last_run

    @property
    def last_success_at(self) -> datetime | None:
        """When a run last completed."""
        return moment(self._health.last_success_at)

    @property
    def failures_in_a_row(self) -> int:
        """How many runs have failed since one completed."""
        return self._health.failures_in_a_row

    @property
    def failing_since(self) -> datetime | None:
        """When the first of these ended."""
        return moment(self._health.failing_since)

    def view(self) -> JobView:
        from horarium.wire.views import job_view

        return job_view(self._stored, self._health)

    def __repr__(self) -> str:
        following = f"next {self.next_fire_at:%Y-%m-%d %H:%M:%S}Z" if self.next_fire_at else "no fire time ahead"
        state = following if self.state is JobState.ENABLED else self.state
        return f"<Job {self.name!r} {self.words}, {self.queue}, {state}>"


def id_of(run: Run | str) -> str:
    """The id of a run that is given as such, or by its id. Raises InvalidRequest."""
    if isinstance(run, Run):
        return run.id
    if not isinstance(run, str):
        raise InvalidRequest(f"run_id: expected a run or its id, not {run!r}", field="run_id")
    return run


class Run(Value):
    """A run: one execution owed for one fire time, or asked for. `payload`, `progress` and `result` are JSON text;
    in `to_dict()` they are values. `history` is all that happened to it, oldest first."""

    __slots__ = ()

    id: str
    queue: str
    job: str | None
    job_id: str | None
    fire_at: datetime
    due_at: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    finished: bool
    attempt: int
    token: int
    worker: str | None
    lease_expires_at: datetime | None
    deadline: datetime | None
    error: str | None
    payload: bytes | None
    progress: bytes | None
    result: bytes | None
    priority: int
    cause: Cause
    disposition: Disposition | None
    unique_key: str | None
    concurrency_key: str | None
    concurrency_max: int
    rates: tuple[Rate, ...]
    fair: str | None
    policy: RunPolicy | None
    serial: bool
    lease_seconds: float
    execution_seconds: float | None
    start_by: datetime | None
    fires: int
    last_fire_at: datetime | None
    due_at_first: datetime
    prune_at: datetime | None

    @property
    def state(self) -> State:
        return shown_state(self._stored)

    @property
    def history(self) -> Sequence[EventView]:
        return self.view().history

    def _field(self, name: str) -> Any:
        return self._stored.due_since if name == "due_at" else super()._field(name)

    def view(self) -> RunView:
        from horarium.wire.views import run_view

        return run_view(self._stored)

    def __repr__(self) -> str:
        of = f"{self.job!r}" if self.job else self.queue
        return f"<Run {self.id} of {of}, {self.state}, due {self.due_at:%Y-%m-%d %H:%M:%S}Z, attempt {self.attempt}>"


class BatchStatus(Value):
    """How far a batch is. `total`: its runs; of these `unfinished` have not ended."""

    __slots__ = ()

    id: str
    name: str | None
    state: BatchState
    total: int
    completed: int
    failed: int
    cancelled: int
    unfinished: int
    on: dict[BatchOccasion, tuple[BatchFollow, ...]]
    created_at: datetime
    created_by: str | None
    closed_at: datetime | None
    finished_at: datetime | None

    def _field(self, name: str) -> Any:
        return super()._field(name) if name in self._instants else getattr(self.view(), name)

    def view(self) -> BatchView:
        from horarium.wire.batches import batch_view

        return batch_view(self._stored)

    def __repr__(self) -> str:
        return f"<BatchStatus {self.id} {self.state}, {self.unfinished} of {self.total} unfinished>"


class Page(Generic[V]):
    """One page of a list, and where the next one begins (None: this was the last): give it back as `after`."""

    __slots__ = ("items", "next_after")

    def __init__(self, items: Sequence[V], next_after: str | None = None) -> None:
        self.items = tuple(items)
        self.next_after = next_after

    def to_dict(self) -> dict[str, Any]:
        """As the REST API shows a page; `next_cursor` is `next_after`."""
        return {name: self[name] for name in self.keys()}

    def keys(self) -> tuple[str, ...]:
        """Those of `to_dict()`, so that `dict(page)` is the same."""
        return ("items", "next_cursor")

    def __getitem__(self, name: str) -> Any:
        return self.next_after if name == "next_cursor" else [item.to_dict() for item in {"items": self.items}[name]]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Page):
            return NotImplemented
        return (self.items, self.next_after) == (other.items, other.next_after)

    def __hash__(self) -> int:
        return hash((self.items, self.next_after))

    def __repr__(self) -> str:
        more = "" if self.next_after is None else f", more after {self.next_after!r}"
        return f"<Page of {len(self.items)}{more}>"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return _pydantic_schema(cls)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        items = {"type": "array", "items": {"type": "object"}}
        return {"type": "object", "properties": {"items": items, "next_cursor": {"type": ["string", "null"]}}}


class QueueStats(msgspec.Struct, frozen=True):
    """One queue: runs that are due, that wait for later, that are claimed; since when the oldest due one waits.
    `unserved`: one has been due for a minute or more, and no worker claims it."""

    queue: str
    due: int
    scheduled: int
    running: int
    oldest_due_at: datetime | None
    unserved: bool


class Stats(msgspec.Struct, frozen=True):
    """Counts of jobs, and of unfinished runs by queue: of 1,000 queues, and how many there are beyond."""

    jobs: int
    jobs_enabled: int
    queues: tuple[QueueStats, ...]
    queues_left_out: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return _plain(self)


def stats_of(stats: ports.Stats) -> Stats:
    """The counts of a store, as programs see them."""
    queues = (
        QueueStats(one.queue, one.due, one.scheduled, one.running, moment(one.oldest_due_at), one.unserved)
        for one in stats.queues
    )
    return Stats(stats.jobs, stats.jobs_enabled, tuple(queues), stats.queues_left_out)


def jobs_page(page: ports.Page[model.Job], health: Sequence[model.Health]) -> Page[Job]:
    """A page of the store, as programs see it."""
    return Page([Job(*each) for each in zip(page.items, health, strict=True)], page.next_after)


def runs_page(page: ports.Page[model.Run], clock: Clock) -> Page[Run]:
    """A page of the store, as programs see it."""
    return Page([Run(model.in_wall_time(run, clock)) for run in page.items], page.next_after)


def _plain(view: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(view))
    return plain


def _pydantic_schema(kind: type) -> Any:
    core = import_module("pydantic_core").core_schema
    written = core.plain_serializer_function_ser_schema(lambda value: value.to_dict())
    return core.is_instance_schema(kind, serialization=written)
