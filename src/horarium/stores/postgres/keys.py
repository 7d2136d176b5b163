"""From which transaction on a claim counts claimed runs under concurrency keys.

A claim counts the claimed runs of a key. What was claimed under it and has ended stays in the index until it is
vacuumed, which a snapshot that is held open anywhere prevents: a claim would step over all that went by. So each
claimed run has the number of the transaction that claimed it, and the indexes are in the order of these numbers. Once
all transactions below a bound have ended, no run will be claimed below it any more. A node that knows which ones are
counts these by their ids, and others from the bound on. Nothing needs to be published: the server gives the numbers.

The hard thing is that a server may give numbers a second time: one that was promoted, or recovered from a crash, knows
nothing of transactions that wrote nothing which it has. So what was learned holds for one process of the server only,
the one behind the connection. It has a mark in that process's memory, which each statement compares: behind a pooler
another one may answer. It is never written down.

A run that was claimed by code which writes no number, or came with a backup, is counted in any case.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from msgspec import Struct

if TYPE_CHECKING:
    from horarium.stores.postgres.session import Session

LOOKS_BETWEEN = 16
"""Claims on a connection between two times that it is learned how things are."""
BELOW_MAX = 100
"""Runs that may be claimed below a bound: each is looked up by its id."""

Since = tuple[int, list[bytes], str]
"""A bound, the ids of what may be claimed below it, and the mark of the process that this is known of: as the
statements are given it."""

ALL: Since = (-1, [], "")
"""Nothing is known: all is counted."""


class _Known(Struct):
    since: Since = ALL
    looks: int = 0


class Keys:
    """What one store knows, for each of its connections."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._known)

    def since(self, session: Session) -> Since:
        """From where on to count."""
        known = self._known.get(session.connection)
        return ALL if known is None else known.since

    async def look(self, session: Session) -> None:
        """Before a claim counts: learn, if it is time. In its transaction, with which the mark comes and goes."""
        known = self._known.setdefault(session.connection, _Known())
        if known.looks % LOOKS_BETWEEN == 0:
            mark = secrets.token_hex(8)
            ((bound, ids, _),) = await session.rows("claims_until", session.namespace_id, *known.since, BELOW_MAX, mark)
            known.since = bound, ids or [], mark
        known.looks += 1
