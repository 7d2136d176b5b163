"""Whether a queue is served: a rule on what the store counts, and on the runs that wait.

A queue in which runs have been due for a minute and none is claimed has no worker, unless each of these runs has to
wait for another: behind an earlier run of its job, or until there is room under its concurrency key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from horarium.clock import MINUTE, Instant
from horarium.model import CLAIMED, Run

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
