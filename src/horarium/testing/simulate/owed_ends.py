"""Runs that a newer one ends, but not at once: of very many, a plan ends some, and says in a record that it owes the
rest. Until that record is gone, and only then, runs of its job may go on beside the newer one."""

from __future__ import annotations

from horarium.model.records import Record
from horarium.rules.applying import PREFIX, owed_of
from horarium.testing.simulate.trace import Trace


class OwedEnds:
    """The jobs of which ends are owed. What looks wrong is judged once the write is over that it was seen in: its
    records come last."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._owing: dict[str, str] = {}
        self._doubts: list[tuple[str, str]] = []

    def record_put(self, record: Record) -> None:
        """A record was written."""
        if record.name.startswith(PREFIX) and (owed := owed_of(record)).newest is not None:
            self._owing[record.name] = owed.job_id

    def record_forgotten(self, name: str) -> None:
        """A record is gone."""
        if name in self._owing:
            self.check()
            del self._owing[name]

    def of(self, job_id: str) -> bool:
        """Whether ends of this job's runs are owed."""
        return job_id in self._owing.values()

    def doubt(self, job_id: str, what: str) -> None:
        """This is wrong, unless the end of it is owed."""
        self._doubts.append((job_id, what))

    def check(self) -> None:
        """A write is over."""
        for job_id, what in self._doubts:
            if not self.of(job_id):
                self._trace.fail(what)
        self._doubts.clear()
