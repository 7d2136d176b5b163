"""Acknowledged causes: a person took note of one, with a reason, and it no longer leads the verdict. It stays shown,
and what is well stays counted as it is.

It holds until an instant, and no longer than the cause stays the same: one that ended and came back, or that is about
another error by now, is open again.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from horarium.clock import DAY, Instant, to_text
from horarium.errors import InvalidRequest, NotFound
from horarium.model.records import Record, RecordChange, RecordFilter, put_over
from horarium.operations.bounds.listing import pages_of
from horarium.operations.writing.auditing import told
from horarium.operations.writing.context import Context
from horarium.operations.writing.keeping import Kept
from horarium.ports import PAGE_MAX

PREFIX = "acknowledged/"
REASON_CHARS_MAX = 500
LASTS_MAX = 30 * DAY


class Cause(Struct, frozen=True):
    """What a line of the verdict is about. `key`: `failing/JOB`, `unserved/QUEUE`, ...; `since`: when it began; `sort`:
    tells its error from others ("": it has none)."""

    key: str
    since: Instant
    sort: str = ""


class Acknowledged(Struct, frozen=True):
    """A cause of which `by` took note `at` an instant."""

    key: str
    sort: str
    reason: str
    by: str
    at: Instant
    until: Instant

    def covers(self, cause: Cause, now: Instant) -> bool:
        """Whether that is the cause that was meant, and the time is not over."""
        same = self.key == cause.key and cause.since <= self.at and cause.sort in ("", self.sort)
        return same and now < self.until


_decode = msgspec.json.Decoder(Acknowledged).decode


class Acknowledging:
    """Acknowledged causes of one namespace. Raises the errors of `errors`, nothing else."""

    def __init__(self, context: Context) -> None:
        self._store, self._clock = context.store, context.clock
        self._kept = Kept(context, "attention", PREFIX, _decode)

    async def known(self) -> dict[str, Acknowledged]:
        """All that are kept, by the key of their cause."""
        found: dict[str, Acknowledged] = {}
        async for page in pages_of(lambda after: self._store.list_records(RecordFilter(PREFIX), after, PAGE_MAX)):
            found.update({each.key: each for each in (_decode(record.body) for record in page)})
        return found

    async def put(self, cause: Cause, reason: str, by: str, until: Instant) -> None:
        """Take note of it. Raises InvalidRequest."""
        now = self._clock.now()
        if not 0 < len(reason) <= REASON_CHARS_MAX:
            raise InvalidRequest(f"reason: say why, in 1 to {REASON_CHARS_MAX} characters", field="reason")
        if not now < until <= now + LASTS_MAX:
            raise InvalidRequest("until: must lie ahead, by 30 days at most", field="until")
        made = Acknowledged(cause.key, cause.sort, reason, by, now, until)
        await self._write(cause.key, made, now)
        await self._delete_old(now)

    async def take_back(self, key: str) -> None:
        """It leads the verdict again. Raises NotFound."""
        await self._write(key, None, self._clock.now())

    async def _write(self, key: str, made: Acknowledged | None, now: Instant) -> None:
        async def wanted(stored: Record | None) -> RecordChange:
            before, about = None if stored is None else _plain(_decode(stored.body)), f"attention/{key}"
            if made is not None:
                line = told("attention.acknowledge", about, now, before=before, after=_plain(made))
                return put_over(stored, PREFIX + key, msgspec.json.encode(made), line)
            if stored is None:
                raise NotFound(f"{key[:200]!r} is not acknowledged")
            return RecordChange(stored, stored.version, True, told("attention.open", about, now, before=before))

        await self._kept.change(key, wanted)

    async def _delete_old(self, now: Instant) -> None:
        page = await self._store.list_records(RecordFilter(PREFIX), None, PAGE_MAX)
        old = [record for record in page.items if _decode(record.body).until < now]
        if old:
            await self._store.put_records([RecordChange(record, record.version, True) for record in old])


def _plain(made: Acknowledged) -> dict[str, str]:
    return {"reason": made.reason, "until": to_text(made.until)}
