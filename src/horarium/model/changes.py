"""The writes of one transaction: a change of a run with its follow-ups, the plan of a job, or many of these at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from horarium.model.jobs import Job
from horarium.model.records import Record, RecordChange
from horarium.model.runs import Run
from horarium.model.states import State


class RunChange(Struct, frozen=True, gc=False):
    """Write `run` over the stored run of that id if the stored one still has this token and this state, and its lease
    is as said: `held` True: not expired at `steady`; False: expired; None: not looked at. `follow_ups` (runs that
    follow from this end) and `records` are added with it, or not at all. `as_claimed`: the run's due_at is what the
    claim of this token found, so that it need not be written. `replaces`: the stored run, which is pending, is deleted,
    and `run` added in its place, each field as given; its job, fire time and unique key are those of the stored one."""

    run: Run
    token: int
    state: State
    held: bool | None = None
    follow_ups: tuple[Run, ...] = ()
    records: tuple[Record, ...] = ()
    as_claimed: bool = False
    replaces: bool = False


class Plan(Struct, frozen=True):
    """The decision of `planning.plan` for one job: the job as it is to be (its `version` still the one that was read),
    the runs to add, the changes to runs, mostly unfinished ones, and the withdrawals: runs that were planned ahead and
    are to be deleted, as though never planned, if they are still pending under the token that was read; the records to
    append. A run that is among the withdrawals too is moved: it is added only if it was there and was withdrawn.
    `along`: the records to append with a run (by its id), if it is added. `versions`: by how many the job's version
    grows: changes that were decided one on the other, each as a version of its own. One transaction: all of it, or
    nothing."""

    job: Job
    runs: tuple[Run, ...] = ()
    changes: tuple[RunChange, ...] = ()
    withdrawals: tuple[Run, ...] = ()
    records: tuple[Record, ...] = ()
    along: Mapping[str, tuple[Record, ...]] = {}
    versions: int = 1

    @property
    def moved(self) -> set[str]:
        """The ids of runs that are withdrawn and added again."""
        return {run.id for run in self.withdrawals} & {run.id for run in self.runs} if self.withdrawals else set()


class Whole(Struct, frozen=True):
    """Jobs and one-off runs to add (each with the records `along`, by its id), plans to carry out and changes of
    records: all of them, or none where any would be refused. No job, no run, no name, no unique key and no record is in
    it twice."""

    jobs: tuple[Job, ...] = ()
    along: Mapping[str, Sequence[Record]] = {}
    plans: tuple[Plan, ...] = ()
    records: tuple[RecordChange, ...] = ()
    runs: tuple[Run, ...] = ()
