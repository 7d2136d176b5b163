"""Faults, worst first: undelivered alerts, jobs that fail, lost nodes, queues that no worker serves, late runs.
One cause is one line: the late runs of a queue without workers belong to the line of that queue.

Each look is a bounded question: the jobs whose health says that they fail, the runs that wait, the counts by queue, the
nodes. So it costs the same beside five million runs as beside five. A count that met its bound says "at least".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from horarium.access.acting import who_reads
from horarium.clock import DAY, Instant
from horarium.dashboard.formats import duration
from horarium.dashboard.marks import FAILED, LATE, Mark
from horarium.dashboard.troubles import (
    JOBS_SHOWN_MAX,
    LAST_RUNS,
    Trouble,
    and_more,
    counts_by_kind,
    ending,
    failing_alike,
    failing_one,
    held,
    late_jobs,
    lost,
    undelivered,
    unserved_queues,
)
from horarium.model import Health, Job, Node, Run, State
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
from horarium.ports import PAGE_MAX, JobFilter, Page, RunFilter, Stats
from horarium.rules.holds import InForce
from horarium.triggers.words import counted

T = TypeVar("T")
USUAL_OF = 20
"""Of how many last runs the usual length is the median."""
USUAL_RUNS, USUAL_LEAST = 600, 3
"""How many runs are read for that of many jobs together, and of each of them at least."""


class Badge(Struct, frozen=True):
    """A word about a fault beside the name of a job."""

    mark: Mark
    text: str


class Attention(Struct, frozen=True):
    """All that is wrong, and the counts that it was found with. `failing`, `late`: the badge of each such job by its
    name, worst first; `partial`: there may be more of them. `asked`: how many runs wait for a decision. `known`:
    acknowledged causes; `known_jobs`: their jobs. `held`: holds in force, in the banner of each page."""

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
    held: tuple[InForce, ...] = ()

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
    kinds = counts_by_kind(attention.troubles)
    for place, kind, word, bad in (
        ("failures", "errors", "error", False),
        ("nodes", "lost", "lost", True),
        ("channels", "undelivered", "fails", True),
    ):
        if number := kinds[kind]:
            counts[place] = (counted(number, word, {"error": "errors", "fails": "fail"}.get(word, word)), bad)
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
        stats, nodes, failing, more_failing, late, more_late, unheard, vanished, unserved, holds, ends_soon = found
        no_worker = {queue.queue for queue in unserved}
        acks = await self._attending.acknowledging.known()
        parted = partial(parted_by, acks, now)
        ill = parted(failing.items(), lambda item: of_failing(*item))
        slow = parted(late.items(), lambda item: of_late(*item))
        untold = parted(unheard.items(), lambda item: of_untold(*item))
        others = await self._channels_but(unheard) if unheard else []
        gone = parted(vanished, of_lost)
        alone = parted(unserved, lambda queue: of_unserved(queue, now))
        above = [each for each in holds if stands_above(each)]
        down = parted((each for each in holds if each not in above), of_held)
        ends = parted(ends_soon.items(), lambda item: of_ending(*item))
        troubles, known = [
            [
                *(undelivered(name, each, now, others) for name, each in untold[side][:JOBS_SHOWN_MAX]),
                *await self._worst(dict(ill[side]), acks if side else {}, now, cut=more_failing),
                *map(held, down[side]),
                *lost(gone[side], now),
                *unserved_queues(alone[side], late, now),
                *late_jobs(dict(slow[side]), no_worker, now),
                *(ending(*each) for each in ends[side]),
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
            held=tuple(above),
        )

    async def _channels_but(self, unheard: Mapping[str, object]) -> list[str]:
        """The other channels, by name; a bound visitor sees none."""
        if who_reads() is not None:
            return []
        page = await self._operations.channels.page(None, PAGE_MAX)
        return [name for name, _ in page.items if name not in unheard]

    async def _worst(
        self, failing: dict[str, Health], acks: Mapping[str, Acknowledged], now: Instant, *, cut: bool
    ) -> list[Trouble]:
        """A line for each error: those of most jobs first, then those that lasted longest. `cut`: there may be more."""
        groups = by_error(failing, acks)
        worst, rest = groups[:JOBS_SHOWN_MAX], groups[JOBS_SHOWN_MAX:]
        lasts = await last_runs_of(self._operations, [names[0] for names in worst if len(names) == 1], LAST_RUNS)
        shown = [
            failing_one(names[0], failing[names[0]], lasts[names[0]], now)
            if len(names) == 1
            else failing_alike({name: failing[name] for name in names}, now, cut=cut)
            for names in worst
        ]
        return [*shown, *and_more(sum(map(len, rest)), "failing", "fail", FAILED, len(rest))]


async def some_runs(
    operations: Operations, where: RunFilter, most: int, is_enough: Callable[[Sequence[Run]], bool] = lambda page: False
) -> tuple[list[Run], bool]:
    """The newest of these runs, pages of them until there are as many, and whether there are more. `is_enough`: of a
    page, that no other is read after it."""
    found, after = list[Run](), None
    while len(found) < most:
        page = await operations.store.list_runs(where, after, PAGE_MAX)
        found += page.items
        if (after := page.next_after) is None or is_enough(page.items):
            break
    return found, after is not None


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


async def usual_of(operations: Operations, jobs: Sequence[str], now: Instant) -> dict[str, Instant]:
    """The median of how long the last completed runs of each of these jobs took; of those that have any."""
    each = min(USUAL_OF, max(USUAL_RUNS // max(len(jobs), 1), USUAL_LEAST))
    found = await last_runs_of(operations, jobs, each, max(now - 30 * DAY, 0), now + 1)
    return {name: length for name, runs in found.items() if (length := usual_took(runs)) is not None}


def usual_took(runs: Sequence[Run]) -> Instant | None:
    """The median of how long those of these runs took that completed; None: none has."""
    took = [run.took for run in runs if run.state is State.COMPLETED and run.took is not None]
    return int(median(took)) if took else None


def stands_above(each: InForce) -> bool:
    """Whether a hold is told above each page, and so in no line of the verdict. That of a circuit breaker is a cause,
    and a bound visitor sees above a page what everything waits for, nothing else."""
    return each.hold.probing is None and (each.hold.scope.all or who_reads() is None)


def channel_of(notification: Run) -> str:
    """The channel that a run of the queue `notify` tells."""
    body: Any = msgspec.json.decode(notification.payload) if notification.payload else None
    return str(body.get("channel", "")) if isinstance(body, dict) else ""


def _streak(health: Health) -> str:
    streak = health.failures_in_a_row
    return f"Failing, {streak:,} in a row" if streak > 1 else "Failed"


def parted_by(
    acks: Mapping[str, Acknowledged], now: Instant, items: Iterable[T], cause_of: Callable[[T], Cause]
) -> tuple[list[T], list[T]]:
    """Those that are open, and those that are acknowledged."""
    both: tuple[list[T], list[T]] = ([], [])
    for item in items:
        cause = cause_of(item)
        ack = acks.get(cause.key)
        both[ack is not None and ack.covers(cause, now)].append(item)
    return both


def by_error(ill: Mapping[str, Health], acks: Mapping[str, Acknowledged]) -> list[list[str]]:
    """The jobs by the error that they fail with, and by the words of who took note; those of most jobs first, else as
    they were."""
    groups: dict[object, list[str]] = {}
    for name, health in ill.items():
        cause, last = of_failing(name, health), health.last_run
        ack, alone = acks.get(cause.key), last is None or not last.error
        groups.setdefault(name if alone else (cause.sort, ack and (ack.by, ack.reason)), []).append(name)
    return sorted(groups.values(), key=lambda names: -len(names))
