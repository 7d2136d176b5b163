"""Every interface between the core and the outside, on one page: duties, order, errors, atomicity.

A **Store** reads, claims atomically, and writes if unchanged. It never reads a clock (the wall time `now` and the
`steady` instant of leases are passed in, see `clock`), never publishes an event, and knows no policy: it compares
columns and adds durations that are in the row. It returns values equal to those it was given. Batches are the unit: one
call is one transaction and (where the store is remote) one round trip or a small fixed number of them, however many
rows it moves. The items of a batch take effect as if one by one in this order. Names and ids are ordered by code point.

Errors: `StoreUnavailable` for anything that may pass (down, locked, full, timed out); the caller backs off and calls
again, so every write must be safe to repeat. Nothing else is raised but broken invariants. Losing a race is no error:
it is a False or a None in the answer.

A store instance serves one namespace; several may share one database. It is opened with `open` and may then be used
from many tasks of one event loop at once. An awaiting caller that is cancelled does not undo the write: a write that
was handed over is carried out or fails as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, Literal, NewType, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from horarium.clock import Instant
from horarium.errors import BusUnavailable
from horarium.model import Health, Job, Level, Node, Outcome, Plan, Run, RunChange, State, Whole
from horarium.model import deadline_of as deadline_of
from horarium.model import lease_end as lease_end
from horarium.model import leased as leased
from horarium.model.records import Record, RecordChange, RecordFilter

T = TypeVar("T")
Placeholders = Literal["$1", "%s"]
"""How a driver marks where a value goes: asyncpg and psycopg's raw cursors as $1, psycopg as %s."""
BATCH_MAX, PAGE_MAX = 1_000, 200
QUEUES_MAX = 1_000
"""Of how many queues a store tells the counts."""


class JobFilter(Struct, frozen=True):
    """Which jobs to list. `labels`: every pair must match. `enabled`: those that go on by themselves (`Job.active`), or
    those that do not, because they are paused or finished. Deleted jobs are never listed."""

    labels: Mapping[str, str] = {}
    enabled: bool | None = None
    name_prefix: str | None = None
    finished: bool | None = None


class RunFilter(Struct, frozen=True):
    """Which runs to list. `since` (included) and `until` (excluded) bound `fire_at`; a store may take them for bounds
    of the id too, which begins with the millisecond of the fire time (`model.uuid7`)."""

    job: str | None = None
    states: frozenset[State] = frozenset()
    queue: str | None = None
    since: Instant | None = None
    until: Instant | None = None


Along = Mapping[str, Sequence[Record]]
"""Records to append with the item inserted under an id, or not at all."""
NOTHING_ALONG: Along = MappingProxyType({})


class Page(Struct, Generic[T], frozen=True):
    """One page of a list, and where the next one begins (None: this was the last). A page that is followed by another
    may be short, or empty: where no index fits the question exactly, a store looks at a bounded number."""

    items: tuple[T, ...]
    next_after: str | None = None


class Claimed(Struct, frozen=True):
    """The result of a claim: the runs in claim order, now `running` under a new token; the jobs that they belong to, by
    id; and when the next run of these queues falls due (None: nothing is waiting). `next_due_at` is some instant up to
    the claim's `until` if a run that could be taken at once was left by `limit` (a store that can't tell may say so
    whenever the limit was reached), else the earliest due_at beyond `until`. Due runs that are held back are not
    counted. `turns`: from when to when (steady) runs under rate limits may begin, by id; stores leave that out."""

    runs: tuple[Run, ...] = ()
    jobs: Mapping[str, Job] = {}
    next_due_at: Instant | None = None
    turns: Mapping[str, tuple[Instant, Instant]] = {}


class Beat(Struct, frozen=True):
    """A sign of life for one run. `progress`: JSON text, kept if not None."""

    run_id: str
    token: int
    progress: bytes | None = None


class Pulse(Struct, frozen=True):
    """The answer to a beat: until when the lease is now held, and whether a cancel was asked."""

    expires_at: Instant
    cancel_requested: bool


