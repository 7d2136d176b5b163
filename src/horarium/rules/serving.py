"""Whether a queue is served: a rule on what the store counts, and on the runs that wait.

A queue in which runs have been due for a minute and none is claimed has no worker, unless each of these runs has to
wait for another: behind an earlier run of its job, or until there is room under its concurrency key.

Fire times that fell due before a worker came are caught up on as their job says, as though no planner had been there:
those that don't run are found when one of them is claimed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import INSTANT_MIN, MINUTE, Instant, to_micros, to_text
from horarium.model import CLAIMED, Disposition, Job, Run, State
from horarium.policies import CatchUpPolicy
from horarium.rules.compiled import retention_of_job
from horarium.rules.holds import PLANNED_CAUSES
from horarium.rules.overridden import MISFIRE_GRACE
from horarium.rules.rates import given_back
from horarium.rules.settling import terminate

UNSERVED_AFTER = MINUTE
"""For how long a run has been due that a worker would have claimed."""


def may_be_unserved(running: int, oldest_due_at: Instant | None, now: Instant) -> bool:
    """As the counts have it: runs wait for too long, and none is claimed."""
    return not running and oldest_due_at is not None and oldest_due_at <= now - UNSERVED_AFTER


def waits_for_a_worker(run: Run, of_job: Sequence[Run], claimed: Mapping[str, int], now: Instant) -> bool:
    """Whether nothing but a worker of its queue is missing for this pending run, or for the run of its job whose turn
    it is. `of_job`: the unfinished runs of its job; `claimed`: how many runs are claimed under each concurrency key."""
    first = run
    if run.serial and of_job:
        if any(one.state in CLAIMED for one in of_job):
            return False
        first = min(of_job, key=lambda one: (one.fire_at, one.id))
    if first.queue != run.queue or first.due_at > now - UNSERVED_AFTER:
        return False
    return first.concurrency_key is None or claimed.get(first.concurrency_key, 0) < first.concurrency_max


# ---- fire times that were missed meanwhile ----------------------------------------------------------------------


class Absence(Struct, frozen=True, array_like=True):
    """A queue that no worker served: when that was found, and when a worker came (None: none has)."""

    since: Instant
    served_at: Instant | None = None


def policy_of(job: Job) -> CatchUpPolicy:
    """By which policy a job catches up on runs that waited for a worker. No person is asked: the runs are to be
    seen."""
    asks = job.catch_up.policy is CatchUpPolicy.ASK
    return CatchUpPolicy(str(job.catch_up.then)) if asks else job.catch_up.policy


def may_be_missed(run: Run, job: Job | None) -> bool:
    """Whether this run, claimed or not, was planned, has not begun before, and its job does not want all of them. (One
    that a person approved is performed.)"""
    if job is None or run.job_id != job.id or job.approval is not None or run.cause not in PLANNED_CAUSES:
        return False
    keeps_all = policy_of(job) is CatchUpPolicy.ALL and job.catch_up.window_seconds is None
    return not keeps_all and run.attempt == (run.state in CLAIMED)


def kept_from(job: Job, of_job: Sequence[Run], served_at: Instant) -> Instant:
    """Fire times before this one that were due when a worker came are missed. `of_job`: its newest runs."""
    policy, window = policy_of(job), job.catch_up.window_seconds
    first = INSTANT_MIN if window is None else served_at - to_micros(window)
    if policy is CatchUpPolicy.NONE:
        return max(first, served_at - MISFIRE_GRACE + 1)
    if policy is CatchUpPolicy.LATEST:
        runs = [run for run in of_job if run.job_id == job.id and run.cause in PLANNED_CAUSES and _counts(run)]
        return max([first, *(run.fire_at for run in runs if run.due_at <= served_at)])
    return first


def _counts(run: Run) -> bool:
    """Whether it runs, or did."""
    return run.state not in (State.SKIPPED, State.CANCELLED, State.CANCELLING)


def missed(run: Run, job: Job, served_at: Instant, now: Instant) -> Run:
    """The run, ended as a fire time that was missed."""
    why = f"catch_up: {job.catch_up.policy}; no worker served the queue {run.queue} until {to_text(served_at)}"
    ended = terminate(given_back(run), retention_of_job(job), now, why)
    return replace(ended, state=State.SKIPPED, disposition=Disposition.MISSED, error=why)


def unserved_words(queue: str, due: int) -> str:
    """The trouble in words."""
    return f"no worker serves the queue {queue}: {'1 run is' if due == 1 else f'{due:,} runs are'} due"
