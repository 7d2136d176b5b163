"""Faults, worst first: jobs that fail, runs that are late, queues that no worker serves, nodes that are lost.

Each look is a bounded question: the newest failures of a day, the oldest runs that wait, the counts by queue, the
nodes. So it costs the same beside five million runs as beside five.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from horarium.clock import DAY, MINUTE, SECOND, Instant
from horarium.dashboard.formats import counted, duration, span
from horarium.dashboard.marks import FAILED, LATE, LATE_AFTER, LOST, Mark, first_line, mark_of
from horarium.model import Health, Job, Node, Run, State
from horarium.operations.facade import Operations
from horarium.ports import PAGE_MAX, JobFilter, Page, QueueStats, RunFilter, Stats

PENDING_STATES = frozenset({State.PENDING})
LOOKED_BACK = DAY
JOBS_SHOWN_MAX = 20
LAST_RUNS = 10
LOST_AFTER = 45 * SECOND
"""A node that gave no sign for this long, and did not say that it stops, is lost."""


class Trouble(Struct, frozen=True):
    """One thing that needs attention. `kind`: failing, late, unserved or lost. `badge`: the same beside a
    job's name. `runs`: the last ones, newest first."""

    kind: str
    subject: str
    what: str
    why: str
    mark: Mark
    link: str
    button: str
    badge: str = ""
    job: str | None = None
    runs: tuple[Run, ...] = ()


class Attention(Struct, frozen=True):
    """All that is wrong, and the counts that it was found with."""

    troubles: tuple[Trouble, ...]
    stats: Stats
    nodes: tuple[Node, ...]
    paused: Page[Job]

    def of_kind(self, kind: str) -> list[Trouble]:
        """Those of one kind."""
        return [trouble for trouble in self.troubles if trouble.kind == kind]

    @property
    def paused_words(self) -> str:
        """How many jobs are paused, as far as they are counted."""
        return f"{len(self.paused.items)}{'+' if self.paused.next_after is not None else ''}"

    @property
    def by_job(self) -> dict[str, Trouble]:
        """The worst of each job."""
        found: dict[str, Trouble] = {}
        for trouble in self.troubles:
            if trouble.job is not None:
                found.setdefault(trouble.job, trouble)
        return found


def counts_of(attention: Attention) -> dict[str, tuple[str, bool]]:
    """The marks beside the entries of the navigation: a text, and whether it is about a fault."""
    stats = attention.stats
    running, unserved = sum(queue.running for queue in stats.queues), sum(queue.unserved for queue in stats.queues)
    counts = {"jobs": (f"{stats.jobs:,}", False)}
    if attention.troubles:
        counts["overview"] = (f"{len(attention.troubles)}", True)
    if running:
        counts["runs"] = (f"{running:,} running", False)
    if unserved:
        counts["queues"] = (f"{unserved} unserved", True)
    return counts


