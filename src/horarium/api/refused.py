"""Refusals in the audit: sign-ins that failed, and changes that a caller may not make.

A refusal has the name that the change would have had, so it is found beside changes.

An entry costs a write, and an attacker must not choose how many there are: in a minute there is at most one for one
address, ten for one caller (each of another thing), and a hundred for all of them. Nothing waits for it, and an outage
costs the entry.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from contextlib import suppress
from typing import Any

from msgspec import Struct

from horarium.access import audit
from horarium.access.audit import Origin
from horarium.access.roles import principal
from horarium.clock import Clock
from horarium.errors import Forbidden, StoreUnavailable
from horarium.model.records import Record, RecordChange
from horarium.ports import Store
from horarium.siblings import ALONE, Siblings

AGAIN_SECONDS = 60.0
ALL_MAX = 100
CALLER_MAX = 10
REMEMBERED_MAX = 1_000
WRITER = "horarium refusal"
"""The name of each task that writes an entry."""
TOLD = "refusal-told"
"""The message to siblings about an entry that was written."""
PREFIX = "/api/v1"
KINDS = {
    "jobs": "job", "runs": "run", "keys": "key", "channels": "channel", "calendars": "calendar", "holds": "hold",
    "batches": "batch",
}  # fmt: skip
BY_METHOD = {"PUT": "update", "PATCH": "update", "DELETE": "delete"}
BY_WORD = {"run": "trigger", "edit": "update", "batch": "create"}
"""Words at the end of an address that are not the name of the action."""
WORDS = frozenset(
    {"close", "pause", "resume", "trigger", "backfill", "revert", "delete", "cancel", "retry", "test", *BY_WORD}
)
UNKNOWN = principal("unknown", "unknown", "key", [])


class Part(Struct, frozen=True):
    """Refusals within a request for many things, the rest of which was done. `count`: how many things were; `change`:
    action and object of this one, where the address of the request does not say them."""

    count: int
    change: tuple[str, str] | None = None


class RefusalLog:
    """Writes entries of refusals."""

    def __init__(self, store: Store, clock: Clock, siblings: Siblings = ALONE) -> None:
        self._store, self._clock, self._siblings = store, clock, siblings
        self._told: OrderedDict[str, float] = OrderedDict()
        self._since = 0.0
        self._counts: Counter[str] = Counter()
        self._writing: set[asyncio.Task[None]] = set()
        siblings.hear(TOLD, self._told_elsewhere)

    def sign_in(self, address: str, request: str, why: str) -> None:
        """A sign-in failed."""
        origin = Origin(principal=UNKNOWN, request_id="", address=address)
        self._tell(f"address/{address}", origin, "sign-in", f"address/{address}", {"request": request, "why": why})

    def change(self, origin: Origin, method: str, path: str, why: Forbidden, part: Part | None = None) -> None:
        """A caller who is known asked for what it may not do. `part`: it was one thing of many."""
        action, object = change_of(method, path) if part is None or part.change is None else part.change
        lacks = {"missing_scopes": list(why.missing_scopes)} if why.missing_scopes else {"why": str(why)}
        counted = {} if part is None else {"refused": part.count}
        after = {"request": f"{method} {path}", **lacks, **counted}
        self._tell(f"caller/{origin.principal.subject}", origin, action, object, after)

    def _tell(self, whose: str, origin: Origin, action: str, object: str, after: dict[str, Any]) -> None:
        if not self._may_tell(whose, f"{action} {object}"):
            return
        line = audit.entry(origin, action, object, self._clock.now(), outcome="refused", after=after)
        task = asyncio.get_running_loop().create_task(self._write(line), name=WRITER)
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    def _may_tell(self, whose: str, what: str) -> bool:
        now = self._clock.monotonic()
        if now - self._since >= AGAIN_SECONDS:
            self._since = now
            self._counts.clear()
        last = self._told.get(f"{whose} {what}")
        if self._counts.total() >= ALL_MAX or self._counts[whose] >= CALLER_MAX:
            return False
        if last is not None and now - last < AGAIN_SECONDS:
            return False
        self._note(whose, what, now)
        self._siblings.tell(TOLD, f"{whose}\n{what}".encode("utf-8", "replace"))
        return True

    def _told_elsewhere(self, told: bytes) -> bytes:
        """Another process of this server wrote the entry."""
        whose, _, what = told.decode().partition("\n")
        self._note(whose, what, self._clock.monotonic())
        return b""

    def _note(self, whose: str, what: str, now: float) -> None:
        self._counts[whose] += 1
        self._told[f"{whose} {what}"] = now
        self._told.move_to_end(f"{whose} {what}")
        if len(self._told) > REMEMBERED_MAX:
            self._told.popitem(last=False)

    async def _write(self, line: Record) -> None:
        with suppress(StoreUnavailable):
            await self._store.put_records([RecordChange(line)])


def change_of(method: str, path: str) -> tuple[str, str]:
    """The audit entry of this request, had it been let through: action and object. As far as its address says; else
    that something was asked for."""
    kind, *rest = path.removeprefix(PREFIX).strip("/").split("/")
    word = rest.pop() if method == "POST" and rest and (len(rest) == 2 or rest[-1] in WORDS) else ""
    object = f"{KINDS[kind]}/{rest[0]}" if kind in KINDS and len(rest) == 1 else f"{method} {path}"
    action = BY_WORD.get(word, word) or BY_METHOD.get(method, "create" if not rest and path.startswith(PREFIX) else "")
    if kind not in KINDS or len(rest) > 1 or not action or (word and word not in WORDS):
        return "access", f"{method} {path}"
    return f"{KINDS[kind]}.{'revoke' if (kind, action) == ('keys', 'delete') else action}", object
