"""Settles the outcomes of a batch: values common to the runs of one job are worked out once."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from horarium.clock import Instant
from horarium.model import Job, Outcome, Run, RunChange, Succeeded
from horarium.rules.settling import completed, settle


class Ended(Struct, frozen=True, gc=False):
    """An attempt that ended."""

    run: Run
    job: Job | None
    outcome: Outcome


def settle_all(batch: Iterable[Ended], now: Instant) -> list[RunChange]:
    """As `settle`, of runs whose leases are held. Runs of one job are kept equally long."""
    prunes: dict[int, Instant | None] = {}
    changes = []
    for ended in batch:
        run, job, outcome = ended.run, ended.job, ended.outcome
        if type(outcome) is not Succeeded:
            changes.append(RunChange(settle(run, job, outcome, now), run.token, run.state, True))
            continue
        if run.policy is not None or id(job) not in prunes:
            after = settle(run, job, outcome, now)
            if run.policy is None:
                prunes[id(job)] = after.prune_at
        else:
            after = completed(run, outcome, now, prunes[id(job)])
        changes.append(RunChange(after, run.token, run.state, True, as_claimed=True))
    return changes
