"""What is written in one transaction: a change of a run with what follows from it, or the plan of a job."""

from __future__ import annotations

from msgspec import Struct

from horarium.model.jobs import Job
from horarium.model.records import Record
from horarium.model.runs import Run
from horarium.model.states import State


class RunChange(Struct, frozen=True):
    """Write `run` over the stored run of that id if the stored one still has this token and this state, and its lease
    is as said: `held` True: not expired at `now`; False: expired; None: not looked at. `follow_ups` (runs that
    follow from this end) and `records` are added with it, or not at all."""

    run: Run
    token: int
    state: State
    held: bool | None = None
    follow_ups: tuple[Run, ...] = ()
    records: tuple[Record, ...] = ()


class Plan(Struct, frozen=True):
    """What `planning.plan` decided for one job: the job as it is to be (its `version` still the one that was read),
    the runs to add, the changes to unfinished runs, and the withdrawals: runs that were planned ahead and are to
    be deleted, as though never planned, if they are still pending under the token that was read; the records to append.
    One transaction: all of it, or nothing."""

    job: Job
    runs: tuple[Run, ...] = ()
    changes: tuple[RunChange, ...] = ()
    withdrawals: tuple[Run, ...] = ()
    records: tuple[Record, ...] = ()
