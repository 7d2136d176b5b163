"""Records: everything that is stored beside jobs and runs (a key, a channel, a version of a job, an audit entry).

A record is a name, a version and a body that no store reads. Its name says what it is, as a path does: `key/ci`,
`version/JOB_ID/0000000007`, `audit/...`. Names are ordered by code point, and lists, bounds and forgetting follow that
order. So a kind that grows with time has `instant_key` behind its prefix: then newest first is a walk down the names, a
time span is a pair of bounds, and old ones are deleted from below.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from horarium.clock import Instant


class Record(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One record. `name` and `labels` hold any text without lone surrogates; `labels` are what a list may ask for;
    `body` is any bytes. `version` grows with every write: the writer names the version that it read."""

    name: str
    body: bytes
    labels: Mapping[str, str] = {}
    version: int = 1

    def removal(self, records: tuple[Record, ...] = ()) -> RecordChange:
        """Its removal, if it still is as it was read."""
        return RecordChange(self, self.version, deleted=True, records=records)


class RecordChange(Struct, frozen=True):
    """Write `record` as it is, version included, if the stored one of that name has the version `expected` (0: there is
    none). `deleted`: remove it instead. `records` are appended with it, or not at all."""

    record: Record
    expected: int = 0
    deleted: bool = False
    records: tuple[Record, ...] = ()


def put_over(stored: Record | None, name: str, body: bytes, records: tuple[Record, ...] = ()) -> RecordChange:
    """The write of this body under a name: over the record that was read there, or where there is none."""
    version = 0 if stored is None else stored.version
    return RecordChange(Record(name=name, body=body, version=version + 1), version, records=records)


class RecordFilter(Struct, frozen=True):
    """Which records to list: those whose name begins with `prefix`, and of these, if given, the ones with the rest of
    the name at or above `since` and below `until`. Every pair of `labels` must match; the first is walked along, so
    name the rarest first. `descending`: from the highest name down."""

    prefix: str = ""
    since: str = ""
    until: str | None = None
    labels: Mapping[str, str] = {}
    descending: bool = False

    @property
    def first(self) -> bytes:
        """The lowest name that may match, in UTF-8, which is ordered as code points are."""
        return (self.prefix + self.since).encode()

    @property
    def end(self) -> bytes:
        """What every name that matches lies below. No UTF-8 holds the byte 0xff."""
        end = self.prefix.encode() + b"\xff"
        return end if self.until is None else min(end, (self.prefix + self.until).encode())


def instant_key(at: Instant, beside: str = "") -> str:
    """Text that is ordered as instants are; `beside` tells apart what happened at the same one. As a bound, leave it
    out: then it lies below every key of that instant."""
    return f"{at:016x}-{beside}"


def key_instant(key: str) -> Instant:
    return int(key.partition("-")[0], 16)
