"""Named keys: made once, shown once, kept as a hash.

A key is 256 random bits, so a fast hash keeps it safe. It is found by its hash, which is a label of its record; the
answer, found or not, is cached for a few seconds: so a request costs little, and a key that was revoked on another node
goes on for no longer than that.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.access.budgets import What, forget, spend
from horarium.access.remembered import Remembered
from horarium.access.roles import DOOR, RESERVED, Principal, Role, principal
from horarium.clock import MINUTE, Clock, Instant
from horarium.errors import AlreadyExists, InvalidRequest, NotFound, StoreUnavailable
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.ports import Page, Store
from horarium.siblings import ALONE, Siblings

PREFIX = "key/"
TOKEN_PREFIX = "hk_"
ENTROPY_BYTES = 32
QUEUES_MAX = 100
TRIES_MAX = 5

REVOKED = "key-revoked"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}", re.ASCII)


class Key(Struct, frozen=True, kw_only=True):
    """The stored form of a key. `digest`: SHA-256, in hexadecimal. `last_used_at`: to the minute."""

    name: str
    digest: str
    roles: tuple[Role, ...]
    created_at: Instant
    queues: tuple[str, ...] | None = None
    labels: dict[str, str] | None = None
    calls_per_hour: int | None = None
    runs_per_day: int | None = None
    expires_at: Instant | None = None
    last_used_at: Instant | None = None

    def opens(self, now: Instant) -> bool:
        """Whether its time is not over."""
        return self.expires_at is None or now < self.expires_at

    def principal(self) -> Principal:
        """Who bears it."""
        found = principal(self.name, self.name, "key", self.roles, queues=self.queues, labels=self.labels)
        return replace(found, calls_per_hour=self.calls_per_hour, runs_per_day=self.runs_per_day)


class Known(Struct, frozen=True):
    """A key as it was read, of this version, and who bears it."""

    key: Key
    version: int
    principal: Principal


_decode = msgspec.json.Decoder(Key).decode


def digest_of(token: str) -> str:
    """The stored part of a token, of a key or a session."""
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def new_token(entropy: bytes) -> str:
    """A token of these random bytes."""
    assert len(entropy) >= ENTROPY_BYTES, f"a key takes {ENTROPY_BYTES} random bytes, not {len(entropy)}"
    return TOKEN_PREFIX + urlsafe_b64encode(entropy).decode().rstrip("=")


class Keys:
    """The keys of a store."""

    def __init__(self, store: Store, clock: Clock, siblings: Siblings = ALONE) -> None:
        self._store, self._clock, self._siblings = store, clock, siblings
        self._remembered: Remembered[Known | None] = Remembered(clock)
        siblings.hear(REVOKED, self._forget)

    # -- what an admin does

    async def add(self, key: Key, records: Sequence[Record] = ()) -> None:
        """Keep a key, and `records` with it. Raises InvalidRequest, AlreadyExists."""
        _check(key, self._clock.now())
        (added,) = await self._store.put_records([RecordChange(_record(key), records=tuple(records))])
        if not added and await keys_named(self._store, [key.name]) != [key]:
            raise AlreadyExists(f"there is a key {key.name!r}; revoke it first, or take another name", field="name")
        self._remembered.forget(key.digest)

    async def revoke(self, name: str, records: Sequence[Record] = ()) -> Key:
        """Remove a key, and keep `records` with that. Raises NotFound."""
        for _ in range(TRIES_MAX):
            (stored,) = await self._store.get_records([PREFIX + name])
            if stored is None:
                break
            if await self._store.put_records([stored.removal(tuple(records))]) == [True]:
                key = _decode(stored.body)
                self._remembered.forget(key.digest)
                await self._siblings.ask(REVOKED, key.digest.encode())
                await forget(self._store, name)
                return key
        raise NotFound(f"there is no key {name!r}", field="name")

    async def page(self, after: str | None, limit: int) -> Page[Key]:
        """Keys by name, beginning after this name."""
        page = await self._store.list_records(RecordFilter(PREFIX), None if after is None else PREFIX + after, limit)
        next_after = None if page.next_after is None else page.next_after.removeprefix(PREFIX)
        return Page(tuple(_decode(record.body) for record in page.items), next_after)

    async def name_of(self, digest: str) -> str | None:
        known = await self._remembered.find(digest, self._by_digest)
        return None if known is None else known.key.name

    def _forget(self, digest: bytes) -> bytes:
        """Another process of this server revoked it."""
        self._remembered.forget(digest.decode())
        return b""

    # -- what a request needs

    async def find(self, token: str) -> Principal | None:
        """Who bears this token; None if it is no key of ours, or its time is over."""
        return await self.find_digest(digest_of(token)) if token.startswith(TOKEN_PREFIX) else None

    async def find_digest(self, digest: str) -> Principal | None:
        """Who bears the token of this digest."""
        now = self._clock.now()
        known = await self._remembered.find(digest, self._by_digest)
        if known is None:
            return None
        key = known.key
        if not key.opens(now):
            return None
        if key.last_used_at is None or key.last_used_at < now - now % MINUTE:
            await self._note_use(digest, known, now - now % MINUTE)
        return known.principal

    async def ended(self, digest: str) -> Key | None:
        """The key of this digest whose time is over."""
        known = await self._remembered.find(digest, self._by_digest)
        return None if known is None or known.key.opens(self._clock.now()) else known.key

    async def spend(self, caller: Principal, what: What, count: int = 1) -> None:
        """Count these against the caller's budget. Raises OverBudget."""
        await spend(self._store, self._clock, caller, what, count)

    async def _by_digest(self, digest: str) -> Known | None:
        found = (await self._store.list_records(RecordFilter(PREFIX, labels={"digest": digest}), None, 1)).items
        return _known(found[0]) if found else None

    async def _note_use(self, digest: str, known: Known, minute: Instant) -> None:
        """Once a minute for each node. Of several that note it at once one does; one that was revoked stays so. A store
        that can't be written to keeps no one out."""
        with suppress(StoreUnavailable):
            used = replace(_record(replace(known.key, last_used_at=minute)), version=known.version + 1)
            if await self._store.put_records([RecordChange(used, known.version)]) == [True]:
                self._remembered.keep(digest, _known(used), self._clock.monotonic())
            else:
                self._remembered.forget(digest)


