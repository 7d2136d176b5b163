"""The audit: an entry for each change, written in the transaction of the change or not at all.

An entry is a record whose name begins with its instant, so the newest are the highest, and a span of time is a pair of
bounds. The fields of queries (actor, action, object) are its labels. `before` and `after` come masked: no secret may
enter here, since entries outlive what they tell of.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.access.roles import Kind, Principal
from horarium.clock import Instant
from horarium.model.records import Record, RecordFilter, instant_key, key_instant
from horarium.ports import Page, Store

PREFIX = "audit/"
VALUE_BYTES_MAX = 256 * 1024
"""How much of `before` and of `after` an entry holds; a larger one is left out, and said to be."""

AGENT_MARK = "mcp-"
"""How the name of a request begins that a tool of an agent made."""
WITHOUT_ID = b'{"id":""'
"""How the text of an entry begins that has no name yet."""


class Origin(Struct, frozen=True, kw_only=True):
    """Where a change came from: who, by which request, from which address."""

    principal: Principal
    request_id: str
    address: str = ""

    @property
    def actor(self) -> str:
        """Who acts, in words: an agent acts with a key that it was given."""
        by_agent = self.request_id.startswith(AGENT_MARK)
        return f"{self.principal.subject} (agent)" if by_agent else self.principal.subject


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the audit. `id` names it, and is ordered by time."""

    id: str
    actor: str
    kind: Kind
    action: str
    object: str
    outcome: Literal["done", "refused"]
    request_id: str = ""
    address: str = ""
    before: Any = None
    after: Any = None

    @property
    def at(self) -> Instant:
        return key_instant(self.id)


class AuditFilter(Struct, frozen=True, kw_only=True):
    """Which entries to list; `since` is included, `until` is not."""

    actor: str | None = None
    action: str | None = None
    object: str | None = None
    since: Instant | None = None
    until: Instant | None = None


_decode = msgspec.json.Decoder(Entry).decode
_encode = msgspec.json.Encoder().encode


def entry(
    origin: Origin,
    action: str,
    object: str,
    at: Instant,
    *,
    outcome: Literal["done", "refused"] = "done",
    before: Any = None,
    after: Any = None,
) -> Record:
    """The record of one change. The same request records the same change once: its name is made of its content."""
    who = origin.principal
    line = Entry(
        id="",
        actor=origin.actor,
        kind=who.kind,
        action=action,
        object=object,
        outcome=outcome,
        request_id=origin.request_id,
        address=origin.address,
        before=before,
        after=after,
    )
    text = _encode(line)
    if len(text) > VALUE_BYTES_MAX:
        text = _encode(replace(line, before=_bounded(before), after=_bounded(after)))
    id = instant_key(at, blake2b(text, digest_size=12).hexdigest())
    labels = {"object": object, "actor": who.subject, "action": action}
    return Record(name=PREFIX + id, body=b'{"id":"%s"%s' % (id.encode(), text[len(WITHOUT_ID) :]), labels=labels)


def _bounded(value: Any) -> Any:
    if value is None:
        return None
    text = msgspec.json.encode(value)
    if len(text) > VALUE_BYTES_MAX:
        return {"left_out": f"{len(text):,} bytes"}
    return msgspec.Raw(text)


async def page(store: Store, where: AuditFilter, after: str | None, limit: int) -> Page[Entry]:
    """Entries, the newest first, beginning after (before, in time) the id `after`."""
    asked = {"object": where.object, "actor": where.actor, "action": where.action}
    records = await store.list_records(
        RecordFilter(
            PREFIX,
            since="" if where.since is None else instant_key(where.since),
            until=None if where.until is None else instant_key(where.until),
            labels={key: value for key, value in asked.items() if value is not None},
            descending=True,
        ),
        None if after is None else PREFIX + after,
        limit,
    )
    next_after = None if records.next_after is None else records.next_after.removeprefix(PREFIX)
    return Page(tuple(_decode(record.body) for record in records.items), next_after)


async def prune(store: Store, until: Instant, limit: int) -> int:
    """Delete entries from before this instant, the oldest first. How many."""
    return await store.prune_records(PREFIX, instant_key(until), limit)