class QueueStats(Struct, frozen=True):
    """One queue: runs that are due, that wait for later, that are claimed; when the oldest due one was due.
    `unserved`: no worker serves it; `hold`: it is held. A store leaves both False, `Operations.stats` sets them."""

    queue: str
    due: int
    scheduled: int
    running: int
    oldest_due_at: Instant | None
    unserved: bool = False
    hold: bool = False


class Stats(Struct, frozen=True):
    """Counts for /stats and /metrics. Finished runs are not counted: their number may be large. `jobs_enabled`: those
    that are neither paused nor finished. `queues_left_out`: how many queues there are beyond those told."""

    jobs: int
    jobs_enabled: int
    queues: tuple[QueueStats, ...]
    queues_left_out: int = 0


class Store(Protocol):
    """Durable jobs, runs and records. See the module's text for what holds for every method.

    A write may bring records along: with an inserted job or run (`along`), a plan, a change of a run or of a record.
    They are written in the same transaction, and only if that is; one whose name is taken is left out."""

    async def open(self) -> None:
        """Connect, and bring the schema up to date (one node does, others wait). Refuses a schema that is newer."""

    async def close(self) -> None:
        """Finish the calls handed over, then disconnect. May be called twice."""

    async def check(self) -> None:
        """Prove that a write would succeed now. Raises StoreUnavailable with the reason."""

    # -- jobs

    async def add_jobs(self, jobs: Sequence[Job], along: Along = NOTHING_ALONG) -> list[bool]:
        """Insert each job as it is, version included, unless its id exists or its name is taken by a job that is not
        deleted. One that is deleted itself takes no name, and needs none to be free. True: inserted."""

    async def get_jobs(self, names: Sequence[str]) -> list[Job | None]:
        """The jobs of these names that are not deleted, in the order asked."""

    async def get_jobs_by_id(self, ids: Sequence[str]) -> list[Job | None]:
        """The jobs of these ids, deleted ones too while they are kept."""

    async def list_jobs(self, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
        """Jobs by name, ascending, beginning after the name `after`."""

    async def job_health(self, job_ids: Sequence[str]) -> dict[str, Health]:
        """How the runs of these jobs have ended, as `settle_runs` and `commit_plans` counted it. Every id is a key."""

    async def failing_jobs(self, limit: int) -> dict[str, Health]:
        """Jobs with `failures_in_a_row`, by id, at most `limit`, any of them. Deleted ones may be among them."""

    async def add_health(self, health: Mapping[str, Health]) -> None:
        """Insert the health of jobs, by id, except where some of it is stored. (For a copy of a store.)"""

    async def due_jobs(
        self, until: Instant, limit: int, after: Instant | None = None
    ) -> tuple[list[Job], Instant | None]:
        """Jobs that are not deleted and whose `next_fire_at` <= `until` (and > `after`, if given), earliest first, then
        by id; and the earliest `next_fire_at` beyond those returned, due or not. Those up to `after` cost nothing."""

    async def jobs_ahead(self, until: Instant, after: str | None, limit: int) -> Page[Job]:
        """Jobs that are not deleted and whose `planned_until` > `until`, each once; `next_after` is the store's own. At
        no cost for the jobs that are not. (Only a clock that was wrong leaves any far ahead.)"""

    async def jobs_trimmed(self, after: str | None, limit: int) -> Page[Job]:
        """Jobs that are not deleted and whose `retention.runs_max` is set, by name, beginning after the name `after`.
        At no cost for the jobs that are not."""

    async def commit_plans(self, plans: Sequence[Plan], steady: Instant) -> list[bool]:
        """Carry out each plan whose job still has the version that was read (`plan.job.version`; it is stored as that
        plus `plan.versions`). Atomic for each plan, and a plan that loses leaves no trace. In this order: changes (one
        whose run has moved on is left out), withdrawals (deleted if still pending under the token that was read), runs
        (one that `add_runs` would refuse is left out, and so is one among the withdrawals that was not there to be
        withdrawn), each with its records (`along`), records. A plan names each withdrawal once, and changes neither the
        job's id nor its name. With `deleted_at` set the name is free again, for good. True: carried out."""

    async def write_whole(self, whole: Whole, steady: Instant) -> bool:
        """What `commit_plans`, `add_jobs`, `put_records` and `add_runs` do, in this order and one transaction. False:
        some of it would be refused, and nothing was written."""

    # -- runs

    async def add_runs(self, runs: Sequence[Run], along: Along = NOTHING_ALONG) -> list[bool]:
        """Insert runs. False: its id, its unique_key, or its (job_id, fire_at) exists already, finished runs included
        (then nothing of it is written). Raises Conflict, and nothing was written, where a unique key is held by a
        transaction of a caller's own that does not end within two seconds."""

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        """Runs by id, in the order asked."""

    async def get_run_by_key(self, unique_key: str) -> Run | None:
        """The run that holds this unique key."""

    async def unfinished_runs(self, job_ids: Sequence[str]) -> dict[str, list[Run]]:
        """For each job its runs that are not finished, by fire_at then id. Every asked id is a key of the answer."""

    async def list_runs(self, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        """Runs by id, descending (newest fire time first), beginning after (below) `after`, which need be no run's."""

    async def last_runs(self, jobs: Sequence[str], since: Instant, until: Instant, limit: int) -> dict[str, list[Run]]:
        """Of each job of these names its newest runs with a fire time in [since, until), to the millisecond; at most
        `limit` of each, by id, descending. Which of several within one millisecond come last is the store's own. Every
        name is a key of the answer."""

    async def claim_runs(
        self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
    ) -> Claimed:
        """Take pending runs of these queues with due_at <= `until` (`now`, or up to an execution window later), the
        highest priority first, then the earliest due, then the lowest id. A taken run is `running`, its token and
        attempt one larger, its worker `worker`, started_at = max(now, due_at). Its deadline and its lease_expires_at
        are as `deadline_of` and `lease_end` say of that begin on the steady scale.

        Held back: a run with start_by <= now; one with a `concurrency_key` under which `concurrency_max` (its own)
        runs are claimed already; a `serial` run while an unfinished run of the same job has an earlier (fire_at, id)
        or is claimed. A run that is held back takes no place in the limit. No two claimers ever get the same run, nor
        together more than `concurrency_max`."""

    async def first_due(self, levels: Sequence[Level]) -> list[Instant | None]:
        """When the first pending run of each level is due, in the order asked; None: there is none. Gated runs that may
        be taken may be counted among the others."""

    async def settle_runs(self, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
        """Write each changed run if the stored one is still as the change says (a run without a lease is neither held
        nor expired), and with it its follow-ups (one that `add_runs` would refuse is left out) and records. Atomic for
        each change. False: it is not, or it is gone; then nothing of it is written.
        What ends runs of jobs is counted with it, once for each job and batch, without raising the version of a job:
        the stored health becomes what `model.health.merged` makes of it and of `health_after` of what was written.
        Of the run, as `leased` makes it, everything that may change is written: state, due_at, attempt, worker,
        lease_expires_at, deadline, started_at, finished_at, progress, error, result, disposition, prune_at, history,
        start_by, token. Changes with `replaces` come in calls of their own, and bring only records along."""

    async def heartbeat_runs(self, beats: Sequence[Beat], steady: Instant) -> list[Pulse | None]:
        """Extend the lease of each run that is claimed under that token, also one that has ended: no other claim was
        made. A running run's lease then ends at `lease_end(run, steady)`; a cancelling one's stays as it is. None: the
        lease is lost, or that end is not after `steady`, since its time limit or the grace of its cancel is over."""

    async def overdue_runs(self, now: Instant, limit: int, steady: Instant) -> tuple[list[Run], Instant | None]:
        """Claimed runs whose lease expired (lease_expires_at <= steady) and pending ones with start_by <= now, together
        by that instant, then by id; and the earliest such instant that lies ahead. Ends of leases are counted as wall
        time for it: as far from `now` as they are from `steady`."""

    async def prune_runs(self, now: Instant, limit: int) -> int:
        """Delete finished runs with prune_at <= now, the earliest first, then the rows of deleted jobs that no run
        belongs to any longer; at most `limit` of each. The number of runs deleted."""

    async def trim_runs(self, job_id: str, keep: int, limit: int) -> int:
        """Delete a job's finished runs beyond the newest `keep` (by id), the oldest first, at most `limit`. Count."""

    # -- records

    async def get_records(self, names: Sequence[str]) -> list[Record | None]:
        """Records by name, in the order asked."""

    async def list_records(self, where: RecordFilter, after: str | None, limit: int) -> Page[Record]:
        """Records by name, in the filter's direction, beginning beyond the name `after`."""

    async def put_records(self, changes: Sequence[RecordChange]) -> list[bool]:
        """Write or remove each record whose stored version is the one expected. Atomic for each change. False: it is
        not, and nothing of the change is written."""

    async def prune_records(self, prefix: str, until: str, limit: int) -> int:
        """Delete records whose name begins with `prefix` and goes on below `until`, the lowest first. How many."""

    # -- the rest

    async def beat_node(self, node: Node) -> None:
        """Write a node's sign of life, by name."""

    async def list_nodes(self, since: Instant) -> list[Node]:
        """Nodes with beat_at >= `since`, by name; older ones may be deleted."""

    async def stats(self, now: Instant) -> Stats:
        """Counts by queue, by name, of queues with unfinished runs: if there are more than `QUEUES_MAX`, of those in
        which a due run has waited longest. Cost: at most proportional to these runs. Deleted jobs are not counted."""


@runtime_checkable
class TransactionalStore(Protocol):
    """What a store can do in addition if its database is one in which callers have transactions of their own. A store
    has either all of this or none of it."""

    async def add_runs_in(self, connection: Any, runs: Sequence[Run], along: Along = NOTHING_ALONG) -> list[bool]:
        """As `Store.add_runs`, within the transaction that the caller holds on a connection to the same database: the
        runs and their records exist once it commits. Raises InvalidRequest for a connection that can't be used."""

    def add_runs_sql(
        self, runs: Sequence[Run], placeholders: Placeholders = "$1", along: Along = NOTHING_ALONG
    ) -> tuple[str, tuple[Any, ...]]:
        """One statement that adds these runs, and its values, for any driver. Needs no open store. Raises
        InvalidRequest where the database takes more than one statement."""


Topic = NewType("Topic", str)
"""What a wake-up is about: one of those below."""
JOBS, CANCEL, APPLY, HOLDS, ENDED = (Topic(name) for name in ("jobs", "cancel", "apply", "holds", "ended"))
"""There is something to plan; a cancel was asked; a change is still to be applied; a hold was changed; runs ended."""
WRITTEN = Topic("written")
"""It was seen that something was written to the store, by any process: said within a process only, never published."""
REPEATED = "!"  # how topics end that are published again while they hold, or that another one stands for
ENDED_RUN = "ended:"  # followed by a run's id and `REPEATED`: that run is over; `ENDED` stands for any of them


def queue_topic(queue: str) -> Topic:
    """There is something to claim in this queue."""
    return Topic(f"queue:{queue}")


class Signal(Protocol):
    """Wake-ups between services and nodes. They only cut latency: everything stays correct with all of them dropped.
    Topics: those above, and of `operations.runs.waiting`. After words were lost all wake; but no `REPEATED` topic."""

    def publish(self, topic: Topic) -> None:
        """Wake what listens. Never blocks, never raises."""

    def subscribe(self, topic: Topic, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` on the event loop at each publication; returns how to stop."""

    def writes(self) -> int | None:
        """A number that is another one after every write to the store, by any process: for those of other processes, a
        moment later. None: that can't be told."""


class Assignment(Struct, frozen=True, gc=False):
    """What a delivery needs to perform one attempt: the claimed run (token, attempt, fire_at), and its job if any."""

    run: Run
    job: Job | None


class Control(Protocol):
    """What a delivery may ask and tell while it performs an attempt."""

    @property
    def cancelled(self) -> bool:
        """Whether a cancel was asked, or the lease was lost."""

    def when_cancelled(self, call: Callable[[], None]) -> None:
        """Call this on the event loop as soon as `cancelled` is true: now, if it is; never after the attempt."""

    async def heartbeat(self, progress: bytes | None = None) -> None:
        """Keep `progress` (JSON text) with the run and renew the lease. Raises LeaseLost."""

    def done(self) -> None:
        """Called by a delivery whose outcome is known, before it returns: nothing ends the attempt early any more."""

    def goes_on(self, over: asyncio.Future[Any]) -> None:
        """Called by a delivery that was cancelled and can't stop (a thread): the attempt is over, but its work keeps
        its place until `over` is done."""


class RunLogs(Protocol):
    """Takes lines of runs while they are performed."""

    def add(self, run: Run, stream: str, text: str) -> None:
        """Keep these lines with the run. May be called in any thread; never waits, never fails."""

    async def written(self, run: Run) -> None:
        """Return once added lines are stored, or can't be within a moment."""


class Delivery(Protocol):
    """Performs attempts of one kind. An adapter only translates: no policy, no retry of its own, no event."""

    async def deliver(self, assignment: Assignment, control: Control) -> Outcome | None:
        """Perform one attempt. Every failure is an outcome, not an exception (an exception is a bug, and is taken as
        a retryable failure). None: the attempt goes on elsewhere and will be settled by the holder of the token.
        Being cancelled (asyncio) means that the time limit passed or the node gives up: stop, and raise it on."""

    async def close(self) -> None:
        """Close connections."""


class Report(Struct, frozen=True):
    """What a worker sent back, unread. `kind`: `status` or `heartbeat`. `job`: the name of the job on whose queue it
    came. `receipt`: what its bus needs to acknowledge it; nothing else reads it."""

    kind: str
    job: str
    body: bytes
    receipt: Any = None


class Unconfirmed(BusUnavailable):
    """No confirmation came of a message: it may have been taken. Plain BusUnavailable says that it was not."""


class Bus(Protocol):
    """A message broker, seen from the scheduler: actions go out to workers, reports come back. Each job has a queue of
    actions, one of statuses and one of heartbeats.

    What every bus owes:

    * *Confirmed.* `publish` returns only when the broker has stored the message on the job's queue, durably.
    * *At least once.* A report stays with the broker until `ack` or `reject`, even if something breaks in between;
      so any of them may come again, in any order. The reader must be idempotent.
    * *By itself.* The connection is kept by the bus: not there at the start, lost, or silent, it is made again after a
      short pause, queues that are gone are made again, and listening goes on. The caller does nothing about it.
    * *Bounded.* At most `RECEIVED_MAX` reports are held here at a time; the rest waits at the broker.
    * *Shared.* Several nodes that listen to one job share its reports: each goes to one of them.
    """

    @property
    def problem(self) -> str | None:
        """Why nothing goes through at the moment; None: all is well."""

    def open(self, wake: Callable[[], None]) -> None:
        """Begin to connect, and return at once. `wake` is called on the event loop when there are reports to take."""

    async def publish(self, job: str, body: bytes, expires_seconds: float) -> None:
        """Put an action on the job's queue, making its queues where there are none, and listen to the job from now on.
        The broker may drop the message if no worker has taken it after `expires_seconds`. Waits at most a few seconds
        for a lost connection. Raises BusUnavailable if the message was not taken, Unconfirmed if that is unknown. Safe
        to call many times at once."""

    def listen(self, jobs: Iterable[str]) -> None:
        """Receive the reports of these jobs at least, and of those published to. Returns at once."""

    def take(self, limit: int) -> list[Report]:
        """Reports that have come in and were not taken yet, at most `limit`; does not wait."""

    async def ack(self, reports: Sequence[Report]) -> None:
        """These are dealt with: never again. Raises nothing; where the connection was lost since, they come again."""

    async def nack(self, reports: Sequence[Report]) -> None:
        """Not now: they come again, here or elsewhere. Raises nothing."""

    async def reject(self, reports: Sequence[Report]) -> None:
        """These can never be dealt with: never again, or to where the broker keeps dead messages. Raises nothing."""

    async def drain(self) -> None:
        """Receive nothing more, and give back messages that were not taken. Taken ones can still be acknowledged."""

    async def close(self) -> None:
        """Disconnect. May be called twice, and `open` after it."""


RECEIVED_MAX = 4_000
"""Reports that a bus holds unacknowledged in this process, at most."""
