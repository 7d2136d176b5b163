"""Settles the outcomes of a batch: what is the same for the runs of one job is worked out once."""

from __future__ import annotations

from collections.abc import Iterable

from horarium.clock import Instant
from horarium.model import Job, Outcome, Run, RunChange, Succeeded
from horarium.rules.settling import completed, settle


def settle_all(ended: Iterable[tuple[Run, Job | None, Outcome]], now: Instant) -> list[RunChange]:
    """As `settle`, of runs whose leases are held. Runs of one job are kept equally long."""
    prunes: dict[int, Instant | None] = {}
    changes = []
    for run, job, outcome in ended:
        if type(outcome) is not Succeeded or run.policy is not None:
            after = settle(run, job, outcome, now)
        elif id(job) in prunes:
            after = completed(run, outcome, now, prunes[id(job)])
        else:
            after = settle(run, job, outcome, now)
            prunes[id(job)] = after.prune_at
        changes.append(RunChange(after, run.token, run.state, True))
    return changes
