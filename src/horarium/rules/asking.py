"""The records that lead to runs which wait for a decision, written with them: ordered by the end of their time."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import Plan
from horarium.model.records import Record, instant_key, key_instant
from horarium.rules.approving import is_waiting

OPEN = "approval/"
"""What the names of these records begin with; then the end of the time for a decision, and the run."""


class Question(Struct, frozen=True):
    """A run is asked about, until then. `by`: who asked for the run (a subject; empty: its rule), and `by_name`."""

    run_id: str
    expires_at: Instant
    by: str = ""
    by_name: str = ""

    @staticmethod
    def name_of(expires_at: Instant, run_id: str) -> str:
        """The name of its record."""
        return f"{OPEN}{instant_key(expires_at, run_id)}"

    @property
    def record(self) -> Record:
        body = msgspec.json.encode([self.by, self.by_name])
        return Record(name=self.name_of(self.expires_at, self.run_id), body=body)


def question_of(record: Record) -> Question:
    """The question that a record holds."""
    key = record.name.removeprefix(OPEN)
    by, by_name = msgspec.json.decode(record.body, type=tuple[str, str])
    return Question(key.partition("-")[2], key_instant(key), by, by_name)


def with_questions(planned: Plan, by: str = "", by_name: str = "") -> Plan:
    """The plan, with a record for each run that it makes and that waits for a decision."""
    waiting = [run for run in planned.runs if is_waiting(run)]
    if not waiting:
        return planned
    along = dict(planned.along)
    for run in waiting:
        along[run.id] = (*along.get(run.id, ()), Question(run.id, run.due_at, by, by_name).record)
    return replace(planned, along=along)
