"""Turns of fairness keys, as new runs take them: the last turn of each key is a record, written by compare-and-set
before the runs are. A crash in between costs the key these turns, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from horarium.clock import Instant
from horarium.errors import StoreUnavailable
from horarium.model import Run, State
from horarium.model.records import Record, RecordChange
from horarium.operations.writing.context import RACES_MAX, Context, pause_after
from horarium.operations.writing.gathering import Gathered
from horarium.policies import FairWeights
from horarium.ports import BATCH_MAX
from horarium.rules.fairness import Key, key_of, levels_of, take_turns, turn_later

ENDS = "fair/"
"""What the names of records begin with that hold the last turn of a key."""
QUEUES = "queue/"
"""And of those that hold what is set for a queue."""


class QueueSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The settings of a queue."""

    fair_weights: FairWeights = {}


_decode_end = msgspec.json.Decoder(int).decode
decode_queue = msgspec.json.Decoder(QueueSettings).decode


def settings_of(record: Record | None) -> QueueSettings:
    return QueueSettings() if record is None else decode_queue(record.body)


def end_of(record: Record | None) -> int:
    """The last turn of a key that a record holds."""
    return 0 if record is None else _decode_end(record.body)


def end_name(key: Key) -> str:
    queue, priority, fair = key
    return f"{ENDS}{priority}/{len(queue)}/{queue}/{fair}"


def line_of(name: str) -> tuple[str, int]:
    """The queue and the priority that the name of such a record says."""
    priority, length, rest = name.removeprefix(ENDS).split("/", 2)
    return rest[: int(length)], int(priority)


class Turns:
    """Gives runs with fairness keys their turns. Runs that come while others are given theirs are placed together."""

    def __init__(self, context: Context) -> None:
        self._store, self._clock, self._entropy = context.store, context.clock, context.entropy
        self._gathered = Gathered(self._take_all, at_once=True)

    async def taken(self, runs: Sequence[Run]) -> list[Run]:
        """These runs: each that is due at its turn, where it has a key. Where that can't be done now, and of those that
        are due later, each takes its turn a moment after it is due."""
        now = self._clock.now()
        due = [run for run in runs if run.fair is not None and run.state is State.PENDING and run.due_at <= now]
        placed: dict[str, Run] = {}
        for start in range(0, len(due), BATCH_MAX):
            try:
                placed |= await self._gathered(due[start : start + BATCH_MAX])
            except StoreUnavailable:
                break
        return [placed.get(run.id) or turn_later(run) for run in runs]

    async def _take_all(self, asked: Sequence[Sequence[Run]]) -> Sequence[Mapping[str, Run] | Exception]:
        placed: dict[str, Run] = {}
        todo = [run for runs in asked for run in runs]
        for race in range(RACES_MAX):
            if race:
                await pause_after(race, self._entropy)
            found, lost = await self._take(todo)
            placed |= {run.id: run for run in found if key_of(run) not in lost}
            todo = [run for run in todo if key_of(run) in lost]
            if not todo:
                break
        return [placed] * len(asked)

    async def _take(self, runs: Sequence[Run]) -> tuple[list[Run], set[Key]]:
        """The runs at their turns, and the keys of which others wrote the last turn meanwhile."""
        keys = list(dict.fromkeys(map(key_of, runs)))
        queues = list(dict.fromkeys(run.queue for run in runs))
        levels = list(dict.fromkeys(level for run in runs for level in levels_of(run)))
        names = [QUEUES + queue for queue in queues] + [end_name(key) for key in keys]
        found: list[Record | None] = []
        for start in range(0, len(names), BATCH_MAX):
            found += await self._store.get_records(names[start : start + BATCH_MAX])
        stored = dict(zip(keys, found[len(queues) :], strict=True))
        weights = {queue: settings_of(record).fair_weights for queue, record in zip(queues, found, strict=False)}
        firsts = dict(zip(levels, await self._store.first_due(levels), strict=True))
        now = self._clock.now()
        turns = take_turns(runs, firsts, {key: end_of(record) for key, record in stored.items()}, weights, now)
        changes = [_end_change(key, stored[key], end, now) for key, end in turns.ends.items()]
        written: list[bool] = []
        for start in range(0, len(changes), BATCH_MAX):
            written += await self._store.put_records(changes[start : start + BATCH_MAX])
        return turns.runs, {key for key, done in zip(turns.ends, written, strict=True) if not done}


def _end_change(key: Key, stored: Record | None, end: int, now: Instant) -> RecordChange:
    """The write of a key's last turn. Versions go on from the time, so that none comes twice though records of keys
    that wait for nothing are deleted."""
    before = 0 if stored is None else stored.version
    record = Record(name=end_name(key), body=msgspec.json.encode(end), version=max(before + 1, now))
    return RecordChange(record, before)
