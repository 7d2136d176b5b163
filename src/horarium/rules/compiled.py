"""Triggers that were read from their stored form, kept for the next time; bounded by weight, not by number.

The weight is what one takes in memory, judged by its JSON form: hardly less than it really is, and up to twice as much
for most. That of a job that was deleted is evicted at once. Threads may ask at once.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any

import msgspec
from msgspec import Struct

from horarium.clock import HOUR, SECOND, Instant
from horarium.model import Job
from horarium.policies import Retention
from horarium.triggers import Trigger, read_stored

BYTES_MAX = 12 << 20
"""Bytes of memory of all triggers that are kept: some 8,000 crons."""
ENTRY_BYTES = 300
"""The size of an entry beside the trigger and its JSON form."""
TRIGGER_BYTES = 400
"""The size of each trigger, alone or within another: a cron, an interval, an instant."""
RULE_BYTES = 2_000
"""How much more one takes that is a rule or a phrase: it keeps what it came to."""
LETTER_BYTES = 18
"""The bytes that each byte of JSON stands for: itself, the value that was read, and the words for it."""

_Key = tuple[bytes, Instant, str]


class Compiled(Struct, gc=False):
    """A trigger, and what it says of itself, once that was asked for."""

    trigger: Trigger
    words: str = ""


class LastLookup(Struct, frozen=True):
    """The last question, and its answer. Asked again with this very object as its JSON form, as is usual (a job's
    trigger is asked for several times in a row), it need not be looked for."""

    spec: dict[str, Any]
    anchor: Instant
    seed: str
    found: Compiled


class CompiledTriggers:
    """The most recently used triggers, by their JSON form, anchor and seed."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[_Key, Compiled] = OrderedDict()
        self._lock = Lock()
        self._last: LastLookup | None = None
        self.weight = 0

    @staticmethod
    def weigh(json: bytes) -> int:
        """About how many bytes a trigger of this JSON form takes, with what it says of itself and all it keeps."""
        rules = json.count(b'"type":"rrule"') + json.count(b'"type":"phrase"')
        own = json.count(b'"type"') * TRIGGER_BYTES + rules * RULE_BYTES
        return ENTRY_BYTES + own + LETTER_BYTES * len(json)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, spec: dict[str, Any], anchor: Instant, seed: str) -> Trigger:
        """The trigger of a stored JSON form, anchored and seeded."""
        return self._found(spec, anchor, seed).trigger

    def words(self, spec: dict[str, Any], anchor: Instant, seed: str) -> str:
        found = self._found(spec, anchor, seed)
        if not found.words:
            found.words = found.trigger.words()
        return found.words

    def _found(self, spec: dict[str, Any], anchor: Instant, seed: str) -> Compiled:
        last = self._last
        if last is not None and last.spec is spec and last.anchor == anchor and last.seed == seed:
            return last.found
        key = (msgspec.json.encode(spec), anchor, seed)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
        found = kept or self._made(key, read_stored(spec))
        self._last = LastLookup(spec, anchor, seed, found)
        return found

    def know(self, trigger: Trigger, spec: dict[str, Any], anchor: Instant, seed: str) -> None:
        """Keep a trigger that was read already, under the JSON form that it is stored in."""
        made = self._made((msgspec.json.encode(spec), anchor, seed), trigger)
        self._last = LastLookup(spec, anchor, seed, made)

    def forget(self, spec: dict[str, Any], anchor: Instant, seed: str) -> None:
        """This one will hardly be asked for again."""
        key = (msgspec.json.encode(spec), anchor, seed)
        with self._lock:
            if self._kept.pop(key, None) is not None:
                self.weight -= self.weigh(key[0])
        self._last = None

    def _made(self, key: _Key, trigger: Trigger) -> Compiled:
        _, anchor, seed = key
        made = Compiled(trigger.seeded(seed).anchored(anchor))
        with self._lock:
            self._keep(key, made)
        return made

    def _keep(self, key: _Key, made: Compiled) -> None:
        if self._kept.setdefault(key, made) is made:
            self.weight += self.weigh(key[0])
        while self.weight > self._bytes_max:
            oldest, _ = self._kept.popitem(last=False)
            self.weight -= self.weigh(oldest[0])


_triggers = CompiledTriggers()
_NESTING = frozenset({"except", "between", "phrase"})
"""The types of triggers that may hold one which counts from an end."""
KEPT_BEYOND = HOUR
"""How much longer than until the next run is due the last one is kept."""


def trigger_of(job: Job) -> Trigger:
    """The job's trigger as a value, anchored and seeded for this job."""
    return _triggers.get(job.trigger, job.anchor_at, job.name)


def trigger_for(spec: dict[str, Any], anchor: Instant, seed: str) -> Trigger:
    """A trigger that is no job's, anchored and seeded."""
    return _triggers.get(spec, anchor, seed)


def know_trigger(job: Job, trigger: Trigger) -> None:
    """This is the job's trigger, just read: it need not be read again."""
    _triggers.know(trigger, job.trigger, job.anchor_at, job.name)


def forget_trigger(job: Job) -> None:
    """The job was deleted."""
    _triggers.forget(job.trigger, job.anchor_at, job.name)


def words_of(job: Job) -> str:
    return _triggers.words(job.trigger, job.anchor_at, job.name)


def after_end(job: Job) -> int | None:
    """How long after the end of its last run the job fires, in microseconds; None: it counts from no end."""
    kind = job.trigger.get("type")
    if kind == "interval":
        return round(job.trigger["every_seconds"] * SECOND) if job.trigger.get("from") == "end" else None
    return trigger_of(job).after_end if kind in _NESTING else None


def retention_of_job(job: Job) -> Retention:
    """How long its runs are kept: those of a job that counts from the end of the last one at least until the next."""
    delay, retention = after_end(job), job.retention
    if delay is None:
        return retention
    seconds, runs = retention.finished_seconds, retention.runs_max
    kept = None if seconds is None else max(seconds, (delay + KEPT_BEYOND) / SECOND)
    return Retention(kept, None if runs is None else max(runs, 1))


__all__ = [
    "BYTES_MAX",
    "CompiledTriggers",
    "after_end",
    "forget_trigger",
    "know_trigger",
    "retention_of_job",
    "trigger_for",
    "trigger_of",
    "words_of",
]
