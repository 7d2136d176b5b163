"""Fire times that passed while no worker asked for their queue, worked out a second time: by when workers asked and
were answered, and by what they were given. The product's own notes of absences are not looked at.

Only certain things are: where no worker was answered for a quarter of a minute at least, and a run had been due for a
minute, workers may have been away; where that lasted for long, beside a node that looked, they were.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from horarium.clock import SECOND, Instant, to_micros
from horarium.model import Cause, Disposition, Job, Run, State
from horarium.policies import CatchUpPolicy
from horarium.testing.simulate.chances import Chances
from horarium.testing.simulate.trace import Trace

ABSENT, LOOKS = 60 * SECOND, 14 * SECOND
"""Nothing is missed before a run has been due for this long, and no worker was answered between two looks."""
NOTED, BACK = 50 * SECOND, 20 * SECOND
"""Within these a node has noticed, beyond that minute, that workers are away, and that one is back."""
MOMENT = 3 * SECOND
THERE, AWAY = (5, 20, 40), (8, 30, 45, 130, 180)
"""Seconds for which there are workers, and for which there are none."""
FOR_EVER = 1e7
PLANNED = (Cause.SCHEDULE, Cause.CATCH_UP)
ENDED = (State.SKIPPED, State.CANCELLED, State.CANCELLING)


class Gap(Struct):
    """No worker was answered from `since` on; one asked again at `asked_at`, and was answered at `over_at`. `late`:
    the jobs of which a run had been due for more than a minute then, where it is certain that the gap was noted."""

    since: Instant
    asked_at: Instant
    late: frozenset[str]
    over_at: Instant | None = None


class Absences:
    """The books. `steady`: for how many seconds some node has been well by now."""

    def __init__(self, trace: Trace, runs: Mapping[str, Run], versions: Mapping[str, list[Job]]) -> None:
        self.steady: Callable[[], float] = lambda: 0.0
        self.judged = 0
        self._trace = trace
        self._runs = runs
        self._versions = versions
        self._served: dict[str, Instant] = defaultdict(lambda: trace.start)
        self._gaps: dict[str, list[Gap]] = defaultdict(list)
        self._begun: dict[tuple[str, Instant], str] = {}

    def asked(self, queues: Iterable[str]) -> None:
        """A worker asks for runs of these queues."""
        now = self._trace.wall
        for queue in queues:
            gaps, since = self._gaps[queue], self._served[queue]
            is_absence = now - since >= LOOKS and any(run.due_at <= now - ABSENT for run in self._waiting(queue))
            if is_absence and not (gaps and gaps[-1].over_at is None):
                gaps.append(Gap(since, now, self._late(queue, since, now)))

    def answered(self, queues: Iterable[str], runs: Iterable[Run]) -> None:
        """A worker was answered. Where runs waited and none of them came, the node was about to stop."""
        now, came = self._trace.wall, {run.queue for run in runs}
        for queue in queues:
            if queue in came or not any(run.due_at < now - MOMENT for run in self._waiting(queue)):
                self._served[queue] = now
                for gap in self._gaps[queue][-1:]:
                    gap.over_at = gap.over_at or now

    def _waiting(self, queue: str) -> list[Run]:
        return [run for run in self._runs.values() if run.queue == queue and run.state is State.PENDING]

    def _late(self, queue: str, since: Instant, now: Instant) -> frozenset[str]:
        waiting = self._waiting(queue)
        free = [run for run in waiting if not run.serial and run.concurrency_key is None]
        sure = now - ABSENT - NOTED
        if since > sure or self.steady() * SECOND < NOTED or not any(run.due_at < sure for run in free):
            return frozenset()
        late = [run for run in waiting if run.due_at < now - ABSENT - MOMENT and not run.attempt]
        return frozenset(run.job_id for run in late if run.job_id is not None and run.cause in PLANNED)

    # ---- the judge

    def changed(self, old: Run, new: Run) -> None:
        """A run that waited ends as missed: no worker served its queue, and its job does not want it."""
        if self._trace.clock_stepped or new.disposition is not Disposition.MISSED or old.state is State.SKIPPED:
            return
        self.judged += 1
        now, job = self._trace.wall, self._versions[new.job_id or ""][-1]
        if not any(new.due_at <= (gap.over_at or now) + BACK for gap in self._gaps[new.queue]):
            self._trace.fail(f"run {new.id} ends as missed, though workers served {new.queue}")
        policy, window = job.catch_up.policy, job.catch_up.window_seconds
        if job.updated_at > now - MOMENT or window is not None:
            return
        if policy is CatchUpPolicy.ALL:
            self._trace.fail(f"run {new.id} ends as missed, though its job wants all that it missed")
        if policy is CatchUpPolicy.LATEST and not any(
            run.job_id == new.job_id and run.fire_at > new.fire_at and run.state not in ENDED and run.due_at <= now
            for run in self._runs.values()
        ):
            self._trace.fail(f"run {new.id} ends as missed, though its job wants the latest that it missed")

    def begins(self, run: Run) -> None:
        """A worker was given a run. Of those that it had missed it gets what their job wants."""
        gap, job = next(reversed(self._gaps[run.queue]), None), self._versions.get(run.job_id or "", [None])[-1]
        if gap is None or job is None or job.id not in gap.late or job.updated_at >= gap.since:
            return
        if run.cause not in PLANNED or run.attempt != 1 or run.due_at > gap.asked_at - MOMENT:
            return
        self.judged += 1
        window = (
            MOMENT if job.catch_up.policy is CatchUpPolicy.NONE else to_micros(job.catch_up.window_seconds or FOR_EVER)
        )
        if run.fire_at < gap.asked_at - window - MOMENT:
            self._trace.fail(f"run {run.id} begins, though {job.catch_up} and no worker served {run.queue}")
        first = self._begun.setdefault((job.id, gap.asked_at), run.id)
        if job.catch_up.policy is CatchUpPolicy.LATEST and first != run.id:
            self._trace.fail(f"run {run.id} begins beside {first}, though its job wants the latest that it missed")


class Timetable:
    """When there are workers of a queue, by the chance of each: for a while, and then there are none for one."""

    def __init__(self, chances: Chances, trace: Trace) -> None:
        self._chances = chances
        self._trace = trace
        self._turns: dict[str, tuple[bool, Instant]] = {}

    def serves(self, queue: str) -> bool:
        """Whether there are any by now."""
        there, until = self._turns.get(queue, (False, -1))
        while until < self._trace.elapsed:
            there, chance = not there, self._chances.of("away", queue)
            until = max(until, 0) + round(chance.choice(THERE if there else AWAY) * SECOND)
        self._turns[queue] = there, until
        return there
