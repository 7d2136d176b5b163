"""What was refused, in the audit: sign-ins that failed, and changes that a caller may not make.

An entry costs a write, and an attacker must not choose how many there are: there is at most one in a minute for one
address or caller, and a hundred in a minute for all of them. Nothing waits for it, and an outage costs the entry.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from typing import Any

from horarium.access import audit
from horarium.access.audit import Origin
from horarium.access.roles import principal
from horarium.clock import Clock
from horarium.errors import StoreUnavailable
from horarium.model.records import Record, RecordChange
from horarium.ports import Store
from horarium.siblings import ALONE, Siblings

AGAIN_SECONDS = 60.0
ALL_MAX = 100
REMEMBERED_MAX = 10_000
TOLD = "refusal-told"
"""What siblings hear of an entry that was written."""
UNKNOWN = principal("unknown", "unknown", "key", [])


class Refused:
    """Writes entries of what was refused."""

    def __init__(self, store: Store, clock: Clock, siblings: Siblings = ALONE) -> None:
        self._store, self._clock, self._siblings = store, clock, siblings
        self._told: OrderedDict[str, float] = OrderedDict()
        self._since = 0.0
        self._count = 0
        self._writing: set[asyncio.Task[None]] = set()
        siblings.hear(TOLD, self._told_elsewhere)

    def sign_in(self, address: str, request: str, why: str) -> None:
        """A sign-in failed."""
        origin = Origin(principal=UNKNOWN, request_id="", address=address)
        self._tell(f"address/{address}", origin, "sign-in", f"address/{address}", {"request": request, "why": why})

    def change(self, origin: Origin, request: str, missing: list[str]) -> None:
        """A caller who is known asked for what it may not do."""
        after = {"missing_scopes": missing}
        self._tell(f"caller/{origin.principal.subject}", origin, "access", request, after)

    def _tell(self, whose: str, origin: Origin, action: str, object: str, after: dict[str, Any]) -> None:
        if not self._may_tell(whose):
            return
        line = audit.entry(origin, action, object, self._clock.now(), outcome="refused", after=after)
        task = asyncio.get_running_loop().create_task(self._write(line))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    def _may_tell(self, whose: str) -> bool:
        now = self._clock.monotonic()
        if now - self._since >= AGAIN_SECONDS:
            self._since, self._count = now, 0
        last = self._told.get(whose)
        if self._count >= ALL_MAX or (last is not None and now - last < AGAIN_SECONDS):
            return False
        self._note(whose, now)
        self._siblings.tell(TOLD, whose.encode("utf-8", "replace"))
        return True

    def _told_elsewhere(self, whose: bytes) -> bytes:
        """Another process of this server wrote the entry."""
        self._note(whose.decode(), self._clock.monotonic())
        return b""

    def _note(self, whose: str, now: float) -> None:
        self._count += 1
        self._told[whose] = now
        self._told.move_to_end(whose)
        if len(self._told) > REMEMBERED_MAX:
            self._told.popitem(last=False)

    async def _write(self, line: Record) -> None:
        with suppress(StoreUnavailable):
            await self._store.put_records([RecordChange(line)])