async def keys_named(store: Store, names: Sequence[str]) -> list[Key | None]:
    """The keys of these names, as they are stored now."""
    found = await store.get_records([PREFIX + name for name in names]) if names else []
    return [None if stored is None else _decode(stored.body) for stored in found]


def _known(record: Record) -> Known:
    key = _decode(record.body)
    return Known(key, record.version, key.principal())


def _record(key: Key) -> Record:
    return Record(name=PREFIX + key.name, body=msgspec.json.encode(key), labels={"digest": key.digest})


def _check(key: Key, now: Instant) -> None:
    if not _NAME.fullmatch(key.name):
        raise InvalidRequest(
            f"name: {key.name!r} is not 1 to 200 letters, digits or . _ : @ -, beginning with a letter or digit",
            field="name",
        )
    if key.name in RESERVED or key.name.startswith(DOOR):
        raise InvalidRequest(
            f"name: {key.name!r} is what the audit calls callers without a named key; take another", field="name"
        )
    if not key.roles:
        raise InvalidRequest(f"roles: give at least one of {', '.join(Role)}", field="roles")
    if key.queues is not None and not 0 < len(key.queues) <= QUEUES_MAX:
        raise InvalidRequest(f"queues: give 1 to {QUEUES_MAX}, or leave it out for all", field="queues")
    for field, given in (("queues", key.queues), ("labels", key.labels)):
        if given is not None and Role.ADMIN in key.roles:
            raise InvalidRequest(f"{field}: they bind a key to them, and an admin can't be bound", field=field)
    if key.labels is not None and not key.labels:
        raise InvalidRequest("labels: give at least one, or leave it out for all", field="labels")
    if key.labels is not None and key.queues is None and Role.WORKER in key.roles:
        raise InvalidRequest(
            "queues: runs are claimed by queue, so a worker that is bound names its queues", field="queues"
        )
    if key.expires_at is not None and key.expires_at <= now:
        raise InvalidRequest("expires_at: it is past", field="expires_at")
