"""Batches: which ends of runs are counted, when a batch has finished, and what follows. Pure.

A run that belongs to a batch says so in its policy. With each write that ends it goes a record, which says what to
count; those of a batch are counted many at a time, by one write that removes them. So no end writes the row of the
batch, and each is counted once, also where a node dies. A batch that is closed has finished once as many
runs as it has are counted and no end is left to be: that is judged at each write of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import msgspec
from msgspec.structs import replace

from horarium.clock import Instant, to_text
from horarium.errors import InvalidRequest
from horarium.model import DEFAULT_RUN_POLICY, Run, RunChange, RunPolicy, State
from horarium.model.batches import (
    BATCH,
    BATCH_ENDS,
    BATCH_OWED,
    BATCH_RUNS,
    Batch,
    BatchFollow,
    BatchOccasion,
    BatchOwed,
    BatchTold,
)
from horarium.model.channels import Told
from horarium.model.records import Record
from horarium.model.targets import FOLLOW_QUEUE
from horarium.rules.chains import chain_key, then_key, then_run
from horarium.rules.following import FOLLOW_POLICY, notify_run, run_that_follows
from horarium.triggers import words

Ends = dict[str, int]
"""How many more, or fewer, of each count."""
COUNTED = {
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
    State.SKIPPED: "cancelled",
}
ID_BYTES = 16

decode_batch = msgspec.json.Decoder(Batch).decode
decode_owed = msgspec.json.Decoder(BatchOwed).decode
_decode_ends = msgspec.json.Decoder(Ends).decode


# ---- members ----------------------------------------------------------------------------------------------------


def member(run: Run, batch_id: str, page: int) -> Run:
    """The run as one of the batch, whose id is in that page."""
    return replace(run, policy=replace(run.policy or DEFAULT_RUN_POLICY, batch=f"{batch_id}/{page}"))


def batch_of(run: Run) -> str | None:
    """The id of its batch."""
    return None if run.policy is None or run.policy.batch is None else run.policy.batch.partition("/")[0]


def without_batch(policy: RunPolicy | None) -> RunPolicy | None:
    """The policy of a run that is in no batch."""
    return policy if policy is None or policy.batch is None else replace(policy, batch=None)


def page_of(run: Run) -> int:
    """The page of its batch that holds its id."""
    assert run.policy is not None
    return int((run.policy.batch or "").partition("/")[2])


def page_name(batch_id: str, page: int) -> str:
    return f"{BATCH_RUNS}{batch_id}/{page:06}"


def page_record(batch_id: str, page: int, ids: Iterable[str], version: int = 1) -> Record:
    """The record of a page: ids, one after the other."""
    return Record(name=page_name(batch_id, page), body=b"".join(UUID(id).bytes for id in ids), version=version)


def ids_of(record: Record) -> list[str]:
    """The ids of a page."""
    body = record.body
    return [str(UUID(bytes=body[at : at + ID_BYTES])) for at in range(0, len(body), ID_BYTES)]


def batch_record(batch: Batch, version: int) -> Record:
    return Record(
        name=BATCH + batch.id,
        body=msgspec.json.encode(batch),
        labels={"state": batch.state.value},
        version=version,
    )


def owed_record(batch_id: str, owed: BatchOwed, version: int) -> Record:
    """What is left of a request about all its runs, as it is stored."""
    return Record(name=BATCH_OWED + batch_id, body=msgspec.json.encode(owed), version=version)


# ---- ends -------------------------------------------------------------------------------------------------------


def with_end(change: RunChange, now: Instant) -> RunChange:
    """The change of a run of a batch, with what is to be counted if it ends by it (or is over in another way)."""
    run = change.run
    batch_id, was, ends = batch_of(run), COUNTED.get(change.state), COUNTED.get(run.state)
    if batch_id is None or was == ends:
        return change
    counts = {name: count for name, count in ((was, -1), (ends, 1)) if name is not None}
    name = f"{BATCH_ENDS}{batch_id}/{run.id}/{run.token}-{change.state}-{run.state}-{now:x}"
    return replace(change, records=(*change.records, Record(name=name, body=msgspec.json.encode(counts))))


def with_ends(changes: Sequence[RunChange], now: Instant) -> Sequence[RunChange]:
    """The changes, those of runs of batches with their ends."""
    if not [True for change in changes if change.run.policy is not None]:
        return changes
    return [change if change.run.policy is None else with_end(change, now) for change in changes]


def ended_batch(record: Record) -> str:
    """The batch of an end that is to be counted."""
    return record.name.removeprefix(BATCH_ENDS).partition("/")[0]


def counted(batch: Batch, records: Iterable[Record]) -> Batch:
    """The batch with these ends."""
    counts = {name: getattr(batch, name) for name in ("completed", "failed", "cancelled")}
    for record in records:
        for name, count in _decode_ends(record.body).items():
            counts[name] += count
    return replace(batch, **counts)


# ---- what follows -----------------------------------------------------------------------------------------------


def judged(batch: Batch, now: Instant, *, all_counted: bool) -> tuple[Batch, list[Run]]:
    """The batch as it is to be written, with the runs that follow. `all_counted`: no other end waits to be counted."""
    occasions: list[BatchOccasion] = []
    if batch.failed > 0 and batch.told_failed < batch.round:
        batch = replace(batch, told_failed=batch.round)
        occasions.append(BatchOccasion.FAILED)
    ended = batch.completed + batch.failed + batch.cancelled
    if (
        all_counted
        and not batch.retrying
        and batch.closed_at is not None
        and batch.finished_at is None
        and ended == batch.total
    ):
        batch = replace(batch, finished_at=now)
        if batch.completed == batch.total:
            occasions.append(BatchOccasion.COMPLETED)
        occasions.append(BatchOccasion.FINISHED)
    runs = [_follow_up(batch, each, follow, now) for each in occasions for follow in batch.on.get(each, ())]
    if batch.then and BatchOccasion.COMPLETED in occasions:
        about, result = f"{BATCH}{batch.id}/{batch.round}", msgspec.json.encode(told_of(batch))
        runs += [then_run(each, then_key(about, index), now, result) for index, each in enumerate(batch.then)]
    return batch, runs


def reopened(batch: Batch, states: Iterable[State]) -> Batch:
    """The batch, some of whose runs, which ended so, are done again."""
    counts = {name: getattr(batch, name) for name in ("completed", "failed", "cancelled")}
    for state in states:
        counts[COUNTED[state]] -= 1
    finished = batch.finished_at is not None
    return replace(batch, **counts, finished_at=None, round=batch.round + finished)


def told_of(batch: Batch) -> BatchTold:
    """What follow-ups are given, and readers see."""
    counts = (max(0, count) for count in (batch.completed, batch.failed, batch.cancelled))
    return BatchTold(batch.id, batch.total, *counts)


def _follow_up(batch: Batch, occasion: BatchOccasion, follow: BatchFollow, now: Instant) -> Run:
    told, key = told_of(batch), f"{BATCH}{batch.id}/{batch.round}/{occasion}/{follow.action}"
    if follow.notify is not None:
        event = Told(f"batch_{occasion}", None, None, None, to_text(now), message_of(batch, occasion), batch=told)
        return notify_run(follow.notify, event, key, now)
    payload = told if follow.payload in (None, "result") else follow.payload
    if follow.trigger is None:
        return run_that_follows(f"handler/{follow.handler}", payload, key, now)
    body = {"job": follow.trigger, "depth": 1, "payload": payload}
    return run_that_follows(FOLLOW_QUEUE, body, key, now, FOLLOW_POLICY)


def batch_behind(run: Run) -> str | None:
    """The id of the batch from whose counts this run follows."""
    key = (run.unique_key or "").removeprefix(chain_key(1, ""))
    return key.removeprefix(BATCH).partition("/")[0] if key.startswith(BATCH) else None


def message_of(batch: Batch, occasion: BatchOccasion) -> str:
    """The event, in one line."""
    told, name = told_of(batch), f"batch {batch.name or batch.id}"
    if occasion is BatchOccasion.FAILED:
        return f"{name}: a run of {told.total} failed"
    if told.completed == told.total:
        return f"{name} completed: {words.counted(told.total, 'run')}"
    return (
        f"{name} finished: of {words.counted(told.total, 'run')} {told.completed} completed, {told.failed} failed, "
        f"{told.cancelled} were cancelled"
    )


def check_on(on: Mapping[BatchOccasion, Sequence[BatchFollow]]) -> None:
    """Raises InvalidRequest for an action that says nothing, too much, or the same twice."""
    for occasion, follows in on.items():
        seen: set[str] = set()
        for index, follow in enumerate(follows):
            field = f"on.{occasion}[{index}]"
            if sum(given is not None for given in (follow.notify, follow.trigger, follow.handler)) != 1:
                raise InvalidRequest(
                    f"{field}: give one of notify (a channel), trigger (a job) and handler", field=field
                )
            if follow.payload is not None and follow.notify is not None:
                raise InvalidRequest(f"{field}.payload: a notification has none", field=f"{field}.payload")
            if follow.action in seen:
                raise InvalidRequest(f"{field}: {follow.action} is there already", field=field)
            seen.add(follow.action)