class Watching:
    """Looks at most once a second, however many pages ask."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._found: Attention | None = None
        self._found_at = 0.0
        self._turn = asyncio.Lock()

    async def look(self, age_max: float = 1.0) -> Attention:
        """The present faults, or those of `age_max` seconds ago at most. Raises StoreUnavailable."""
        async with self._turn:
            elapsed = self._operations.clock.monotonic()
            if self._found is None or not 0 <= elapsed - self._found_at < age_max:
                self._found = await self._look()
                self._found_at = elapsed
            return self._found

    async def _look(self) -> Attention:
        operations, now = self._operations, self._operations.clock.now()
        paused = JobFilter(enabled=False, finished=False)
        stats, nodes, failing, late, resting = await asyncio.gather(
            operations.stats(),
            operations.nodes(),
            self._failing(now),
            self._late(now),
            operations.store.list_jobs(paused, None, PAGE_MAX),
        )
        troubles = [*failing, *_lost(nodes, now), *_unserved(stats.queues, now), *late]
        return Attention(tuple(troubles), stats, tuple(nodes), resting)

    async def _failing(self, now: Instant) -> list[Trouble]:
        failing = await self._operations.store.failing_jobs(PAGE_MAX)
        jobs = await self._operations.store.get_jobs_by_id(list(failing))
        found = {job.name: failing[job.id] for job in jobs if job is not None and _matters(job, failing[job.id], now)}
        worst = sorted(found, key=lambda name: (-found[name].failures_in_a_row, name))[:JOBS_SHOWN_MAX]
        lasts = await last_runs_of(self._operations, worst, LAST_RUNS)
        return [_failing(name, found[name], lasts[name], now) for name in worst]

    async def _late(self, now: Instant) -> list[Trouble]:
        where = RunFilter(states=PENDING_STATES, until=max(now - LATE_AFTER, 1))
        page = await self._operations.store.list_runs(where, None, PAGE_MAX)
        late = [run for run in page.items if run.job is not None and run.due_at <= now - LATE_AFTER]
        oldest: dict[str, Run] = {}
        for run in late:
            oldest[run.job or ""] = run
        return [_late(name, run, now) for name, run in list(oldest.items())[:JOBS_SHOWN_MAX]]


async def last_runs(operations: Operations, job: str, count: int) -> tuple[Run, ...]:
    """The newest runs of a job whose time has come, newest first."""
    return (await last_runs_of(operations, [job], count))[job]


async def last_runs_of(
    operations: Operations, jobs: Sequence[str], count: int, since: Instant | None = None, until: Instant | None = None
) -> dict[str, tuple[Run, ...]]:
    """Of each of these jobs the newest runs whose time has come, newest first."""
    end = operations.clock.now() + 1 if until is None else until
    found = await operations.store.last_runs(jobs, 0 if since is None else since, end, count) if jobs else {}
    return {job: tuple(runs) for job, runs in found.items()}


def _matters(job: Job, health: Health, now: Instant) -> bool:
    """Whether its failures may still need attention: those of a job that is paused or over do for a day."""
    last = health.last_run
    return job.deleted_at is None and (job.active or (last is not None and now - last.finished_at < LOOKED_BACK))


def _failing(name: str, health: Health, runs: Sequence[Run], now: Instant) -> Trouble:
    streak, last = health.failures_in_a_row, health.last_run
    assert last is not None
    again = f"{streak} in a row" if streak > 1 else "once"
    failed = next((run for run in runs if run.state is State.FAILED), None)
    since = f"Last {span(now - (last.finished_at if failed is None else failed.finished_at or now))} ago"
    return Trouble(
        kind="failing",
        subject=name,
        what=f"failed {again}",
        why=f"{since}: {first_line(last.error if failed is None else failed.error)}",
        mark=FAILED if failed is None else mark_of(failed, now),
        badge=f"Failing, {again}" if streak > 1 else "Failed",
        link=f"/jobs/{name}",
        button="Open job",
        job=name,
        runs=tuple(runs),
    )


def _late(name: str, run: Run, now: Instant) -> Trouble:
    return Trouble(
        kind="late",
        subject=name,
        what=f"is {duration(now - run.due_at)} late",
        why=f"Its run waits in {run.queue} and no worker has taken it",
        mark=LATE,
        badge=f"Late by {duration(now - run.due_at)}",
        link=f"/runs/{run.id}",
        button="Open run",
        job=name,
    )


def _unserved(queues: Sequence[QueueStats], now: Instant) -> list[Trouble]:
    found = []
    for queue in queues:
        if queue.unserved:
            waited = f", the oldest for {span(now - queue.oldest_due_at)}" if queue.oldest_due_at is not None else ""
            found.append(
                Trouble(
                    kind="unserved",
                    subject=f"Queue {queue.queue}",
                    what="is served by no worker",
                    why=f"{counted(queue.due, 'run')} wait there{waited}",
                    mark=LATE,
                    link=f"/runs?queue={queue.queue}&state=pending",
                    button="Open runs",
                )
            )
    return found


def is_lost(node: Node, now: Instant) -> bool:
    """Whether a node vanished without a word."""
    return node.stopped_at is None and now - node.beat_at > LOST_AFTER


def _lost(nodes: Sequence[Node], now: Instant) -> list[Trouble]:
    return [
        Trouble(
            kind="lost",
            subject=f"Node {node.name}",
            what=f"gave its last sign {span(now - node.beat_at)} ago",
            why="What it had claimed goes to others once its leases have run out",
            mark=LOST,
            link="/nodes",
            button="Open nodes",
        )
        for node in nodes
        if is_lost(node, now) and now - node.beat_at > MINUTE
    ]
