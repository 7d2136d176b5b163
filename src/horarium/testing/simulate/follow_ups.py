"""What ought to follow from what happened to runs, worked out a second time: each follow-up once, and no other.

The books tell of every change of a run as it is written, and of every follow-up as it is added. The follow-ups of a
change are derived here from observed writes, in other words than the rule's, without shared code. Where it depends on
how earlier runs ended, and one of these changed within the time that a write may take, both answers are right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from horarium.clock import SECOND, Instant
from horarium.model import CLAIMED, UNFINISHED, Disposition, Follow, Job, Occasion, Run, State, fraction
from horarium.rules.overridden import run_moved_to
from horarium.testing.simulate.trace import Trace

ON = {
    "job-0": {
        "completed": [{"trigger": "job-1"}, {"notify": "ops"}],
        "failed": [{"notify": "ops"}, {"trigger": "job-2"}],
        "cancelled": [{"notify": "ops"}],
        "missed": [{"notify": "ops"}, {"trigger": "job-2", "payload": {"why": "missed"}}],
        "recovered": [{"notify": "ops"}, {"notify": "chat"}],
    },
    "job-1": {
        "completed": [{"trigger": "job-2", "payload": "result"}],
        "attempt_failed": [{"notify": "ops"}],
        "failed": [{"notify": "chat"}],
        "not_started": [{"notify": "ops"}],
        "late": [{"notify": "ops", "seconds": 3}],
        "overdue": [{"notify": "chat", "seconds": 5}, {"trigger": "job-2", "seconds": 4}],
    },
    "job-2": {"failed": [{"notify": "ops", "after": 2}], "completed": [{"notify": "chat", "after": 3}]},
    "job-3": {"cancelled": [{"trigger": "job-2"}], "attempt_failed": [{"trigger": "job-4"}]},
    "job-4": {"recovered": [{"trigger": "job-2"}], "cancelled": [{"notify": "chat", "after": 2}]},
}
"""What follows from the runs of each job. No job follows from itself, so every chain has an end."""
CHANNELS = ("chat", "ops")
QUEUES = ("notify", "follow")
CHAIN, RETRY, OF_BATCH = "follow/", "retry/", "batch/"
TIMED = (Occasion.LATE, Occasion.OVERDUE)
TOLD_FIRST = (Occasion.RECOVERED, Occasion.COMPLETED, Occasion.NOT_STARTED, Occasion.FAILED, Occasion.ATTEMPT_FAILED)
"""A channel hears of one end once, as the first of these."""
WRITING_SECONDS = 4
"""How long before its write a change may have been decided."""
RAN = (State.COMPLETED, State.FAILED)


class _Ended(NamedTuple):
    """A run that ended, and the elapsed time of the last change of that."""

    run: Run
    at: int
    is_there: bool


class FollowUps:
    """Owed follow-ups, and those that were made. `jobs`: every version of a job, by its id."""

    def __init__(self, trace: Trace, versions: Callable[[str], list[Job]]) -> None:
        self._trace = trace
        self._versions = versions
        self._owed: set[str] = set()
        self._allowed: set[str] = set()
        self._made: dict[str, int] = {}
        self._ended: dict[str, dict[str, _Ended]] = {}
        self._begun: dict[str, Instant] = {}
        self._at_broker: set[str] = set()
        self._runs: dict[str, Run] = {}

    # ---- what happens

    def changed(self, old: Run | None, new: Run, job: Job | None) -> None:
        """A run of this job was written."""
        if new.job_id is None or job is None:
            return
        self._runs[new.id] = new
        if new.queue.startswith("bus/"):
            self._at_broker.add(new.id)
        if new.state is State.RUNNING and new.started_at is not None and not new.queue.startswith("bus/"):
            self._begun.setdefault(new.id, new.started_at)
        elif new.state is State.PENDING and not any(event.state is State.RUNNING for event in new.history):
            self._begun.pop(new.id, None)  # a claim that was given back, since it had to wait, began nothing
        happened = _happened(old, new)
        if happened:
            self._follow(new, job, happened)
        if new.state not in UNFINISHED and (old is None or old.state in UNFINISHED):
            self._ended.setdefault(job.id, {})[new.id] = _Ended(new, self._trace.elapsed, True)

    def forgotten(self, run: Run) -> None:
        """A run was pruned, or withdrawn: then it was never made."""
        key = run.unique_key or ""
        if run.state is State.PENDING and key in self._made:
            self._made[key] -= 1
        elif key.startswith(CHAIN):
            self._made[key] = 0  # asked for again, it is made again: its key is as old as the run
        ended = self._ended.get(run.job_id or "", {})
        if run.id in ended:
            ended[run.id] = _Ended(run, self._trace.elapsed, False)

    def added(self, run: Run, job: Job | None) -> None:
        """A run was added, perhaps one that follows."""
        self.changed(None, run, job)
        key = run.unique_key
        if key is None or key.startswith((RETRY, OF_BATCH)) or not (run.queue in QUEUES or key.startswith(CHAIN)):
            return
        self._made[key] = self._made.get(key, 0) + 1
        if key.startswith(CHAIN) or self._is_behind_now(key):
            self._allowed.add(key)

    def check(self, exact: bool) -> None:
        """Compare the two. `exact` is false where the clock was stepped: then one may be made that nothing owes."""
        for key in sorted(self._owed - self._made.keys()):
            self._trace.fail(f"follow-up {key} is owed and was never made")
        for key, times in sorted(self._made.items() if exact else ()):
            if times > 1 or key not in self._owed | self._allowed:
                self._trace.fail(f"follow-up {key} was made {times} times, and is owed {int(key in self._owed)} times")

    # ---- what it owes

    def _follow(self, new: Run, job: Job, happened: dict[Occasion, str]) -> None:
        heard: set[str] = set()
        perhaps: set[str] = set()
        for occasion in sorted(happened, key=lambda each: TOLD_FIRST.index(each) if each in TOLD_FIRST else 9):
            for follow in job.on.get(occasion, ()):
                certain, keys = self._wanted(new, occasion, happened[occasion], follow)
                channel = follow.notify
                if not keys or (channel is not None and channel in heard):
                    continue
                if certain and channel not in perhaps:
                    self._owed.update(keys)
                else:
                    self._allowed.update(keys)
                if channel is not None:
                    (heard if certain else perhaps).add(channel)
        for occasion in TIMED if new.state not in (*UNFINISHED, State.SKIPPED) else ():
            for follow in job.on.get(occasion, ()):
                self._timed(new, occasion, follow)

    def _wanted(self, new: Run, occasion: Occasion, part: str, follow: Follow) -> tuple[bool, list[str]]:
        """Whether that is certain, and the keys that are owed, or may be."""
        action = _action(follow)
        if occasion is Occasion.RECOVERED:
            return self._recovered(new, action)
        keys = [f"{new.id}/{part}/{action}"]
        if occasion is Occasion.ATTEMPT_FAILED:
            return True, keys if new.attempt >= follow.after else []
        if follow.after == 1:
            return True, keys
        if self._is_uncertain(new):
            return False, keys
        return True, keys if 1 + self._in_a_row(new, occasion) >= follow.after else []

    def _recovered(self, new: Run, action: str) -> tuple[bool, list[str]]:
        if self._is_uncertain(new):
            # One that is pruned by now may have been there when this was decided.
            ended = self._ended.get(new.job_id or "", {}).values()
            failed = [each.run.id for each in ended if each.run.id < new.id and each.run.state is State.FAILED]
            return False, [f"{run_id}/recovered/{action}" for run_id in failed]
        last = next((each.run for each in self._earlier(new) if each.run.state in RAN), None)
        is_so = last is not None and last.state is State.FAILED
        return True, [f"{last.id}/recovered/{action}"] if last is not None and is_so else []

    def _in_a_row(self, new: Run, occasion: Occasion) -> int:
        """A run that was not started in time failed as others do."""
        count = 0
        for each in self._earlier(new):
            alike = occasion is Occasion.FAILED or each.run.disposition is new.disposition
            if each.run.state is new.state and alike:
                count += 1
            elif each.run.state in RAN:
                break
        return count

    def _earlier(self, new: Run) -> Iterator[_Ended]:
        """The job's runs before this one that have ended, the newest first."""
        ended = self._ended.get(new.job_id or "", {})
        yield from (ended[run_id] for run_id in sorted(ended, reverse=True) if run_id < new.id and ended[run_id][2])

    def _is_uncertain(self, new: Run) -> bool:
        since = self._trace.elapsed - WRITING_SECONDS * SECOND
        ended = self._ended.get(new.job_id or "", {}).items()
        return self._trace.was_held_up or any(run_id < new.id and each.at > since for run_id, each in ended)

    # ---- in time

    def _timed(self, new: Run, occasion: Occasion, follow: Follow) -> None:
        key = f"{new.id}/{occasion}/{_action(follow)}"
        ended = new.finished_at or 0
        begun = self._begun.get(new.id, new.started_at or ended)
        until = min(begun, ended) if occasion is Occasion.LATE else ended
        limit = round((follow.seconds or 0) * SECOND)
        if until - self._latest_owed(new) > limit and not (occasion is Occasion.LATE and new.id in self._at_broker):
            self._owed.add(key)
        elif until - new.fire_at > limit:
            self._allowed.add(key)

    def _latest_owed(self, run: Run) -> Instant:
        """The latest instant from which it may count, whichever version of the job it is looked at with."""
        if run.cause not in ("schedule", "catch_up"):
            return max(run.fire_at, run.created_at)
        if (moved := run_moved_to(run)) is not None:
            return max(moved, run.fire_at)
        jitter = max(version.jitter_seconds for version in self._versions(run.job_id or ""))
        return run.fire_at + round(jitter * SECOND * fraction(run.job_id, run.fire_at)) + 1

    def _is_behind_now(self, key: str) -> bool:
        """Whether this is what the watcher tells, and as late as its job says."""
        run_id, _, rest = key.partition("/")
        occasion = rest.partition("/")[0]
        if occasion not in TIMED:
            return False
        run = self._runs.get(run_id)
        if run is None:
            return True  # of a fire time that no planner has dealt with
        follows = self._versions(run.job_id or "")[-1].on[Occasion(occasion)]
        seconds = min(follow.seconds or 0 for follow in follows)
        expected = min(run.fire_at, run_moved_to(run) or run.fire_at)
        return self._trace.wall - expected > seconds * SECOND


