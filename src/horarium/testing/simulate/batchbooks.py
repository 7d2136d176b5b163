"""The witness's book of batches: each has finished once a round, when all its runs have ended, and not before.

The runs of a batch are those of its pages; how they ended the book of runs says. Counts, rounds, ends that wait to be
counted and follow-ups are compared with that after each write, in other words than the rule's, without shared code.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from uuid import UUID

import msgspec

from horarium.clock import SECOND, Instant
from horarium.model import UNFINISHED, Run, State
from horarium.model.batches import BATCH, BATCH_ENDS, BATCH_OWED, BATCH_RUNS, Batch, BatchFollow
from horarium.model.records import Record
from horarium.testing.simulate.trace import Trace

COUNTS = {State.COMPLETED: "completed", State.FAILED: "failed"}
"""All other ends count as cancelled."""
ID_BYTES = 16
KNOWN = 5 * SECOND
"""Within this a request about all runs of a batch is carried out, once nothing fails any more."""


class BatchBooks:
    """The batches, their pages, their debts and follow-ups. `runs`: every run that ever was."""

    def __init__(self, trace: Trace, runs: Mapping[str, Run]) -> None:
        self.batches: dict[str, Batch] = {}
        self._trace = trace
        self._runs = runs
        self._pages: dict[str, dict[str, list[str]]] = defaultdict(dict)
        self._ends: dict[str, dict[str, Counter[str]]] = defaultdict(dict)
        self._owing: dict[str, str] = {}
        self._touched: dict[str, None] = {}
        self._of_key: dict[str, str] = {}
        self._owed: set[str] = set()
        self._made: Counter[str] = Counter()
        self._gone: set[str] = set()
        self._again: dict[str, str] = {}
        self._cancels: dict[str, tuple[str, int]] = {}
        self.finishes = 0

    # ---- writes

    def record_put(self, record: Record) -> None:
        """A record was written."""
        kind, batch_id = _kind_of(record.name)
        if kind == BATCH:
            new = msgspec.json.decode(record.body, type=Batch)
            self._written(self.batches.get(batch_id), new)
            self.batches[batch_id] = new
        elif kind == BATCH_RUNS:
            cut = range(0, len(record.body), ID_BYTES)
            self._pages[batch_id][record.name] = [str(UUID(bytes=record.body[at : at + ID_BYTES])) for at in cut]
        elif kind == BATCH_OWED:
            self._owing[batch_id] = msgspec.json.decode(record.body)["action"]
        elif kind == BATCH_ENDS:
            self._ends[batch_id][record.name] = Counter(msgspec.json.decode(record.body))
        if kind:
            self._touched[batch_id] = None

    def record_forgotten(self, name: str) -> None:
        """A record is gone."""
        kind, batch_id = _kind_of(name)
        if kind == BATCH:
            self.batches.pop(batch_id, None)
        elif kind == BATCH_RUNS:
            self._pages[batch_id].pop(name, None)
        elif kind == BATCH_OWED:
            self._owing.pop(batch_id, None)
        elif kind == BATCH_ENDS:
            self._ends[batch_id].pop(name, None)
        if kind:
            self._touched[batch_id] = None

    def run_written(self, run: Run) -> None:
        """A run was added, or changed."""
        if run.policy is not None and run.policy.batch is not None:
            self._touched[run.policy.batch.partition("/")[0]] = None

    def run_forgotten(self, run: Run) -> None:
        """A run is gone: it can't be done again."""
        self._again.pop(run.id, None)
        self._gone.add(run.id)
        self.run_written(run)

    def run_added(self, run: Run) -> None:
        """A run was added, perhaps one that follows from a batch."""
        self._gone.discard(run.id)
        self.run_written(run)
        key = run.unique_key or ""
        if key.startswith(BATCH):
            self._made[key] += 1
            self._touched[key.split("/")[1]] = None

    def _written(self, old: Batch | None, new: Batch) -> None:
        if new.key is not None and self._of_key.setdefault(new.key, new.id) != new.id:
            self._fail(new, f"made by the request {new.key}, which had made {self._of_key[new.key]}")
        if old is None:
            return
        finished, begins = old.finished_at is not None, new.round == old.round + 1
        if new.round != old.round and not (begins and finished and new.finished_at is None):
            self._fail(new, f"round {new.round} after round {old.round}")
        if finished and not begins and new.finished_at != old.finished_at:
            self._fail(new, f"finished in round {new.round} a second time, or not at all any more")
        if old.closed_at is not None and (new.closed_at, new.total) != (old.closed_at, old.total):
            self._fail(new, "closed, and was opened or filled afterwards")
        if new.total < old.total:
            self._fail(new, f"of {new.total} runs after it was of {old.total}")
        self.finishes += new.finished_at is not None and not finished

    # ---- after each write

    def look(self) -> None:
        """A write is over: compare what it touched."""
        touched, self._touched = self._touched, {}
        for batch_id in touched:
            if (batch := self.batches.get(batch_id)) is not None:
                self._look_at(batch)

    def _look_at(self, batch: Batch) -> None:
        members = self.members(batch.id)
        if len(members) != batch.total:
            self._fail(batch, f"of {batch.total} runs, and its pages hold {len(members)}")
        if lost := [id for id in set(members) if id not in self._runs or _batch_of(self._runs[id]) != batch.id]:
            self._fail(batch, f"of runs that never were, or are in no batch: {lost}")
            return
        if len(set(members)) < len(members):
            self._fail(batch, "of one run twice")
        ended: Counter[str] = Counter()
        for member in members:
            if (state := self._runs[member].state) not in UNFINISHED:
                ended[COUNTS.get(state, "cancelled")] += 1
        counts = {"completed": batch.completed, "failed": batch.failed, "cancelled": batch.cancelled}
        waiting: Counter[str] = Counter()
        for more in self._ends[batch.id].values():
            waiting.update(more)
        for name, count in counts.items():
            if count + waiting[name] != ended[name]:
                self._fail(batch, f"of {ended[name]} {name}, and counts {count}, with {waiting[name]} more to count")
        if batch.finished_at is not None:
            self._finished(batch, len(members) - ended.total())
        self._follow(batch, batch.completed == len(members))

    def _finished(self, batch: Batch, unended: int) -> None:
        if batch.closed_at is None:
            self._fail(batch, "finished, and open")
        if batch.retrying or self._owing.get(batch.id) == "retry":
            self._fail(batch, "finished while its failed runs are being done again")
        if unended:
            self._fail(batch, f"finished in round {batch.round}, and {unended} of its runs have not ended")

    def _follow(self, batch: Batch, all_completed: bool) -> None:
        """What follows comes with the write that brings it about, once."""
        begin = f"{BATCH}{batch.id}/{batch.round}"
        occasions = ["failed"] if batch.failed > 0 else []
        if batch.finished_at is not None:
            occasions += ["completed", "finished"] if all_completed else ["finished"]
        for occasion, follows in batch.on.items():
            if occasion.value in occasions:
                self._owed.update(f"{begin}/{occasion.value}/{_action(each)}" for each in follows)
        if "completed" in occasions:
            self._owed.update(f"{begin}/completed/then:{index}" for index in range(len(batch.then)))
        about = f"{BATCH}{batch.id}/"
        for key in sorted(each for each in self._owed | self._made.keys() if each.startswith(about)):
            if self._made[key] != 1 or key not in self._owed:
                owed = int(key in self._owed)
                self._fail(
                    batch, f"one whose follow-up {key} is owed {owed} times, and was made {self._made[key]} times"
                )

    # ---- answers

    def failed(self, batch_id: str) -> list[str]:
        """Its runs that have failed, and are kept."""
        kept = (id for id in self.members(batch_id) if id not in self._gone)
        return [id for id in kept if self._runs[id].state is State.FAILED]

    def open_runs(self, batch_id: str) -> list[str]:
        """Its runs that have not ended."""
        return [id for id in self.members(batch_id) if self._runs[id].state in UNFINISHED]

    def acknowledged_retry(self, batch_id: str, failed: Iterable[str]) -> None:
        """A user was answered that the failed runs of the batch are done again. Where the clock is stepped, some of
        them may be taken for others, that failed later."""
        self._again |= {run_id: batch_id for run_id in failed if run_id not in self._gone}

    def acknowledged_cancel(self, batch_id: str, open_runs: Iterable[str]) -> None:
        """A user was answered that the batch is cancelled."""
        self._cancels |= dict.fromkeys(open_runs, (batch_id, self._trace.elapsed))

    def look_for_late(self) -> None:
        """Requests that were answered a while ago have been done."""
        for run_id, (batch_id, at) in self._cancels.items():
            state = self._runs[run_id].state
            if state in (State.PENDING, State.RUNNING) and at + KNOWN < self._trace.elapsed:
                self._trace.fail(
                    f"batch {batch_id}: its run {run_id} is {state}, though a request was answered to cancel it"
                )

    # ---- the calm, and the end

    def members(self, batch_id: str) -> list[str]:
        """The ids of its runs."""
        return [id for name in sorted(self._pages[batch_id]) for id in self._pages[batch_id][name]]

    def unrest(self, now: Instant) -> Iterator[str]:
        """Things without an end so far. A run that waits for an instant after `now` may."""
        for batch_id in self._owing:
            yield f"batch {batch_id}: its {self._owing[batch_id]} is carried out no further"
        for batch_id, ends in self._ends.items():
            if ends:
                yield f"batch {batch_id}: {len(ends)} ends were never counted"
        for run_id, batch_id in self._again.items() if not self._trace.clock_stepped else ():
            if run_id in self.members(batch_id):
                yield f"batch {batch_id}: its run {run_id} was not done again, though a request was answered"
        for batch in self.batches.values():
            runs = [self._runs[id] for id in self.members(batch.id) if id in self._runs]
            open_runs = [run for run in runs if run.state in UNFINISHED]
            if batch.retrying:
                yield f"batch {batch.id}: it never ceases to do its failed runs again"
            if batch.closed_at is not None and batch.finished_at is None and not open_runs:
                yield f"batch {batch.id}: all its {len(runs)} runs have ended, and it never finished"
            for run in open_runs:
                if run.state is not State.PENDING or run.due_at <= now:
                    yield f"batch {batch.id}: its run {run.id} never came to an end: {run.state}, due at {run.due_at}"

    def check(self, now: Instant) -> None:
        """At the end."""
        self.look()
        for what in self.unrest(now):
            self._trace.fail(what)

    def _fail(self, batch: Batch, what: str) -> None:
        self._trace.fail(f"batch {batch.id} is {what}")


def _kind_of(name: str) -> tuple[str, str]:
    """How the name of a record of a batch begins, and the id of the batch. Empty for any other record."""
    for kind in (BATCH_OWED, BATCH_ENDS, BATCH_RUNS, BATCH):
        if name.startswith(kind):
            return kind, name.removeprefix(kind).partition("/")[0]
    return "", ""


def _batch_of(run: Run) -> str | None:
    return None if run.policy is None or run.policy.batch is None else run.policy.batch.partition("/")[0]


def _action(follow: BatchFollow) -> str:
    for kind, name in (("notify", follow.notify), ("trigger", follow.trigger), ("handler", follow.handler)):
        if name is not None:
            return f"{kind}:{name}"
    return ""
