"""Faults, each with the cause that a person may take note of: jobs that fail or are late, queues that no worker serves,
lost nodes, channels that take no messages, holds in force, calendars that end soon.

Each look is a bounded question: the jobs whose health says that they fail, the runs that wait, the counts by queue, the
nodes. So it costs the same beside five million runs as beside five.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

import msgspec
from msgspec import Struct

from horarium.access.acting import bound_caller, reading, who_acts, who_reads
from horarium.clock import DAY, MINUTE, SECOND, Instant
from horarium.errors import NotFound
from horarium.model import Health, Job, Node, Run, State
from horarium.model.channels import Untold
from horarium.model.holds import Hold
from horarium.model.records import RecordFilter
from horarium.operations.calendars import PREFIX as CALENDAR
from horarium.operations.deciding.acknowledging import Acknowledged, Acknowledging, Cause
from horarium.operations.writing.context import Context
from horarium.ports import PAGE_MAX, QueueStats, RunFilter, Stats
from horarium.rules.calendars import ENDS_SOON, ends_soon
from horarium.rules.error_lines import error_line, error_sort
from horarium.rules.holds import InForce, end_words, hold_on, in_force, scope_words
from horarium.rules.serving import unserved_words
from horarium.triggers.business_days import day_of

PENDING_STATES = frozenset({State.PENDING})
LATE_AFTER = 30 * SECOND
LOOKED_BACK = DAY
FAILING_MAX = 1_000
"""Failing jobs that are counted; the count of more is given as a lower bound."""
LATE_PAGES_MAX = 5
"""Pages of waiting runs that are searched for late ones."""
LOST_AFTER = 45 * SECOND
"""A node that gave no sign for this long, and did not say that it stops, is lost."""
OF_BOUND = ("failing/", "late/")
"""The causes that a bound caller may take note of: of its own jobs, not of things that it shares with others."""


class _End(Struct):
    ends_on: str | None = None


_decode_end = msgspec.json.Decoder(_End).decode


class Faults(NamedTuple):
    """All that is wrong at one look, and the counts that it was found with. `late`: the oldest late run of each job;
    `more_failing`, `more_late`: there may be more; `gone`: nodes lost for so long that a person should
    know; `ending`: calendars, with the last day that they know."""

    stats: Stats
    nodes: list[Node]
    failing: dict[str, Health]
    more_failing: bool
    late: dict[str, Run]
    more_late: bool
    undelivered: dict[str, Untold]
    gone: list[Node]
    unserved: list[QueueStats]
    held: list[InForce]
    ending: dict[str, str]


class Fault(NamedTuple):
    """One thing that is wrong, and who took note of it."""

    cause: Cause
    text: str
    acknowledged: Acknowledged | None


class Attending:
    """Looks for faults, and keeps what people say about them. Raises the errors of `errors`, nothing else."""

    def __init__(
        self,
        context: Context,
        untold: Callable[[Instant], Awaitable[dict[str, Untold]]],
        stats: Callable[[], Awaitable[Stats]],
        nodes: Callable[[], Awaitable[list[Node]]],
        holds: Callable[[], Awaitable[list[Hold]]],
    ) -> None:
        self._store, self._clock, self._untold = context.store, context.clock, untold
        self._stats, self._nodes, self._holds = stats, nodes, holds
        self.acknowledging = Acknowledging(context)

    async def faults(self, now: Instant) -> Faults:
        """The present ones, as far as the caller sees them."""
        stats, nodes, failing, (late, more), undelivered, (holds, ending) = await asyncio.gather(
            self._stats(),
            self._nodes(),
            self._failing(now),
            self._waiting(now),
            self._untold(now - LOOKED_BACK),
            asyncio.gather(self._holds(), self._ending(now)),
        )
        gone = [node for node in nodes if is_gone(node, now)]
        unserved = [queue for queue in stats.queues if queue.unserved]
        cut = len(failing) >= FAILING_MAX
        late, held = (
            {name: run for name, run in late.items() if hold_on(holds, run, None, now) is None},
            in_force(holds, now),
        )
        return Faults(stats, nodes, failing, cut, late, more, undelivered, gone, unserved, held, ending)

    async def list_all(self) -> tuple[list[Fault], bool]:
        """The faults, worst first, and whether there may be more."""
        now = self._clock.now()
        found, acks = await self.faults(now), await self.acknowledging.known()
        listed = []
        for cause, text in _told(found, now):
            if who_reads() is not None and not cause.key.startswith((*OF_BOUND, "unserved/", "held/")):
                continue
            ack = acks.get(cause.key)
            listed.append(Fault(cause, text, ack if ack is not None and ack.covers(cause, now) else None))
        return listed, found.more_late or found.more_failing

    async def acknowledge(self, key: str, reason: str, until: Instant | None) -> Fault:
        """Take note of a cause, for a day if not said otherwise. Raises InvalidRequest, NotFound."""
        fault = await self._fault(key)
        until, origin = self._clock.now() + DAY if until is None else until, who_acts()
        await self.acknowledging.put(fault.cause, reason, "" if origin is None else origin.principal.name, until)
        return await self._fault(key)

    async def reopen(self, key: str) -> None:
        """Take that back. Raises NotFound."""
        await self.acknowledging.take_back((await self._fault(key)).cause.key)

    async def _fault(self, key: str) -> Fault:
        caller = bound_caller()
        with reading(caller):
            faults, _ = await self.list_all()
        for fault in faults:
            if fault.cause.key == key and (caller is None or key.startswith(OF_BOUND)):
                return fault
        raise NotFound(f"nothing of {key[:200]!r} needs attention now", field="cause")

    async def _failing(self, now: Instant) -> dict[str, Health]:
        """Jobs whose last runs failed, those that fail for longest first."""
        failing = await self._store.failing_jobs(FAILING_MAX)
        jobs = await self._store.get_jobs_by_id(list(failing))
        found = {job.name: failing[job.id] for job in jobs if job is not None and _matters(job, failing[job.id], now)}
        return dict(sorted(found.items(), key=lambda item: (-item[1].failures_in_a_row, item[0])))

    async def _ending(self, now: Instant) -> dict[str, str]:
        """Calendars that know few days more, with the last of these."""
        records = await self._store.list_records(RecordFilter(CALENDAR), None, PAGE_MAX)
        ends = {record.name.removeprefix(CALENDAR): _decode_end(record.body).ends_on for record in records.items}
        return {name: end for name, end in ends.items() if end is not None and ends_soon(end, now)}

    async def _waiting(self, now: Instant) -> tuple[dict[str, Run], bool]:
        """The oldest late run of each job, the latest first; and whether there may be late runs beyond those read."""
        where, after = RunFilter(states=PENDING_STATES, until=max(now - LATE_AFTER, 1)), None
        oldest: dict[str, Run] = {}
        for _ in range(LATE_PAGES_MAX):
            page = await self._store.list_runs(where, after, PAGE_MAX)
            late = (run for run in page.items if run.job is not None and run.due_at <= now - LATE_AFTER)
            oldest.update((run.job or "", run) for run in late)
            after = page.next_after
            if after is None:
                break
        return dict(sorted(oldest.items(), key=lambda item: (item[1].due_at, item[0]))), after is not None


def _matters(job: Job, health: Health, now: Instant) -> bool:
    """Whether its failures may still need attention: those of a job that is paused or over do for a day."""
    last = health.last_run
    return job.deleted_at is None and (job.active or (last is not None and now - last.finished_at < LOOKED_BACK))


def is_lost(node: Node, now: Instant) -> bool:
    """Whether a node vanished without a word."""
    return node.stopped_at is None and not node.is_alive(now, LOST_AFTER)


def is_gone(node: Node, now: Instant) -> bool:
    """Whether it is lost for so long that a person should know."""
    return is_lost(node, now) and now - node.beat_at > MINUTE


# ---- causes ------------------------------------------------------------------------------------------------------


def _told(found: Faults, now: Instant) -> Iterator[tuple[Cause, str]]:
    """Each cause in words. Late runs of a queue without a worker are told with the queue."""
    for name, untold in found.undelivered.items():
        yield of_untold(name, untold), f"channel {name} could not be told: {error_line(untold.error)}"
    for name, health in found.failing.items():
        error = "" if health.last_run is None else error_line(health.last_run.error)
        yield of_failing(name, health), f"job {name} failed, {health.failures_in_a_row:,} in a row: {error}"
    for node in found.gone:
        yield of_lost(node), f"node {node.name} gives no sign of life"
    for held in found.held:
        yield of_held(held), _words_of_hold(held)
    for queue in found.unserved:
        yield of_unserved(queue, now), unserved_words(queue.queue, queue.due)
    alone = {queue.queue for queue in found.unserved}
    for name, run in found.late.items():
        if run.queue not in alone:
            yield of_late(name, run), f"job {name} is late: its run waits in {run.queue}"
    for name, day in found.ending.items():
        yield of_ending(name, day), f"the calendar {name} ends on {day}; beyond that day only its weekend counts"


def _words_of_hold(held: InForce) -> str:
    return f"{scope_words(held.hold.scope)} is on hold until {end_words(held.stretch)}: {held.hold.reason}"


def of_failing(name: str, health: Health) -> Cause:
    """A job that fails, since its first failure in a row, with this error."""
    last = health.last_run
    assert last is not None
    return Cause(f"failing/{name}", health.failing_since or last.finished_at, error_sort(last.error))


def of_late(name: str, run: Run) -> Cause:
    """A job of which this run is late."""
    return Cause(f"late/{name}", run.due_at)


def of_untold(name: str, untold: Untold) -> Cause:
    """A channel that does not take messages, since the first that it did not take."""
    return Cause(f"undelivered/{name}", untold.since, error_sort(untold.error))


def of_lost(node: Node) -> Cause:
    """A node without a sign of life."""
    return Cause(f"lost/{node.name}", node.beat_at)


def of_held(held: InForce) -> Cause:
    """A hold, since it is in force."""
    return Cause(f"held/{held.hold.id}", held.stretch.begins_at)


def of_ending(name: str, day: str) -> Cause:
    """A calendar that ends on this day, since it does so soon."""
    return Cause(f"{CALENDAR}{name}", (day_of(day) - ENDS_SOON) * DAY, day)


def of_unserved(queue: QueueStats, now: Instant) -> Cause:
    """A queue that no worker serves, for as long as its oldest run waits."""
    return Cause(f"unserved/{queue.queue}", now if queue.oldest_due_at is None else queue.oldest_due_at)
