"""Those in the simulated world who work with batches: make them, fill, close and cancel them, and do their failed runs
again, one or all; while nodes die at a write of a batch, just before it or as soon as it is carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from horarium.errors import HorariumError
from horarium.model import Run, State, Whole
from horarium.model.batches import BATCH, BATCH_ENDS, BATCH_OWED, BATCH_RUNS, Batch, BatchFollow, BatchOccasion, BatchOn
from horarium.rules.batches import decode_batch
from horarium.testing.simulate.node import SimulatedNode
from horarium.testing.simulate.watch import Books
from horarium.wire.one_offs import RunDefinition, read_run

BY_REQUEST = "cancelled by request"
PAGES_MAX, RUNS_MAX = 4, 4
"""Requests by which a batch is filled, and runs of each."""
NOBODYS = "nobodys"
"""A queue that no worker asks for: its runs fail, as not started in time."""
TARGETS = (
    {"type": "handler", "name": "alpha"},
    {"type": "handler", "name": "alpha"},
    {"type": "handler", "name": "beta"},
    {"type": "queue", "queue": "red"},
    {"type": "queue", "queue": NOBODYS},
)
ON: BatchOn = {
    BatchOccasion.FAILED: (BatchFollow(notify="chat"), BatchFollow(trigger="job-2")),
    BatchOccasion.COMPLETED: (BatchFollow(notify="ops"), BatchFollow(trigger="job-1")),
    BatchOccasion.FINISHED: (BatchFollow(notify="ops"), BatchFollow(handler="beta")),
}
NEWEST, FITS = 4, 0.8
"""Among how many batches one is chosen, and how often it is one with which something can be done."""
DIES = 0.5
"""How many of these requests meet a node that dies at a write of a batch."""


class BatchPeople:
    """Those who work with batches. `nodes`: some node that answers."""

    def __init__(self, chance: Random, books: Books, nodes: Callable[[], SimulatedNode | None]) -> None:
        self._chance = chance
        self._books = books
        self._nodes = nodes
        self._asked: dict[str, tuple[BatchOn, bool, list[RunDefinition]]] = {}
        self._acts = (
            self._create, self._create, self._add, self._close, self._close, self._cancel, self._retry, self._retry,
            self._retry, self._retry_one,
        )  # fmt: skip

    async def batch(self, node: SimulatedNode, name: str) -> None:
        """Something, to some batch."""
        act = self._chance.choice(self._acts)
        self._books.trace.note(f"batch {act.__name__}")
        if self._chance.random() >= DIES:
            await act(node)
            return
        step, before = self._chance.choice(STEPS), self._chance.random() < 0.5
        armed = {each.name: each for each in (node, self._nodes()) if each is not None}
        for each in armed.values():
            each.die_at(step, before)
        try:
            with suppress(HorariumError):
                await act(node)
            await asyncio.sleep(self._chance.random() * 2)
        finally:
            for each in armed.values():
                each.die_at(None)

    async def _create(self, node: SimulatedNode) -> None:
        """A new batch; at times a request that was made before, or while it is carried out."""
        chance, batches = self._chance, node.runtime.operations.batches
        key = chance.choice((None, None, f"batch-{chance.randrange(4)}"))
        on = {occasion: ON[occasion] for occasion in chance.sample(list(ON), chance.randrange(len(ON) + 1))}
        asked = on, chance.random() < 0.6, self._some_rows(0)
        on, is_open, rows = asked if key is None else self._asked.setdefault(key, asked)
        runs = await self._prepared(node, rows, key)
        made, _ = await node.call(batches.create(None, on, runs, open=is_open, key=key))
        if made.id not in self._books.batches.batches:
            self._books.trace.fail(f"a request was answered with batch {made.id}, which was never made")
        for _ in range(chance.randrange(PAGES_MAX) if is_open else 0):
            await node.call(batches.add(made.id, await self._prepared(node, self._some_rows(1))))

    async def _add(self, node: SimulatedNode) -> None:
        if (batch_id := self._some_batch(lambda batch: batch.closed_at is None)) is not None:
            runs = await self._prepared(node, self._some_rows(1))
            await node.call(node.runtime.operations.batches.add(batch_id, runs))

    async def _close(self, node: SimulatedNode) -> None:
        if (batch_id := self._some_batch(lambda batch: batch.closed_at is None)) is not None:
            await node.call(node.runtime.operations.batches.close(batch_id))
            if self._books.batches.batches[batch_id].closed_at is None:
                self._books.trace.fail(f"batch {batch_id} is open, though a request was answered that it is closed")

    async def _cancel(self, node: SimulatedNode) -> None:
        if (batch_id := self._some_batch()) is not None:
            open_runs = self._books.batches.open_runs(batch_id)
            await node.call(node.runtime.operations.batches.cancel(batch_id, BY_REQUEST))
            self._books.batches.acknowledged_cancel(batch_id, open_runs)

    async def _retry(self, node: SimulatedNode) -> None:
        if (batch_id := self._some_batch(self._has_failed)) is not None:
            failed = self._books.batches.failed(batch_id)
            await node.call(node.runtime.operations.batches.retry(batch_id))
            self._books.batches.acknowledged_retry(batch_id, failed)

    async def _retry_one(self, node: SimulatedNode) -> None:
        """One run of a batch, twice at the same time."""
        if (batch_id := self._some_batch(self._has_failed)) is None:
            return
        runs = (self._books.runs[id] for id in self._books.batches.members(batch_id))
        again = [run.id for run in runs if run.state in (State.FAILED, State.CANCELLED)]
        if again:
            run_id, operations = self._chance.choice(again), node.runtime.operations
            twice = (node.call(operations.runs.retry_run(run_id)) for _ in range(2))
            done = [each for each in await asyncio.gather(*twice, return_exceptions=True) if isinstance(each, Run)]
            if len(done) > 1:
                self._books.trace.fail(f"run {run_id} of batch {batch_id} was done again twice: {done}")

    def _some_rows(self, least: int) -> list[RunDefinition]:
        return [self._a_run() for _ in range(self._chance.randint(least, RUNS_MAX))]

    async def _prepared(self, node: SimulatedNode, rows: list[RunDefinition], key: str | None = None) -> list[Run]:
        keys = [key and f"{key}/{index}" for index in range(len(rows))]
        return await node.call(node.runtime.operations.one_offs.prepared(rows, keys))

    def _a_run(self) -> RunDefinition:
        chance = self._chance
        target, start = chance.choice(TARGETS), chance.choice((None, None, 4))
        fields: dict[str, Any] = {
            "target": target,
            "delay_seconds": chance.choice((0.0, 0.0, 1.0)),
            "retry": {"attempts_max": chance.randint(1, 2), "backoff_seconds": chance.choice((0, 0.5))},
            "timeouts": {"heartbeat_seconds": 1, "start_seconds": 1 if target.get("queue") == NOBODYS else start},
            "retention": {"finished_seconds": chance.choice((3_600, 5))},
        }
        if chance.random() < 0.2:
            fields["unique_key"] = f"member-{chance.randrange(6)}"
        return read_run(fields)

    def _has_failed(self, batch: Batch) -> bool:
        return bool(self._books.batches.failed(batch.id))

    def _some_batch(self, fits: Callable[[Batch], bool] = lambda batch: True) -> str | None:
        """One of the newest; for the most part one of those that fit."""
        newest = list(self._books.batches.batches.values())[-NEWEST:]
        fitting = [batch for batch in newest if fits(batch)]
        some = fitting if fitting and self._chance.random() < FITS else newest
        return self._chance.choice(some).id if some else None


async def close_all(node: SimulatedNode, books: Books) -> None:
    """No batch is open."""
    for batch in list(books.batches.batches.values()):
        if batch.closed_at is None:
            await node.call(node.runtime.operations.batches.close(batch.id))


# ---- the writes at which a node dies


def _whole(method: str, args: tuple[Any, ...]) -> Whole | None:
    """The write of a batch with all that goes with it."""
    whole = args[0] if method == "write_whole" else None
    return whole if whole is not None and any(each.record.name.startswith(BATCH) for each in whole.records) else None


def _ends_run(method: str, args: tuple[Any, ...], answer: Any = None) -> bool:
    """An end goes with its run."""
    return method == "settle_runs" and any(
        record.name.startswith(BATCH_ENDS) for change in args[0] for record in change.records
    )


def _counts(method: str, args: tuple[Any, ...], answer: Any = None) -> bool:
    """Ends are counted."""
    whole = _whole(method, args)
    return whole is not None and any(each.deleted and each.record.name.startswith(BATCH_ENDS) for each in whole.records)


def _finishes(method: str, args: tuple[Any, ...], answer: Any = None) -> bool:
    """The batch has finished."""
    whole = _whole(method, args)
    bodies = [] if whole is None else [each.record for each in whole.records if each.record.name.startswith(BATCH)]
    return any(decode_batch(record.body).finished_at is not None for record in bodies)


def _fills(method: str, args: tuple[Any, ...], answer: Any = None) -> bool:
    """Runs are added, or take the place of others."""
    whole = _whole(method, args)
    return whole is not None and any(each.record.name.startswith(BATCH_RUNS) for each in whole.records)


def _closes(method: str, args: tuple[Any, ...], answer: Any = None) -> bool:
    """Nothing but the batch is written: it is closed, or asked for all its runs."""
    return _whole(method, args) is not None and not any(
        case(method, args) for case in (_counts, _finishes, _fills, _owes)
    )


def _owes(method: str, args: tuple[Any, ...], answer: Any = None) -> bool:
    """A page of a request about all runs begins to be owed, or is carried out."""
    whole = _whole(method, args)
    records = args[0] if method == "put_records" else () if whole is None else whole.records
    return any(each.record.name.startswith(BATCH_OWED) for each in records)


STEPS = (_ends_run, _counts, _finishes, _fills, _closes, _owes)
