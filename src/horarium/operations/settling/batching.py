"""Ends of runs of batches, counted; and runs of batches, done again. Each is one write of the batch, if it is as it was
read (`rules.batches`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress

from horarium.clock import Instant
from horarium.errors import NotFound
from horarium.model import Run, Whole
from horarium.model.batches import BATCH, BATCH_ENDS, Batch
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.operations.writing.auditing import Records, told_runs
from horarium.operations.writing.context import RACES_MAX, Context, contended, pause_after
from horarium.operations.writing.signalling import announce_runs
from horarium.ports import BATCH_MAX, Along, Topic
from horarium.rules.batches import (
    batch_of,
    batch_record,
    counted,
    decode_batch,
    ids_of,
    judged,
    member,
    page_name,
    page_of,
    page_record,
    reopened,
)

BATCHES = Topic("batches")
"""Runs of batches have ended."""
BATCHES_FINISHED = Topic("batches-finished")


class Batching:
    """Writes batches of one namespace. Raises the errors of `errors`, nothing else."""

    def __init__(self, context: Context) -> None:
        self._store, self._clock, self._signal, self._entropy = context

    async def read(self, batch_id: str) -> tuple[Record, Batch]:
        """The batch as it is stored. Raises NotFound."""
        (stored,) = await self._store.get_records([BATCH + batch_id])
        if stored is None:
            raise NotFound(f"there is no batch {batch_id!r}")
        return stored, decode_batch(stored.body)

    async def write(
        self,
        batch: Batch,
        stored: Record | None,
        now: Instant,
        *,
        runs: Sequence[Run] = (),
        pages: Sequence[RecordChange] = (),
        along: Along | None = None,
        told: Records = (),
    ) -> Batch | None:
        """Write it with the ends that wait to be counted, and what follows; and with it `runs` and `pages`. It, as
        written; None: it is not as it was read, or some of that would be refused."""
        ends = await self._store.list_records(RecordFilter(f"{BATCH_ENDS}{batch.id}/"), None, BATCH_MAX)
        after, following = judged(counted(batch, ends.items), now, all_counted=ends.next_after is None)
        version = 0 if stored is None else stored.version
        whole = Whole(
            records=(
                RecordChange(batch_record(after, version + 1), version, records=told),
                *pages,
                *(record.removal() for record in ends.items),
            ),
            runs=(*runs, *following),
            along=along or {},
        )
        written = await self._store.write_whole(whole, self._clock.steady())
        if written:
            announce_runs(self._signal, whole.runs)
            if after.finished_at is not None:
                self._signal.publish(BATCHES_FINISHED)
            if ends.next_after is not None:
                self._signal.publish(BATCHES)
        return after if written else None

    async def count(self, batch_id: str) -> bool:
        """Count ends of the runs of a batch, a thousand at most. False: another did just then."""
        (stored,) = await self._store.get_records([BATCH + batch_id])
        if stored is not None:
            return await self.write(decode_batch(stored.body), stored, self._clock.now()) is not None
        ends = await self._store.list_records(RecordFilter(f"{BATCH_ENDS}{batch_id}/"), None, BATCH_MAX)
        return all(await self._store.put_records([end.removal() for end in ends.items]))

    async def again(self, pairs: Sequence[tuple[Run, Run]], asked: Mapping[str, str]) -> list[bool]:
        """Runs of batches that are over, done again: each with the run that takes its place there. False: it was done
        before. `asked`: what the audit says of the new runs."""
        done: dict[str, bool] = {}
        for batch_id in dict.fromkeys(batch_of(run) or "" for run, _ in pairs):
            of_batch = [pair for pair in pairs if batch_of(pair[0]) == batch_id]
            for start in range(0, len(of_batch), BATCH_MAX):
                done |= await self._again(batch_id, of_batch[start : start + BATCH_MAX], asked)
        return [done[run.id] for run, _ in pairs]

    async def _again(
        self, batch_id: str, pairs: Sequence[tuple[Run, Run]], asked: Mapping[str, str]
    ) -> dict[str, bool]:
        numbers = sorted({page_of(run) for run, _ in pairs})
        for race in range(RACES_MAX):
            if race:
                await pause_after(race, self._entropy)
            stored, batch = await self.read(batch_id)
            found = await self._store.get_records([page_name(batch_id, number) for number in numbers])
            pages = {number: record for number, record in zip(numbers, found, strict=True) if record is not None}
            ids = {number: ids_of(record) for number, record in pages.items()}
            there = {(number, id) for number, members in ids.items() for id in members}
            todo = [(page_of(run), run.id) in there for run, _ in pairs]
            taken = list(compress(pairs, todo))
            answer = dict(zip((run.id for run, _ in pairs), todo, strict=True))
            if not taken:
                return answer
            instead = {run.id: new.id for run, new in taken}
            changes = [
                RecordChange(
                    page_record(batch_id, number, [instead.get(id, id) for id in ids[number]], record.version + 1),
                    record.version,
                )
                for number, record in pages.items()
                if not instead.keys().isdisjoint(ids[number])
            ]
            new = [member(again, batch_id, page_of(run)) for run, again in taken]
            now = self._clock.now()
            after = reopened(batch, [run.state for run, _ in taken])
            if await self.write(after, stored, now, runs=new, pages=changes, along=told_runs(new, asked)):
                return answer
        raise contended(f"batch {batch_id}")
