"""What became of fire times that were missed and about which a person was asked, judged by the rows that they got."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from horarium.clock import Instant
from horarium.model import Cause, Disposition, Job, Run
from horarium.model.missed import Missed
from horarium.policies import CatchUpPolicy
from horarium.rules.catching_up import CATCH_UP_RUNS_MAX


class Over(Struct, frozen=True):
    """A question that is over: of which job, and as which policy."""

    job: Job
    missed: Missed
    policy: str

    def holds(self, fire: Instant) -> bool:
        """Whether it was about this fire time."""
        return any(each.first <= fire <= each.last for each in self.missed.stretches)


class Asked:
    """The books."""

    def __init__(self) -> None:
        self._answered: dict[str, str] = {}
        self._over: list[Over] = []

    def answered(self, id: str, decision: str) -> None:
        """A person was answered that this is decided so."""
        self._answered[id] = decision

    def job_written(self, old: Job | None, new: Job) -> None:
        """A job was written: its question may be over with that."""
        if old is None or old.missed is None or new.missed is not None or new.deleted_at is not None:
            return
        asks = old.catch_up.policy is CatchUpPolicy.ASK
        policy = old.missed.decision or (old.catch_up.then if asks else old.catch_up.policy)
        self._over.append(Over(old, old.missed, str(policy)))

    def check(self, rows_of: Callable[[str], Sequence[Run]], fail: Callable[[str], None]) -> None:
        """As many ran as was decided: none, the latest, or all."""
        for over in self._over:
            job, decided = over.job, self._answered.get(over.missed.id, over.policy)
            if decided != over.policy:
                fail(f"job {job.name}: a person decided {decided} of what it missed, and it was {over.policy}")
            rows = [row for row in rows_of(job.id) if over.holds(row.fire_at)]
            backfilled = sum(row.cause is Cause.BACKFILL for row in rows)
            given_up = sum(row.fires for row in rows if row.disposition is Disposition.MISSED)
            most = {"none": 0, "latest": 1}.get(decided, CATCH_UP_RUNS_MAX)
            least = min(most, over.missed.fires) if job.fires_max is None and not backfilled else 0
            if not least <= over.missed.fires - given_up <= most + backfilled:
                fail(f"job {job.name}: {given_up} of {over.missed.fires} missed are given up, decided was {decided}")
