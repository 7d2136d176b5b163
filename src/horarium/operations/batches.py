"""Requests about batches: made, filled, closed, shown, cancelled, and their failed runs done again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from horarium.access.acting import bound_caller, who_acts
from horarium.access.roles import Principal
from horarium.clock import Instant, to_micros
from horarium.errors import Conflict, Forbidden, NotFound, StateConflict
from horarium.model import Run, RunFollow, State, Whole, uuid7, uuid7s
from horarium.model.batches import BATCH, BATCH_ENDS, BATCH_KEYS, BATCH_OWED, Batch, BatchOn, BatchOwed, BatchState
from horarium.model.identity import is_request_key
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.operations.bounds.reaching import key_reused, may_reach_job, require_holder, within_reach
from horarium.operations.bounds.telling import require_batch_channels
from horarium.operations.runs.bulk import CANCELLED, Bulk, Selection
from horarium.operations.runs.runs import RunOperations, fresh_run
from horarium.operations.settling.batching import BATCHES, BATCHES_FINISHED, Batching
from horarium.operations.writing.auditing import Records, require_reach, told
from horarium.operations.writing.context import RACES_MAX, Context, contended, pause_after
from horarium.operations.writing.keeping import page_under
from horarium.policies import RETENTION_SECONDS_DEFAULT
from horarium.ports import BATCH_MAX, PAGE_MAX, Page, Store
from horarium.rules.batches import (
    check_on,
    counted,
    decode_batch,
    decode_owed,
    ids_of,
    member,
    owed_record,
    page_name,
    page_record,
    reopened,
    told_of,
)

LOOK_SECONDS = 1.0
QUEUES_MAX = 100
"""Different queues of the runs of one batch."""
PAGES_LOOKED_AT = 10
"""Pages of a batch, of up to a thousand runs each, that a retry looks through for one that failed and is kept."""
REASON = "its batch was cancelled"


class Batches:
    """Batches of one namespace. Raises the errors of `errors`, nothing else."""

    def __init__(self, context: Context, runs: RunOperations, bulk: Bulk) -> None:
        self._store, self._clock, self._signal, self._entropy = context
        self._runs, self._bulk = runs, bulk
        self._batching: Batching = runs.batching

    # ---- made and filled

    async def create(
        self,
        name: str | None,
        on: BatchOn,
        runs: Sequence[Run] = (),
        *,
        open: bool = False,
        key: str | None = None,
        then: tuple[RunFollow, ...] = (),
    ) -> tuple[Batch, list[Run]]:
        """A new batch of these runs, a thousand at most; `open`: more may be added. It, and the runs, as in `add`.
        Raises InvalidRequest, Conflict where two of them have one unique key. `key`: that of the request."""
        check_on(on)
        if made := await self._made(key, name, on, runs):
            return made
        origin, now = who_acts(), self._clock.now()
        await self._require_followed(on)
        await require_batch_channels(self._store, on)
        batch = Batch(
            id=uuid7(now, self._entropy(10)),
            created_at=now,
            by=None if origin is None else origin.principal.subject,
            name=name,
            on=on,
            closed_at=None if open else now,
            key=key,
            then=then,
        )
        return await self._filled(batch, runs)

    async def add(self, batch_id: str, runs: Sequence[Run]) -> tuple[Batch, list[Run]]:
        """Add these runs, a thousand at most, together. The batch, and the runs, or those that hold their unique keys
        instead. Raises NotFound; StateConflict for one that is closed."""
        return await self._filled(batch_id, runs)

    async def _filled(self, to: Batch | str, runs: Sequence[Run]) -> tuple[Batch, list[Run]]:
        assert len(runs) <= BATCH_MAX, len(runs)
        require_reach(*runs)
        keys = [run.unique_key for run in runs if run.unique_key is not None]
        if len(set(keys)) < len(keys):
            raise Conflict("unique_key: two of these runs have the same", field="unique_key")
        held: dict[str, Run] = {}
        for race in range(RACES_MAX):
            if race:
                await pause_after(race, self._entropy)
                if isinstance(to, Batch) and (made := await self._made(to.key, to.name, to.on, runs)):
                    return made
                held = await self._holders(runs)
            stored, batch = await self._reached(to) if isinstance(to, str) else (None, to)
            if stored is not None and batch.state is not BatchState.OPEN:
                raise StateConflict(f"batch {batch.id} is {batch.state}; it takes no more runs")
            written = await self._fill(batch, stored, [run for run in runs if run.id not in held])
            if written is not None:
                return written, [held.get(run.id, run) for run in runs]
        raise contended("this batch")

    async def _made(
        self, key: str | None, name: str | None, on: BatchOn, runs: Sequence[Run]
    ) -> tuple[Batch, list[Run]] | None:
        """The answer to a request with this key that was carried out before. Raises InvalidRequest for one that asked
        for something else."""
        record = None if key is None else (await self._store.get_records([BATCH_KEYS + key]))[0]
        if record is None:
            return None
        held, batch = await self._holders(runs), await self.get(record.body.decode())
        made = await _ids_in_page(self._store, batch.id, 0) if runs else ()
        least = sum(is_request_key(run.unique_key) for run in runs)  # others may have been held by runs from before
        if (batch.name, batch.on) != (name, on) or not least <= len(made) <= len(runs):
            raise key_reused(f"batch {batch.id}")
        return batch, [held.get(run.id, run) for run in runs]

    async def _fill(self, batch: Batch, stored: Record | None, runs: Sequence[Run]) -> Batch | None:
        """One write of the batch with these runs."""
        now, number = self._clock.now(), batch.pages
        after = replace(
            batch,
            total=batch.total + len(runs),
            pages=number + bool(runs),
            queues=tuple(sorted({*batch.queues, *(run.queue for run in runs)})),
        )
        if len(after.queues) > QUEUES_MAX:
            raise Conflict(f"batch {batch.id}: its runs are in {len(after.queues)} queues; at most {QUEUES_MAX}")
        pages = [RecordChange(page_record(batch.id, number, [run.id for run in runs]))] if runs else []
        if stored is None and batch.key is not None:
            pages.append(RecordChange(Record(name=BATCH_KEYS + batch.key, body=batch.id.encode())))
        line = _told("add" if stored is not None else "create", batch if stored is not None else None, after, now)
        members = [member(run, batch.id, number) for run in runs]
        return await self._batching.write(after, stored, now, runs=members, pages=pages, told=line)

    async def _holders(self, runs: Sequence[Run]) -> dict[str, Run]:
        """The runs that hold the unique keys of these, by the ids of these."""
        keyed = [run for run in runs if run.unique_key is not None]
        found = [(run, await self._store.get_run_by_key(run.unique_key or "")) for run in keyed]
        for run, holder in found:
            if holder is not None:
                await require_holder(self._store, holder, run)
        return {run.id: holder for run, holder in found if holder is not None}

    # ---- shown

    async def get(self, batch_id: str, wait_seconds: float = 0) -> Batch:
        """The batch, its counts as of now; or once it has finished, or after that time. Raises NotFound."""
        told = asyncio.Event()
        stop = self._signal.subscribe(BATCHES_FINISHED, told.set)
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_seconds
        try:
            while True:
                told.clear()
                _, batch = await self._reached(batch_id)
                left = until - loop.time()
                if batch.finished_at is not None or left <= 0 or self._runs.waiting.closed:
                    return await self._with_ends(batch)
                await _wait(told, min(left, LOOK_SECONDS))
        finally:
            stop()

    async def page(self, state: BatchState | None, after: str | None, limit: int, text: str = "") -> Page[Batch]:
        """Batches, the newest first; those with `text` in their name or in what follows. A page may be short."""
        where = RecordFilter(BATCH, labels={} if state is None else {"state": state}, descending=True)
        page = await page_under(self._store, where, BATCH, after, limit)
        read, sought = (decode_batch(record.body) for _, record in page.items), text.casefold()
        found = [batch for batch in read if may_see(bound_caller(), batch) and _speaks_of(batch, sought)]
        return Page(tuple([await self._with_ends(batch) for batch in found]), page.next_after)

    async def runs(self, batch_id: str, after: str | None, limit: int) -> Page[Run]:
        """Its runs that are kept, in the order in which they were added; `after`: how many were passed."""
        _, batch = await self._reached(batch_id)
        start, limit = int(after or 0), min(limit, PAGE_MAX)
        first, skipped, found = start // BATCH_MAX, start % BATCH_MAX, list[Run]()
        for number in range(first, batch.pages):
            ids = (await _ids_in_page(self._store, batch_id, number))[skipped : skipped + limit - len(found)]
            found += (run for run in await self._store.get_runs(ids) if run is not None)
            start = number * BATCH_MAX + skipped + len(ids)
            if len(found) >= limit:
                return Page(tuple(found), str(start))
            skipped = 0
        return Page(tuple(found))

    async def _with_ends(self, batch: Batch) -> Batch:
        """With ends that are not counted yet."""
        ends = await self._store.list_records(RecordFilter(f"{BATCH_ENDS}{batch.id}/"), None, PAGE_MAX)
        return counted(batch, ends.items)

    # ---- closed, cancelled, done again

    async def close(self, batch_id: str) -> Batch:
        """No more runs are added: it finishes once all have ended. Closing it again changes nothing. Raises
        NotFound."""
        return await self._changed(batch_id, "close")

    async def _changed(self, batch_id: str, action: str, owed: BatchOwed | None = None) -> Batch:
        """One write of the batch, which is closed by it, unless it is to be done again; and with it what is owed, if
        one page is not all. Raises StateConflict while the rest of another request is."""
        for race in range(RACES_MAX):
            if race:
                await pause_after(race, self._entropy)
            stored, batch = await self._reached(batch_id)
            now, pages = self._clock.now(), list[RecordChange]()
            after = batch if batch.closed_at is not None or action == "retry" else replace(batch, closed_at=now)
            if owed is not None and batch.pages > 1 and (action == "cancel" or (await self._with_ends(batch)).failed):
                pages = [await self._owed(batch_id, owed)]
                after = after if action == "cancel" else replace(reopened(after, ()), retrying=True)
            done = after == batch and action == "close"
            line = _told(action, batch, after, now)
            if done or await self._batching.write(after, stored, now, pages=pages, told=line):
                if pages:
                    self._signal.publish(BATCHES)
                return await self.get(batch_id)
        raise contended(f"batch {batch_id}")

    async def cancel(self, batch_id: str, reason: str | None = None) -> Batch:
        """Close it, and cancel its runs that have not ended: pending ones at once, running ones are asked to stop; of
        more than a thousand, the rest soon after. Raises NotFound, StateConflict as `_changed` does."""
        owed = BatchOwed("cancel", self._clock.now(), reason=reason)
        await self._changed(batch_id, "cancel", owed)
        await self._carry_out(batch_id, owed)
        await self._batching.count(batch_id)
        return await self.get(batch_id)

    async def retry(self, batch_id: str) -> Batch:
        """Do its failed runs again: each in the place of the one that failed. A batch that had finished is to finish
        again. Of more than a thousand runs, the rest soon after. Raises as `cancel` does, and StateConflict where none
        of them is kept any longer."""
        owed = BatchOwed("retry", self._clock.now())
        _, batch = await self._reached(batch_id)
        if (await self._with_ends(batch)).failed and not await _keeps_failed(self._store, batch):
            raise StateConflict(f"batch {batch_id}: its failed runs are kept no longer, so that none can be done again")
        await self._changed(batch_id, "retry", owed)
        await self._carry_out(batch_id, owed)
        return await self.get(batch_id)

    # ---- page by page

    async def _owed(self, batch_id: str, owed: BatchOwed) -> RecordChange:
        """The record of what is owed. Raises StateConflict while the rest of another request is."""
        (there,) = await self._store.get_records([BATCH_OWED + batch_id])
        if there is not None and decode_owed(there.body).action != owed.action:
            raise StateConflict(f"batch {batch_id}: its {decode_owed(there.body).action} is still being carried out")
        version = 0 if there is None else there.version
        return RecordChange(owed_record(batch_id, owed, version + 1), version)

    async def _carry_out(self, batch_id: str, owed: BatchOwed) -> None:
        """One page of it."""
        ids = await _ids_in_page(self._store, batch_id, owed.page)
        if owed.action == "cancel":
            await self._bulk.cancel(Selection(ids=tuple(ids)), CANCELLED, None, None, owed.reason or REASON)
            return
        stored = await self._store.get_runs(ids)
        failed = [run for run in stored if run is not None and run.state is State.FAILED]
        if not owed.page:  # those of it that were done again may have failed once more
            failed = [run for run in failed if run.created_at <= owed.at]
        if not (failed := list(await within_reach(self._store, failed))):
            return
        now = self._clock.now()
        new = uuid7s(now, self._entropy(10), len(failed))
        again = [
            replace(fresh_run(run, id=id, now=now), created_at=max(now, owed.at + 1))
            for run, id in zip(failed, new, strict=True)
        ]
        again = await self._runs.lined_up(await self._runs.holding.all_said(again, None))
        pairs = list(zip(failed, again, strict=True))
        asked = {new.id: f"run.retry run/{run.id}" for run, new in pairs}
        await self._batching.again(pairs, asked)

    async def carry_on(self, record: Record) -> bool:
        """The next page of what a record says is owed. False: another did it just then."""
        batch_id, owed = record.name.removeprefix(BATCH_OWED), decode_owed(record.body)
        (stored,) = await self._store.get_records([BATCH + batch_id])
        batch = None if stored is None else decode_batch(stored.body)
        if stored is not None and batch is not None and owed.page < batch.pages:
            await self._carry_out(batch_id, owed)
            rest = replace(owed, page=owed.page + 1)
            return await self._store.put_records(
                [RecordChange(owed_record(batch_id, rest, record.version + 1), record.version)]
            ) == [True]
        gone = record.removal()
        if stored is None or batch is None:
            return await self._store.put_records([gone]) == [True]
        after, now = replace(batch, retrying=False), self._clock.now()
        return await self._batching.write(after, stored, now, pages=[gone]) is not None

    async def prune(self, now: Instant, after: str | None) -> str | None:
        """Of a page of batches, delete those that finished long before `now`, each with what leads to its runs. Where
        to go on."""
        until = now - to_micros(RETENTION_SECONDS_DEFAULT)
        page = await self._store.list_records(
            RecordFilter(BATCH, labels={"state": BatchState.FINISHED}), after, PAGE_MAX
        )
        for record in page.items:
            batch = decode_batch(record.body)
            if (batch.finished_at or until) < until:
                names = [page_name(batch.id, number) for number in range(batch.pages)]
                names += [] if batch.key is None else [BATCH_KEYS + batch.key]
                found = [each for each in await self._store.get_records(names) if each is not None] if names else []
                gone = tuple(each.removal() for each in (*found, record))
                await self._store.write_whole(Whole(records=gone), self._clock.steady())
        return page.next_after

    # ---- callers that are bound to queues

    async def _reached(self, batch_id: str) -> tuple[Record, Batch]:
        """Raises NotFound, for a batch that who reads or acts may not see too."""
        stored, batch = await self._batching.read(batch_id)
        if not may_see(bound_caller(), batch):
            raise NotFound(f"there is no batch {batch_id!r}")
        return stored, batch

    async def _require_followed(self, on: BatchOn) -> None:
        """Raises Forbidden if who acts is bound, and what is to follow is not within that."""
        if (caller := bound_caller()) is None:
            return
        follows = [each for actions in on.values() for each in actions]
        names = sorted({each.trigger for each in follows if each.trigger is not None})
        jobs = await self._store.get_jobs(names) if names else []
        reached = [job is not None and may_reach_job(caller, job) for job in jobs]
        reached += [caller.may_reach(f"handler/{each.handler}", {}) for each in follows if each.handler is not None]
        if not all(reached):
            raise Forbidden(f"{caller.name} is bound {caller.bounds}, and what is to follow is not there")


def may_see(caller: Principal | None, batch: Batch) -> bool:
    """Whether this bound caller (None: it is not bound) may see the batch: its own, and those whose runs are all in its
    queues."""
    if caller is None or batch.by == caller.subject:
        return True
    queues = batch.queues if caller.labels is None else ()
    return bool(queues) and all(caller.may_reach(queue, {}) for queue in queues)


def _speaks_of(batch: Batch, sought: str) -> bool:
    follows = (each.action for actions in batch.on.values() for each in actions)
    return any(sought in text.casefold() for text in (batch.name or "", *follows))


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


def _told(action: str, before: Batch | None, after: Batch, now: Instant) -> Records:
    return told(
        f"batch.{action}",
        f"batch/{after.id}",
        now,
        before=None if before is None else _shown(before),
        after=_shown(after),
    )


def _shown(batch: Batch) -> dict[str, object]:
    return {"name": batch.name, "state": batch.state, "total": told_of(batch).total}


async def _ids_in_page(store: Store, batch_id: str, number: int) -> list[str]:
    (record,) = await store.get_records([page_name(batch_id, number)])
    return [] if record is None else ids_of(record)


async def _keeps_failed(store: Store, batch: Batch) -> bool:
    """Whether a failed run of the batch is kept, as far as its first pages tell."""
    for number in range(min(batch.pages, PAGES_LOOKED_AT)):
        runs = await store.get_runs(await _ids_in_page(store, batch.id, number))
        if any(run is not None and run.state is State.FAILED for run in runs):
            return True
    return batch.pages > PAGES_LOOKED_AT
