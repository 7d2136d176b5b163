"""How runs are written down, where the stores agree: numbers for words, bytes for text and ids, JSON for rare fields.

The numbers for states, causes and dispositions are part of every schema: they may grow at the end, never change.
Free text that a target reports may hold anything Python can hold, lone surrogates too, so it is kept as bytes.

Ids of ours are canonical UUIDs, kept as 16 bytes that sort as their text does. Any other text is kept too, behind
seventeen zero bytes, so that nothing that the port allows is refused; only its place among UUIDs of the same instant
is then another than that of its text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import Cause, Disposition, Event, Health, LastRun, Run, RunChange, RunPolicy, State, leased
from horarium.model.records import Record, RecordFilter
from horarium.policies import Rate

STATES = (
    State.PENDING,
    State.RUNNING,
    State.CANCELLING,
    State.COMPLETED,
    State.FAILED,
    State.CANCELLED,
    State.SKIPPED,
)
CAUSES = (Cause.SCHEDULE, Cause.CATCH_UP, Cause.MANUAL, Cause.BACKFILL, Cause.ENQUEUED, Cause.FOLLOW_UP, Cause.PING)
DISPOSITIONS: tuple[Disposition | None, ...] = (
    Disposition.RAN,
    Disposition.SKIPPED_OVERLAP,
    Disposition.SKIPPED_PAUSED,
    Disposition.MISSED,
    None,
    None,
    None,  # these three were derived from the rule: no run was ever stored with them
    Disposition.WITHDRAWN,
    Disposition.NOT_STARTED,
    Disposition.CANCELLED,
    Disposition.SKIPPED_OVERRIDE,
    Disposition.HELD,
    Disposition.REJECTED,
    Disposition.APPROVAL_EXPIRED,
)
STATE_NUMBERS = {state: number for number, state in enumerate(STATES)}
CAUSE_NUMBERS = {cause: number for number, cause in enumerate(CAUSES)}
DISPOSITION_NUMBERS: dict[Disposition | None, int | None] = {
    None: None,
    **{disposition: number for number, disposition in enumerate(DISPOSITIONS) if disposition is not None},
}

PLAIN_FIELDS = frozenset(
    ("id", "queue", "priority", "due_at", "fire_at", "created_at", "job_id", "job", "cause", "lease_seconds", "payload")
)
"""What most new runs differ in; the rest of such a run has its defaults."""

_beyond_plain = attrgetter(*(name for name in Run.__struct_fields__ if name not in PLAIN_FIELDS))
_PLAIN = _beyond_plain(Run(id="", queue="", fire_at=0, due_at=0, created_at=0))


def is_plain(run: Run) -> bool:
    """Whether all but `PLAIN_FIELDS` have their defaults."""
    return bool(_beyond_plain(run) == _PLAIN)


class Details(Struct, frozen=True, omit_defaults=True):
    """What few runs have."""

    policy: RunPolicy | None = None
    fires: int = 1
    last_fire_at: Instant | None = None
    rates: tuple[Rate, ...] = ()
    fair: str | None = None


NO_DETAILS = Details()

encode_json = msgspec.json.encode
DETAILS_KEPT_BYTES = 2_048

_details = msgspec.json.Decoder(Details).decode
_kept_details = lru_cache(maxsize=256)(_details)


def decode_details(encoded: bytes) -> Details:
    """Short ones are kept: the runs of a batch that belong to no job mostly have the same policy."""
    return _kept_details(encoded) if len(encoded) <= DETAILS_KEPT_BYTES else _details(encoded)


decode_history = msgspec.json.Decoder(tuple[Event, ...]).decode


def encode_details(run: Run) -> bytes | None:
    """The details of a run as JSON; None where it has none."""
    if run.policy is None and run.fires == 1 and run.last_fire_at is None and not run.rates and run.fair is None:
        return None
    return encode_json(Details(run.policy, run.fires, run.last_fire_at, run.rates, run.fair))


def with_details(run: Run, found: Details) -> Run:
    """The run with these."""
    return replace(
        run,
        policy=found.policy,
        fires=found.fires,
        last_fire_at=found.last_fire_at,
        rates=found.rates,
        fair=found.fair,
    )


def encode_history(run: Run) -> bytes | None:
    """The history of a run as JSON; None where it is empty."""
    return encode_json(run.history) if run.history else None


def encode_text(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")


def decode_text(blob: bytes | None) -> str | None:
    return None if blob is None else blob.decode("utf-8", "surrogatepass")


def label_text(key: str, value: str) -> str:
    """One label as one text, as it is stored and as it is looked for."""
    return json.dumps([key, value])


def label_bytes(labels: Mapping[str, str]) -> list[bytes]:
    """The labels of a record, or those asked for, in their order."""
    return [label_text(key, value).encode() for key, value in labels.items()]


def health_row(health: Health) -> tuple[Any, ...]:
    """The health of a job of which a run has ended, in the order of the columns in SQL."""
    last = health.last_run
    assert last is not None
    said = encode_id(last.id), STATE_NUMBERS[last.state], last.finished_at, encode_text(last.error)
    return (*said, health.last_success_at, health.failures_in_a_row, health.failing_since)


def decode_health(row: Sequence[Any]) -> Health:
    run_id, state, finished_at, error, last_success_at, failures, failing_since = row
    last = LastRun(decode_id(run_id), STATES[state], finished_at, decode_text(error))
    return Health(last, last_success_at, failures, failing_since)


decode_labels = msgspec.json.Decoder(dict[str, str]).decode


def decode_record(row: Sequence[Any]) -> Record:
    name, version, labels, body = row
    return Record(name=name.decode(), body=body, labels=decode_labels(labels), version=version)


def record_bounds(where: RecordFilter, after: str | None) -> tuple[bytes, bytes]:
    """The lowest name that a page may hold, and what its names lie below."""
    if after is None:
        return where.first, where.end
    if where.descending:
        return where.first, min(where.end, after.encode())
    return max(where.first, after.encode() + b"\0"), where.end


def is_unmoved(stored: Run, change: RunChange, steady: Instant) -> bool:
    """Whether a run is as the change of it assumes."""
    if stored.token != change.token or stored.state is not change.state:
        return False
    if change.held is None:
        return True
    return stored.lease_expires_at is not None and (stored.lease_expires_at > steady) is change.held


def as_written(changes: Sequence[RunChange], steady: Instant) -> Sequence[RunChange]:
    """The changes with the ends of leases that they give (`model.leased`)."""
    if not [True for change in changes if (change.run.lease_expires_at or 0) < 0]:
        return changes
    return [replace(change, run=leased(change.run, steady)) for change in changes]


def comes_alone(change: RunChange) -> bool:
    """Whether a change brings nothing along."""
    return not change.follow_ups and not change.records


_shared = attrgetter(
    "state",
    "worker",
    "lease_expires_at",
    "deadline",
    "finished_at",
    "progress",
    "error",
    "disposition",
    "history",
    "start_by",
)
_expected = attrgetter("state", "held")


def end_of_attempt(run: Run) -> tuple[Any, ...]:
    """What a change writes of how an attempt ended, in the order of the columns in SQL."""
    return (
        run.finished_at,
        run.progress,
        encode_text(run.error),
        run.result,
        DISPOSITION_NUMBERS[run.disposition],
        run.prune_at,
        encode_history(run),
        run.start_by,
    )


def are_alike(changes: Sequence[RunChange]) -> bool:
    """Whether these changes expect the same and write the same, but for id, token, due_at, attempt, started_at, result
    and prune_at: so it is where attempts that end together come to the same end. No token changes."""
    runs = [change.run for change in changes]
    shared, expected = _shared(runs[0]), _expected(changes[0])
    return (
        all(map(shared.__eq__, map(_shared, runs)))
        and all(map(expected.__eq__, map(_expected, changes)))
        and [run.token for run in runs] == [change.token for change in changes]
    )


_own = attrgetter("run.token", "run.attempt", "run.started_at", "run.result", "run.prune_at", "as_claimed")
KIND_MIN = 16
"""How many changes a kind must have, on average, for a statement of its own to cost less than one for all."""


def kinds_of_end(changes: Sequence[RunChange]) -> list[list[RunChange]]:
    """Changes that are alike, cut into neighbours that differ in id and due_at only, where due_at stays as it is: so it
    is with attempts that were claimed together. None at all, if that makes too many kinds."""
    kinds = [list(kind) for _, kind in groupby(changes, _own)]
    worth_it = len(kinds) * KIND_MIN <= len(changes)
    return kinds if worth_it and all(kind[0].as_claimed for kind in kinds) else []


_PREFIX = bytes(17)
_UUID_CHARS, _UUID_BYTES = 36, 16
_from_hex = bytes.fromhex


def encode_id(text: str) -> bytes:
    if len(text) == _UUID_CHARS and text[8] == text[13] == text[18] == text[23] == "-" and text == text.lower():
        try:
            blob = _from_hex(text.replace("-", ""))
        except ValueError:
            blob = b""
        if len(blob) == _UUID_BYTES:
            return blob
    return _PREFIX + text.encode("utf-8", "surrogatepass")


def decode_id(blob: bytes) -> str:
    if len(blob) == _UUID_BYTES:
        digits = blob.hex()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    return blob[len(_PREFIX) :].decode("utf-8", "surrogatepass")


def decode_id_digits(digits: str) -> str:
    """The id of the bytes that have these lower-case hexadecimal digits."""
    if len(digits) == 2 * _UUID_BYTES:
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    return _from_hex(digits)[len(_PREFIX) :].decode("utf-8", "surrogatepass")


MANY = 48
"""From this number on it is cheaper to encode or decode ids together."""
_DASHES = (8, 13, 18, 23)
_DIGIT_PLACES = tuple(place for place in range(_UUID_CHARS) if place not in _DASHES)


def encode_ids(texts: Sequence[str]) -> list[bytes]:
    """`encode_id` of each: many together cost a third."""
    count = len(texts)
    if count < MANY or set(map(len, texts)) != {_UUID_CHARS}:
        return list(map(encode_id, texts))
    joined, dashes = "".join(texts), "-" * count
    if any(joined[place::_UUID_CHARS] != dashes for place in _DASHES) or joined != joined.lower():
        return list(map(encode_id, texts))
    try:
        blob = _from_hex(joined.replace("-", ""))
    except ValueError:
        return list(map(encode_id, texts))
    if len(blob) != _UUID_BYTES * count:
        return list(map(encode_id, texts))
    return [blob[start : start + _UUID_BYTES] for start in range(0, len(blob), _UUID_BYTES)]


def decode_ids(digits: Sequence[str]) -> list[str]:
    """`decode_id_digits` of each, which may be in capitals: many together cost a third."""
    if len(digits) < MANY or set(map(len, digits)) != {2 * _UUID_BYTES}:
        return [decode_id_digits(each.lower()) for each in digits]
    return _dashed("".join(digits).lower().encode(), len(digits))


def decode_id_blobs(blobs: Sequence[bytes]) -> list[str]:
    """`decode_id` of each: many together cost a third."""
    if len(blobs) < MANY or set(map(len, blobs)) != {_UUID_BYTES}:
        return list(map(decode_id, blobs))
    return _dashed(b"".join(blobs).hex().encode(), len(blobs))


def _dashed(digits: bytes, count: int) -> list[str]:
    """The ids of these hexadecimal digits. The first digits of all of them are put in their places in one go, then the
    second ones, and so on."""
    chars = bytearray(b"-") * (_UUID_CHARS * count)
    for number, place in enumerate(_DIGIT_PLACES):
        chars[place::_UUID_CHARS] = digits[number :: 2 * _UUID_BYTES]
    text = chars.decode()
    return [text[start : start + _UUID_CHARS] for start in range(0, len(text), _UUID_CHARS)]
