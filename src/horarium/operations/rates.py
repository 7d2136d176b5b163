"""Rate limits by key: those in use, and overrides of what runs say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from horarium.clock import Instant, to_text
from horarium.errors import InvalidRequest, NotFound
from horarium.model.records import Record, RecordChange
from horarium.operations.settling.rating import CHANGED, PREFIX, bucket_change, bucket_of, decode_bucket
from horarium.operations.writing.auditing import require_unbound, told
from horarium.operations.writing.context import Context
from horarium.operations.writing.keeping import Kept
from horarium.ports import APPLY, Page
from horarium.rules.applying import Owed
from horarium.rules.rates import Bucket, Override, overridden


class RateOperations:
    """Rate limits of one namespace. Raises the errors of `errors`, nothing else."""

    def __init__(self, context: Context) -> None:
        self._clock, self._signal = context.clock, context.signal
        self._kept = Kept(context, "rate", PREFIX, decode_bucket)

    async def put(self, key: str, override: Override) -> Bucket:
        """Have this limit hold for the key, instead of those that runs say. Runs that wait get new places. Raises
        InvalidRequest for an end that is past."""
        if override.until is not None and override.until <= self._clock.now():
            raise InvalidRequest(f"until: {to_text(override.until)} is past", field="until")
        return await self._change(key, override)

    async def reset(self, key: str) -> Bucket:
        """Have what runs say hold again. Raises NotFound where that is so."""
        return await self._change(key, None)

    async def _change(self, key: str, override: Override | None) -> Bucket:
        require_unbound("limits of keys")
        changed = Bucket()

        async def wanted(stored: Record | None) -> RecordChange | None:
            nonlocal changed
            changed = bucket = bucket_of(stored)
            if override is None and bucket.override is None:
                raise NotFound(f"no limit was set for the key {key!r}")
            if override == bucket.override:
                return None
            now, steady = self._clock.now(), self._clock.steady()
            changed = overridden(bucket, override, now, steady)
            action = "rate.reset" if override is None else "rate.set"
            line = told(action, f"rate/{key}", now, before=_plain(bucket.override), after=_plain(override))
            change = bucket_change(key, stored, changed, steady)
            owed = Record(name=f"{CHANGED}{steady:016x}", body=msgspec.json.encode(Owed(key, now)))
            return replace(change, records=(*line, owed))

        if await self._kept.change(key, wanted) is not None:
            self._signal.publish(APPLY)
        return changed

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[tuple[str, Bucket]]:
        """Keys in use, in their order, with this prefix; at most 200."""
        return await self._kept.page(after, limit, prefix)


def _plain(override: Override | None) -> Mapping[str, Any] | None:
    if override is None:
        return None
    until: Instant | None = override.until
    said = {"max": override.max, "per_seconds": override.per_seconds, "burst": override.burst}
    return {**said, "until": None if until is None else to_text(until)}
