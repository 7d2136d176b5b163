"""Faults, worst first: undelivered alerts, jobs that fail, lost nodes, queues that no worker serves, late runs.
One cause is one line: the late runs of a queue without workers belong to the line of that queue.

Each look is a bounded question: the jobs whose health says that they fail, the runs that wait, the counts by queue, the
nodes. So it costs the same beside five million runs as beside five. A count that met its bound says "at least".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from horarium.access.acting import who_reads
from horarium.clock import DAY, Instant
from horarium.dashboard import causes
from horarium.dashboard.formats import counted, duration, span
from horarium.dashboard.marks import FAILED, LATE, LOST, Mark, mark_of
from horarium.model import Health, Job, Node, Run, State
from horarium.model.channels import Untold
from horarium.operations.deciding.acknowledging import Acknowledged, Cause
from horarium.operations.facade import Operations
from horarium.operations.looking.attending import (
    of_ending,
    of_failing,
    of_held,
    of_late,
    of_lost,
    of_unserved,
    of_untold,
)
from horarium.ports import PAGE_MAX, JobFilter, Page, QueueStats, Stats
from horarium.rules.error_lines import error_line, error_sort
from horarium.rules.holds import InForce, end_words, scope_words

JOBS_SHOWN_MAX = 20
QUEUES_SHOWN_MAX = 10
LAST_RUNS = 10
ALIKE_NAMED = 3


class Trouble(Struct, frozen=True):
    """One thing that needs attention. `kind`: failing, alike (jobs that fail with one error), late, unserved, lost,
    undelivered, held, ending (a calendar), or more (a line that stands for `stands_for` others). `runs`: the last ones,
    newest first. `causes`: the parts of it that can be acknowledged, one for each job that fails with the same
    error."""

    kind: str
    subject: str
    what: str
    why: str
    mark: Mark
    link: str
    button: str
    runs: tuple[Run, ...] = ()
    stands_for: int = 1
    causes: tuple[Cause, ...] = ()

    @property
    def cause(self) -> Cause | None:
        """What names it where it is acknowledged."""
        return self.causes[0] if self.causes else None


class Badge(Struct, frozen=True):
    """A word about a fault beside the name of a job."""

    mark: Mark
    text: str


class Attention(Struct, frozen=True):
    """All that is wrong, and the counts that it was found with. `failing`, `late`: the badge of each such job by its
    name, worst first; `partial`: there may be more of them. `asked`: how many runs wait for a decision. `known`: what
    is wrong and was acknowledged; `known_jobs`: the jobs of it."""

    troubles: tuple[Trouble, ...]
    stats: Stats
    nodes: tuple[Node, ...]
    paused: Page[Job]
    failing: dict[str, Badge] = {}
    late: dict[str, Badge] = {}
    partial: frozenset[str] = frozenset()
    asked: int = 0
    known: tuple[tuple[Trouble, Acknowledged | None], ...] = ()
    known_jobs: frozenset[str] = frozenset()

    @property
    def count_known(self) -> int:
        """How many things were acknowledged."""
        return sum(trouble.stands_for for trouble, _ in self.known)

    @property
    def count(self) -> int:
        """How many things need attention, those in a line for several included."""
        return sum(trouble.stands_for for trouble in self.troubles)

    @property
    def badges(self) -> dict[str, Badge]:
        """The worst of each job, by its name, worst first."""
        return {**self.failing, **{name: badge for name, badge in self.late.items() if name not in self.failing}}

    def jobs_words(self, kind: str) -> str:
        """How many jobs fail, or are late."""
        jobs = self.failing if kind == "failing" else self.late
        return f"{len(jobs):,}{'+' if kind in self.partial else ''}"

    @property
    def paused_words(self) -> str:
        """How many jobs are paused, as far as they are counted."""
        return f"{len(self.paused.items)}{'+' if self.paused.next_after is not None else ''}"


def counts_of(attention: Attention) -> dict[str, tuple[str, bool]]:
    """The marks beside the entries of the navigation: a text, and whether it is about a fault."""
    stats = attention.stats
    running, unserved = sum(queue.running for queue in stats.queues), sum(queue.unserved for queue in stats.queues)
    counts = {"jobs": (f"{stats.jobs:,}", False)}
    if attention.troubles:
        counts["overview"] = (f"{attention.count:,}{'+' if attention.partial else ''}", True)
    if attention.asked:
        counts["approvals"] = (f"{attention.asked}", False)
    if running:
        counts["runs"] = (f"{running:,} running", False)
    if unserved:
        counts["queues"] = (f"{unserved} unserved", True)
    return counts


class Watching:
    """Looks at most once a second, however many pages ask."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._attending = operations.attending
        self._found: Attention | None = None
        self._found_at = 0.0
        self._turn = asyncio.Lock()

    def forget(self) -> None:
        """Have the next look be a new one."""
        self._found = None

    @property
    def counted(self) -> Stats | None:
        """What the last look counted, of all; None: there was none yet."""
        return None if self._found is None else self._found.stats

    async def look(self, age_max: float = 1.0) -> Attention:
        """The present faults, or those of `age_max` seconds ago at most; those of a bound visitor are looked for each
        time. Raises StoreUnavailable."""
        if who_reads() is not None:
            return await self._look()
        async with self._turn:
            elapsed = self._operations.clock.monotonic()
            if self._found is None or not 0 <= elapsed - self._found_at < age_max:
                self._found = await self._look()
                self._found_at = elapsed
            return self._found

    async def _look(self) -> Attention:
        operations, now = self._operations, self._operations.clock.now()
        paused = JobFilter(enabled=False, finished=False)
        found, resting = await asyncio.gather(
            self._attending.faults(now), operations.store.list_jobs(paused, None, PAGE_MAX)
        )
        stats, nodes, failing, more_failing, late, more_late, undelivered, lost, unserved, held, ending = found
        no_worker = {queue.queue for queue in unserved}
        acks = await self._attending.acknowledging.known()
        parted = partial(causes.parted, acks, now)
        ill = parted(failing.items(), lambda item: of_failing(*item))
        slow = parted(late.items(), lambda item: of_late(*item))
        untold = parted(undelivered.items(), lambda item: of_untold(*item))
        gone = parted(lost, of_lost)
        alone = parted(unserved, lambda queue: of_unserved(queue, now))
        resting_holds, ends = parted(held, of_held), parted(ending.items(), lambda item: of_ending(*item))
        troubles, known = [
            [
                *(_undelivered(name, each, now) for name, each in untold[side][:JOBS_SHOWN_MAX]),
                *await self._worst(dict(ill[side]), acks if side else {}, now, cut=more_failing),
                *_lost(gone[side], now),
                *map(_held, resting_holds[side]),
                *_unserved(alone[side], late, now),
                *_late(dict(slow[side]), no_worker, now),
                *(_ending(*each) for each in ends[side]),
            ]
            for side in (0, 1)
        ]
        cut = {"failing"} if more_failing else set()
        return Attention(
            tuple(troubles),
            stats,
            tuple(nodes),
            resting,
            failing={name: Badge(FAILED, _streak(health)) for name, health in failing.items()},
            late={name: Badge(LATE, f"Late by {duration(now - run.due_at)}") for name, run in late.items()},
            partial=frozenset(cut | ({"late"} if more_late else set())),
            asked=await operations.approving.count(None),
            known=tuple((each, acks.get(each.cause.key) if each.cause is not None else None) for each in known),
            known_jobs=frozenset(name for name, _ in (*ill[1], *slow[1])),
        )

    async def _worst(
        self, failing: dict[str, Health], acks: Mapping[str, Acknowledged], now: Instant, *, cut: bool
    ) -> list[Trouble]:
        """A line for each error: those of most jobs first, then those that lasted longest. `cut`: there may be more."""
        groups = causes.by_error(failing, acks)
        worst, rest = groups[:JOBS_SHOWN_MAX], groups[JOBS_SHOWN_MAX:]
        lasts = await last_runs_of(self._operations, [names[0] for names in worst if len(names) == 1], LAST_RUNS)
        shown = [
            _failing(names[0], failing[names[0]], lasts[names[0]], now)
            if len(names) == 1
            else _failing_alike({name: failing[name] for name in names}, now, cut=cut)
            for names in worst
        ]
        return [*shown, *_and_more(sum(map(len, rest)), "failing", "fail", FAILED, len(rest))]


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


