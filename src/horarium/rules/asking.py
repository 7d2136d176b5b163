"""The records that lead to runs which wait for a decision, written with them: ordered by the end of their time."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import Job, Plan, Run
from horarium.model.records import Record, instant_key, key_instant
from horarium.rules.approving import asker_of, is_waiting, was_approved

OPEN = "approval/"
"""What the names of these records begin with; then the end of the time for a decision, and the run."""
MISSED = "missed"
"""The label by which such a record is found that leads to no run."""


class Question(Struct, frozen=True):
    """A run is asked about, until then. `by`: who asked for the run (a subject; empty: its rule), and `by_name`.
    `job_id`: there is no such run yet, but a job that asks about fire times which were missed (`rules.missed`)."""

    run_id: str
    expires_at: Instant
    by: str = ""
    by_name: str = ""
    job_id: str = ""

    @staticmethod
    def name_of(expires_at: Instant, run_id: str) -> str:
        """The name of its record."""
        return f"{OPEN}{instant_key(expires_at, run_id)}"

    @property
    def record(self) -> Record:
        body = msgspec.json.encode([self.by, self.by_name, self.job_id] if self.job_id else [self.by, self.by_name])
        labels = {MISSED: self.run_id} if self.job_id else {}
        return Record(name=self.name_of(self.expires_at, self.run_id), body=body, labels=labels)


class Waiting(Struct, frozen=True):
    """A run that waits for a decision: who asked for it, and why the reader may not decide (None: it may). `version`:
    that of the job, and `changed_at`: when it became that. `missed`: it stands for fire times that were missed, and is
    stored nowhere."""

    run: Run
    job: Job
    question: Question
    why_not: str | None = None
    version: int = 0
    changed_at: Instant = 0

    @property
    def missed(self) -> bool:
        return bool(self.question.job_id)


def question_of(record: Record) -> Question:
    """The question that a record holds."""
    key = record.name.removeprefix(OPEN)
    said = msgspec.json.decode(record.body, type=tuple[str, ...])
    return Question(key.partition("-")[2], key_instant(key), *said)


def with_questions(planned: Plan, by: str = "", by_name: str = "") -> Plan:
    """The plan, with a record for each run that it makes and that waits for a decision."""
    waiting = [run for run in planned.runs if is_waiting(run)]
    if not waiting:
        return planned
    along = dict(planned.along)
    for run in waiting:
        asker = asker_of(run) if was_approved(run) else (by, by_name)
        along[run.id] = (*along.get(run.id, ()), Question(run.id, run.due_at, *asker).record)
    return replace(planned, along=along)