def _happened(old: Run | None, new: Run) -> dict[Occasion, str]:
    """What this change is an occasion of, and how that is called in a key."""
    attempt = {Occasion.ATTEMPT_FAILED: f"attempt_failed.{new.attempt}"}
    if old is None and new.state is not State.CANCELLED:
        return {Occasion.MISSED: "missed"} if new.disposition is Disposition.MISSED else {}
    if old is None:
        return {Occasion.CANCELLED: "cancelled"}
    if old.state not in UNFINISHED or new.state is old.state or new.disposition is Disposition.WITHDRAWN:
        return {}
    match new.state:
        case State.COMPLETED:
            return {Occasion.COMPLETED: "completed", Occasion.RECOVERED: "recovered"}
        case State.CANCELLED:
            return {Occasion.CANCELLED: "cancelled"}
        case State.FAILED if new.disposition is Disposition.NOT_STARTED:
            return {Occasion.NOT_STARTED: "not_started", Occasion.FAILED: "failed"}
        case State.FAILED:
            return {Occasion.FAILED: "failed", **attempt}
        case State.PENDING if old.state in CLAIMED and new.attempt == old.attempt:
            return attempt
        case State.SKIPPED if new.disposition is Disposition.MISSED:
            return {Occasion.MISSED: "missed"}
        case _:
            return {}


def _action(follow: Follow) -> str:
    return f"notify:{follow.notify}" if follow.trigger is None else f"trigger:{follow.trigger}"