def channel_of(notification: Run) -> str:
    """The channel that a run of the queue `notify` tells."""
    body: Any = msgspec.json.decode(notification.payload) if notification.payload else None
    return str(body.get("channel", "")) if isinstance(body, dict) else ""


def _streak(health: Health) -> str:
    streak = health.failures_in_a_row
    return f"Failing, {streak:,} in a row" if streak > 1 else "Failed"


def _failing(name: str, health: Health, runs: Sequence[Run], now: Instant) -> Trouble:
    streak, last = health.failures_in_a_row, health.last_run
    assert last is not None
    failed = next((run for run in runs if run.state is State.FAILED), None)
    began = "" if health.failing_since is None or streak < 2 else f", the first {span(now - health.failing_since)} ago"
    since = f"Last {span(now - (last.finished_at if failed is None else failed.finished_at or now))} ago{began}"
    return Trouble(
        kind="failing",
        subject=name,
        what=f"failed {streak:,} in a row" if streak > 1 else "failed once",
        why=f"{since}: {error_line(last.error if failed is None else failed.error)}",
        mark=FAILED if failed is None else mark_of(failed, now),
        link=f"/jobs/{name}",
        button="Open job",
        runs=tuple(runs),
        causes=(of_failing(name, health),),
    )


def _failing_alike(failing: dict[str, Health], now: Instant, *, cut: bool) -> Trouble:
    """Jobs that fail with one error, which is their common cause. `cut`: there may be more of them."""
    names = sorted(failing, key=lambda name: (-failing[name].failures_in_a_row, name))
    lasts = [health.last_run for health in failing.values() if health.last_run is not None]
    newest = max(lasts, key=lambda last: last.finished_at)
    since = min(health.failing_since or newest.finished_at for health in failing.values())
    more, lengths = len(names) - ALIKE_NAMED, (("day", DAY), ("week", 7 * DAY), ("month", 30 * DAY))
    named = ", ".join(names[:ALIKE_NAMED]) + (f" and {counted(more, 'other')}" if more > 0 else "")
    length = next((each for each, long in lengths if now - since < long), "month")
    return Trouble(
        kind="alike",
        subject=f"{'At least ' if cut else ''}{counted(len(names), 'job')} fail",
        what=f"with one error: {error_line(newest.error)}",
        why=f"{named}. Last {span(now - newest.finished_at)} ago, the first {span(now - since)} ago",
        mark=FAILED,
        link=f"/failures?span={length}&open={error_sort(newest.error)}",
        button="Open error",
        causes=tuple(of_failing(name, failing[name]) for name in names),
    )


