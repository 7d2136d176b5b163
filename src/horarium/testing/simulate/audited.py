"""A witness of the audit: what people change has one entry, and each entry tells of a change that was made.

It has books of its own: it sees writes of jobs and runs, and it reads the entries; that they agree is looked at in the
end. What follows from a change (runs that are withdrawn with a pause, say) has no entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from horarium.access.acting import who_acts
from horarium.access.audit import PREFIX, Entry
from horarium.model import Cause, Job, Run, State, key_as_given
from horarium.model.records import Record
from horarium.rules.calendars import without_days
from horarium.stores.memory.space import Beside
from horarium.wire.definitions import JobDefinition

CANCELLED = "cancelled by request"
ASKED = frozenset({Cause.MANUAL, Cause.ENQUEUED})
STOPPED = frozenset({State.CANCELLED, State.CANCELLING})
OF_JOBS = frozenset({"job.create", "job.update", "job.pause", "job.resume", "job.delete", "job.revert"})
OF_RUNS = frozenset({"job.trigger", "run.create", "run.retry"})
OWNERS = tuple(name for name in JobDefinition.__struct_fields__ if name != "name")

_decode = msgspec.json.Decoder(Entry).decode
Change = tuple[str, str, int]
"""A change: kind, id, and for a job its new version."""


class AuditWitness:
    """The books."""

    def __init__(self) -> None:
        self.changes: dict[Change, None] = {}
        self.entries: dict[Change, str] = {}
        self.twice: list[str] = []
        self.keys: set[str] = set()
        self.there: set[str] = set()
        """Runs that were added for anyone: those of a group are written in a task that acts for none of its callers."""
        self.written: dict[Change, None] = {}
        """Changes of jobs of which it is not seen here that anyone asked for them."""
        self.together: dict[Change, range] = {}
        """Changes of a job that were written together: which of their versions a caller made is not seen here."""

    # ---- changes

    def job_written(self, old: Job | None, new: Job) -> None:
        """A job was written."""
        owned = old is None or any(_as_put(old, name) != _as_put(new, name) for name in OWNERS)
        if owned or (old is not None and old.deleted_at != new.deleted_at):
            # Changes of a job that wait for each other are written by a task that acts for none of their callers.
            (self.written if who_acts() is None else self.changes)["job", new.id, new.version] = None
        elif old is not None and old.trigger != new.trigger:
            self.written["job", new.id, new.version] = None
        if old is not None and new.version > old.version + 1:
            # Also where one of them takes back what another one changed, and nothing is left to be seen.
            self.together["job", new.id, new.version] = range(old.version + 1, new.version + 1)

    def run_added(self, run: Run) -> None:
        """A run was added. One that was there before follows its job to another queue, or was pruned or withdrawn and
        is planned again: then it may be cancelled again."""
        moved = run.id in self.there
        cancelled = "cancel", run.id, 0
        if cancelled in self.changes and cancelled in self.entries:
            del self.changes[cancelled], self.entries[cancelled]
        self.there.add(run.id)
        # Those that come with their batch are in its entry.
        in_batch = run.cause is Cause.ENQUEUED and run.policy is not None and run.policy.batch is not None
        if run.cause in ASKED and not moved and not in_batch and who_acts() is not None:
            self.changes["run", run.id, 0] = None
        if key := key_as_given(run.unique_key):
            self.keys.add(key)

    def run_changed(self, old: Run, new: Run) -> None:
        """A run was changed."""
        said = new.error if new.state is State.CANCELLED else new.history[-1].message if new.history else None
        if new.state not in STOPPED or who_acts() is None:
            return
        # One that was told to stop since its time was over may still be cancelled by a person.
        again = old.state is State.CANCELLING and (new.state is not old.state or new.history == old.history)
        if said is not None and said.endswith(CANCELLED) and not again:
            self.changes["cancel", new.id, 0] = None

    # ---- what the audit says

    def record_put(self, record: Record) -> None:
        """A record was written."""
        if not record.name.startswith(PREFIX):
            return
        entry = _decode(record.body)
        change = _change(entry)
        if change is None:
            return
        if change in self.entries:
            self.twice.append(f"{entry.action} {entry.object}")
        key = entry.after.get("unique_key") if isinstance(entry.after, dict) else None
        # A key may be taken while a run in turn is written: its job was changed all the same, and another run has it.
        if change[0] != "run" or key is None or change in self.changes or key not in self.keys:
            self.entries[change] = f"{entry.action} {entry.object}"

    def record_forgotten(self, name: str) -> None:
        """A record is gone: what it said was said."""

    def check(self, fail: Callable[[str], None]) -> None:
        """At the end, and at any instant between two writes."""
        grouped = {("job", job_id, version) for (_, job_id, _), each in self.together.items() for version in each}
        for change in self.changes.keys() - self.entries.keys():
            if any((*change[:2], version) in self.entries for version in self.together.get(change, ())):
                continue
            fail(f"{' '.join(map(str, change))} was changed, and the audit has no entry of it")
        for change in self.entries.keys() - self.changes.keys() - self.written.keys() - grouped:
            if change[0] == "run" and change[1] in self.there:
                continue
            fail(f"the audit has an entry {self.entries[change]}, and nothing of it was written")
        for what in self.twice:
            fail(f"the audit has two entries of one change: {what}")


def _as_put(job: Job, name: str) -> object:
    """This field as its owner put it: the days of a calendar follow the calendar, at any request."""
    value = getattr(job, name)
    return without_days(value) if name == "trigger" else value


def _change(entry: Entry) -> Change | None:
    """The change of which it tells."""
    if entry.action in OF_JOBS:
        shown: dict[str, Any] = entry.after or entry.before
        return "job", shown["id"], shown["version"] if entry.after else shown["version"] + 1
    if entry.action in OF_RUNS:
        return "run", entry.after["run_id"], 0
    if entry.action == "run.cancel":
        return "cancel", entry.object.removeprefix("run/"), 0
    return None


class RecordWitness(Protocol):
    """What hears of records."""

    def record_put(self, record: Record) -> None: ...

    def record_forgotten(self, name: str) -> None: ...


class WatchedBeside(Beside):
    """The records of a namespace, with its witnesses."""

    def __init__(self, *witnesses: RecordWitness) -> None:
        super().__init__()
        self._witnesses = witnesses

    def put(self, record: Record) -> None:
        super().put(record)
        for witness in self._witnesses:
            witness.record_put(record)

    def forget(self, name: str) -> None:
        super().forget(name)
        for witness in self._witnesses:
            witness.record_forgotten(name)
