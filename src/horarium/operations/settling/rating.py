"""The state of rate limits: one record a key, written by compare-and-set before an attempt that it lets in is handed
out. A crash in between leaves it emptier than it need be, never fuller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from horarium.clock import Instant, to_micros
from horarium.errors import StoreUnavailable
from horarium.model import EventKind, Run, State
from horarium.model.records import Record, RecordChange
from horarium.operations.settling.turns import Turns
from horarium.operations.writing.context import Context
from horarium.ports import BATCH_MAX
from horarium.rules.rates import Admitted, Bucket, admit, line_up, rates_of, shut, waiting

PREFIX = "rate/"
CHANGED = "rate-change/"
"""Markers of changes of a limit that are still to be carried to the runs that wait for it."""
RACES_MAX = 10
CONTENDED = 0.1
"""Seconds after which a run is tried again whose key others wrote all the time."""

Rule = Callable[[Mapping[str, Bucket], Sequence[Run], Instant, Instant], Admitted]

decode_bucket = msgspec.json.Decoder(Bucket).decode


def bucket_of(record: Record | None) -> Bucket:
    """The state that a record holds; without one, a key of which nothing was taken."""
    return Bucket() if record is None else decode_bucket(record.body)


def bucket_change(key: str, stored: Record | None, bucket: Bucket, steady: Instant) -> RecordChange:
    """The write of a key's state. Versions go on from the steady time, so that none comes twice, though idle keys are
    deleted."""
    before = 0 if stored is None else stored.version
    record = Record(name=PREFIX + key, body=msgspec.json.encode(bucket), version=max(before + 1, steady))
    return RecordChange(record, before)


class Rating:
    """Takes places under rate limits."""

    def __init__(self, context: Context) -> None:
        self._store, self._clock = context.store, context.clock
        self._turns = Turns(context)

    async def admit(self, runs: Sequence[Run]) -> Admitted:
        """Which of these claimed runs may begin; the others as they are to wait."""
        whole, todo = Admitted({}, [], {}), list(runs)
        for _ in range(RACES_MAX):
            if not todo:
                return whole
            admitted, lost = await self._decide(admit, todo)
            todo = [run for run in todo if any(rate.key in lost for rate in run.rates)]
            again = {run.id for run in todo}
            whole.turns.update({id: turn for id, turn in admitted.turns.items() if id not in again})
            whole.waiting.extend(run for run in admitted.waiting if run.id not in again)
        now = self._clock.now()
        whole.waiting.extend(waiting(run, run.rates[0].key, now + to_micros(CONTENDED), now) for run in todo)
        return whole

    async def lined_up(self, runs: Sequence[Run]) -> list[Run]:
        """New runs, each due at its place in the line of its rate limits where there is one, else at the turn of its
        fairness key. Where that can't be done now, they are given one once they are claimed, or due."""
        if not any(run.rates or run.fair is not None for run in runs):
            return list(runs)
        now = self._clock.now()
        due = [run for run in runs if run.rates and run.state is State.PENDING and run.due_at <= now]
        placed: dict[str, Run] = {}
        for start in range(0, len(due), BATCH_MAX):
            try:
                admitted, lost = await self._decide(line_up, due[start : start + BATCH_MAX])
            except StoreUnavailable:
                break
            placed |= {run.id: run for run in admitted.waiting if not any(rate.key in lost for rate in run.rates)}
        lined = [placed.get(run.id, run) for run in runs] if placed else list(runs)
        return await self._turns.taken(lined) if any(run.fair is not None for run in lined) else lined

    async def shut(self, runs: Sequence[Run]) -> None:
        """These runs were written. Where a target asked for a pause, its keys are shut until then."""
        until: dict[str, Instant] = {}
        for run in runs:
            if run.rates and run.history and run.history[-1].kind is EventKind.THROTTLED:
                until.update({key: max(until.get(key, 0), run.due_at) for key in rates_of([run])})

        def shutting(known: Mapping[str, Bucket], now: Instant, steady: Instant) -> Mapping[str, Bucket]:
            return {key: shut(bucket, until[key] + steady - now) for key, bucket in known.items()}

        keys = list(until)
        for _ in range(RACES_MAX):
            if not keys:
                return
            keys = await self._write(keys, shutting)

    async def shut_for(self, runs: Sequence[Run]) -> set[str]:
        """The ids of those of these runs of which a key is shut by now."""
        stored, steady = await self._stored(rates_of(runs)), self._clock.steady()
        shut = {key for key, record in stored.items() if bucket_of(record).shut_until > steady}
        return {run.id for run in runs if not shut.isdisjoint(rates_of([run]))}

    async def _stored(self, keys: Sequence[str]) -> dict[str, Record | None]:
        names = [PREFIX + key for key in keys]
        found: list[Record | None] = []
        for start in range(0, len(names), BATCH_MAX):
            found += await self._store.get_records(names[start : start + BATCH_MAX])
        return dict(zip(keys, found, strict=True))

    async def _decide(self, rule: Rule, runs: Sequence[Run]) -> tuple[Admitted, list[str]]:
        """What a rule makes of these runs, and the keys of which the write lost a race."""
        decided: list[Admitted] = []

        def buckets(known: Mapping[str, Bucket], now: Instant, steady: Instant) -> Mapping[str, Bucket]:
            decided.append(rule(known, runs, now, steady))
            return decided[0].buckets

        lost = await self._write(rates_of(runs), buckets)
        return decided[0], lost

    async def _write(
        self, keys: Sequence[str], rule: Callable[[Mapping[str, Bucket], Instant, Instant], Mapping[str, Bucket]]
    ) -> list[str]:
        """Change the states of these keys. Those of which the write lost a race."""
        stored = await self._stored(keys)
        known = {key: bucket_of(record) for key, record in stored.items()}
        now, steady = self._clock.now(), self._clock.steady()
        wanted = {key: bucket for key, bucket in rule(known, now, steady).items() if bucket != known[key]}
        changes = [bucket_change(key, stored[key], bucket, steady) for key, bucket in wanted.items()]
        written: list[bool] = []
        for start in range(0, len(changes), BATCH_MAX):
            written += await self._store.put_records(changes[start : start + BATCH_MAX])
        return [key for key, done in zip(wanted, written, strict=True) if not done]