def _late(late: dict[str, Run], unserved: set[str], now: Instant) -> list[Trouble]:
    """Late jobs, but those of queues that no worker serves: these have a line of their own."""
    names = [name for name, run in late.items() if run.queue not in unserved]
    shown = [
        Trouble(
            kind="late",
            subject=name,
            what=f"is {duration(now - late[name].due_at)} late",
            why=f"Its run waits in {late[name].queue} and no worker has taken it",
            mark=LATE,
            link=f"/runs/{late[name].id}",
            button="Open run",
            causes=(of_late(name, late[name]),),
        )
        for name in names[:JOBS_SHOWN_MAX]
    ]
    return [*shown, *_and_more(len(names) - len(shown), "late", "are late", LATE)]


def _and_more(others: int, kind: str, verb: str, mark: Mark, stands_for: int | None = None) -> list[Trouble]:
    if others <= 0:
        return []
    what = verb if others > 1 else {"fail": "fails", "are late": "is late"}[verb]
    return [
        Trouble(
            kind="more",
            subject=f"{counted(others, 'more job')}",
            what=what,
            why="They are in the list of jobs",
            mark=mark,
            link=f"/jobs?show={kind}",
            button="Open jobs",
            stands_for=others if stands_for is None else stands_for,
        )
    ]


def _undelivered(channel: str, untold: Untold, now: Instant) -> Trouble:
    return Trouble(
        kind="undelivered",
        subject=f"Channel {channel}",
        what="could not be told",
        why=f"Last {span(now - untold.at)} ago: {error_line(untold.error)}",
        mark=FAILED,
        link=f"/runs/{untold.run_id}",
        button="Open run",
        causes=(of_untold(channel, untold),),
    )


def _unserved(queues: Sequence[QueueStats], late: dict[str, Run], now: Instant) -> list[Trouble]:
    jobs = Counter(run.queue for run in late.values())
    found = []
    for queue in queues[:QUEUES_SHOWN_MAX]:
        whose = f" of {counted(jobs[queue.queue], 'late job')}" if jobs[queue.queue] else ""
        verb = "waits" if queue.due == 1 else "wait"
        waited = f", the oldest for {span(now - queue.oldest_due_at)}" if queue.oldest_due_at is not None else ""
        found.append(
            Trouble(
                kind="unserved",
                subject=f"Queue {queue.queue}",
                what="is served by no worker",
                why=f"{counted(queue.due, 'run')}{whose} {verb} there{waited}",
                mark=LATE,
                link=f"/runs?queue={quote(queue.queue, safe='')}&state=pending",
                button="Open runs",
                causes=(of_unserved(queue, now),),
            )
        )
    if others := queues[QUEUES_SHOWN_MAX:]:
        found.append(
            Trouble(
                kind="more",
                subject=counted(len(others), "more queue"),
                what="is served by no worker" if len(others) == 1 else "are served by no worker",
                why=f"{counted(sum(queue.due for queue in others), 'run')} wait there",
                mark=LATE,
                link="/queues",
                button="Open queues",
                stands_for=len(others),
            )
        )
    return found


def _held(held: InForce) -> Trouble:
    return Trouble(
        kind="held",
        subject=f"On hold: {scope_words(held.hold.scope)}",
        what=f"nothing of it begins until {end_words(held.stretch)}",
        why=held.hold.reason,
        mark=LATE,
        link="/holds",
        button="Open holds",
        causes=(of_held(held),),
    )


def _ending(name: str, day: str) -> Trouble:
    return Trouble(
        kind="ending",
        subject=f"Calendar {name}",
        what=f"knows its days until {day}",
        why="Beyond that day only its weekend counts",
        mark=LATE,
        link=f"/business-days/{name}",
        button="Open calendar",
        causes=(of_ending(name, day),),
    )


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
            causes=(of_lost(node),),
        )
        for node in nodes
    ]
