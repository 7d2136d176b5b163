"""Sessions of people in a browser: a random token in a cookie, its hash in the store, and what opened it.

A session that was opened with a key says nothing about what its bearer may do: it names the key, and that is looked at
again with each request: one that is revoked ends its sessions within seconds, on every node. A session of a person who
signed in at the issuer holds what the issuer said of them, and ends twelve hours after that in any case. Records are
ordered by when their session ends, so expired ones are deleted from below.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.access.keys import ENTROPY_BYTES, digest_of
from horarium.access.remembered import Remembered
from horarium.access.roles import Principal
from horarium.clock import HOUR, MINUTE, Clock, Instant
from horarium.errors import NotFound
from horarium.model.records import Record, RecordChange, RecordFilter, instant_key
from horarium.ports import PAGE_MAX, Page, Store
from horarium.siblings import ALONE, Siblings

PREFIX = "session/"
LASTS = 12 * HOUR
ROTATED_AFTER = HOUR
ID_CHARS = 16
OVERLAP = MINUTE
"""How long a token that was rotated still works: for pages that were under way."""
ENDED = "session-ended"

Credential = Literal["server-key", "key", "person"]


class SignInSession(Struct, frozen=True, kw_only=True):
    """`digest`: of the token; `id`: of the first one, before it was rotated: the name of the session for those who may
    end it, which opens nothing. `key`: SHA-256 of the key that opened it; of a person, of the rules by which they got
    their roles. Both in hexadecimal. `last_at`: how far it may be renewed (None: as long as it is used)."""

    digest: str
    id: str
    credential: Credential
    key: str
    created_at: Instant
    ends_at: Instant
    person: Principal | None = None
    last_at: Instant | None = None


_decode = msgspec.json.Decoder(SignInSession).decode


class Sessions:
    """The sessions of a store."""

    def __init__(self, store: Store, clock: Clock, entropy: Callable[[int], bytes], siblings: Siblings = ALONE) -> None:
        self._store, self._clock, self._entropy, self._siblings = store, clock, entropy, siblings
        self._remembered: Remembered[SignInSession | None] = Remembered(clock)
        siblings.hear(ENDED, self._forget)

    async def begin(self, credential: Credential, key: str) -> str:
        """A new session; its token, which only the browser gets."""
        return await self._begin(
            SignInSession(digest="", id="", credential=credential, key=key, created_at=0, ends_at=0)
        )

    async def begin_of(self, person: Principal, rules: str) -> str:
        """The same for a person, who got their roles by these rules."""
        last_at = self._clock.now() + LASTS
        made = SignInSession(
            digest="", id="", credential="person", key=rules, created_at=0, ends_at=0, person=person, last_at=last_at
        )
        return await self._begin(made)

    async def _begin(self, like: SignInSession) -> str:
        token, session = self._made(like)
        await self._store.put_records([RecordChange(_record(session))])
        return token

    def _made(self, like: SignInSession) -> tuple[str, SignInSession]:
        now = self._clock.now()
        token = urlsafe_b64encode(self._entropy(ENTROPY_BYTES)).decode().rstrip("=")
        digest, ends_at = digest_of(token), now + LASTS if like.last_at is None else like.last_at
        return token, replace(like, digest=digest, id=like.id or digest[:ID_CHARS], created_at=now, ends_at=ends_at)

    async def find(self, token: str) -> SignInSession | None:
        """The session of this token; None if there is none, or it is over."""
        session = await self._remembered.find(digest_of(token), self._read)
        return session if session is not None and session.ends_at > self._clock.now() else None

    async def rotate(self, session: SignInSession) -> str | None:
        """A new token for a session that has had its own for an hour, which works for a minute longer; else None, as
        for one that was ended, or got another one, just then."""
        now = self._clock.now()
        if now - session.created_at < ROTATED_AFTER or session.ends_at <= now + OVERLAP:
            return None
        token, fresh = self._made(session)
        rotated = await self._end(session, [_record(replace(session, ends_at=now + OVERLAP)), _record(fresh)])
        return token if rotated else None

    async def end(self, token: str) -> None:
        """Delete the session, under all its tokens."""
        session = await self._read(digest_of(token))
        if session is not None:
            with suppress(NotFound):
                await self.end_by_id(session.id)

    # -- what an admin does

    async def page(self, after: str | None, limit: int) -> Page[SignInSession]:
        """Those that have not ended, the soonest end first, beginning after this place."""
        where = RecordFilter(PREFIX, since=instant_key(self._clock.now() + 1))
        page = await self._store.list_records(where, None if after is None else PREFIX + after, limit)
        next_after = None if page.next_after is None else page.next_after.removeprefix(PREFIX)
        return Page(tuple(_decode(record.body) for record in page.items), next_after)

    async def end_by_id(self, id: str, records: Sequence[Record] = ()) -> None:
        """Delete the session of this id, under all its tokens, and keep `records` with that: on each node it is over
        within five seconds. Raises NotFound."""
        where = RecordFilter(PREFIX, since=instant_key(self._clock.now() + 1), labels={"id": id})
        ended = False
        while found := (await self._store.list_records(where, None, PAGE_MAX)).items:
            for record in found:
                ended = await self._end(_decode(record.body), () if ended else records) or ended
        if not ended:
            raise NotFound(f"there is no session {id!r}, or it is over")

    async def _end(self, session: SignInSession, records: Sequence[Record]) -> bool:
        """False: it was ended just then."""
        stored = _record(session)
        (ended,) = await self._store.put_records([stored.removal(tuple(records))])
        self._remembered.forget(session.digest)
        await self._siblings.ask(ENDED, session.digest.encode())
        return ended

    def _forget(self, digest: bytes) -> bytes:
        """Another process of this server ended it."""
        self._remembered.forget(digest.decode())
        return b""

    async def _read(self, digest: str) -> SignInSession | None:
        where = RecordFilter(PREFIX, labels={"session": digest})
        found = (await self._store.list_records(where, None, 1)).items
        return _decode(found[0].body) if found else None


async def prune(store: Store, until: Instant, limit: int) -> int:
    """Delete sessions that ended before this instant, the oldest first. How many."""
    return await store.prune_records(PREFIX, instant_key(until), limit)


def _record(session: SignInSession) -> Record:
    name = PREFIX + instant_key(session.ends_at, session.digest)
    return Record(name=name, body=msgspec.json.encode(session), labels={"session": session.digest, "id": session.id})
