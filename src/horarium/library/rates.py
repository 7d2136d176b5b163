"""Rate limits by key, as a `Scheduler` sets them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from horarium.clock import Clock
from horarium.errors import InvalidRequest
from horarium.library.channels import converted
from horarium.library.named import Part, in_name_of_actor
from horarium.operations.bounds.listing import pages_of
from horarium.policies import KEY_LENGTH_MAX, Limit
from horarium.ports import PAGE_MAX
from horarium.wire.rates import is_key, override_of, rate_view, read_limit


class RateMethods(Part):
    """The rate limits of a scheduler, as plain data: the fields of docs/rates.md."""

    @in_name_of_actor
    async def set_rate(
        self,
        key: str,
        rate: str | Limit,
        *,
        burst: int | None = None,
        until: datetime | None = None,
        actor: str | None = None,
    ) -> dict[str, Any]:
        """Have this limit (`"100/1m"`) hold for the key, instead of what jobs and runs say, until then or for good.
        Runs that wait get new places in line. Raises InvalidRequest."""
        if not is_key(key):
            raise InvalidRequest(f"key: {key[:200]!r} is not 1 to {KEY_LENGTH_MAX} characters", field="key")
        fields = read_limit(rate) if isinstance(rate, str) else msgspec.to_builtins(rate)
        limit: Limit = converted(fields if burst is None else {**fields, "burst": burst}, Limit)
        override = override_of(limit.max, limit.per_seconds, limit.burst, until)
        return _shown(key, await self._operations.rates.put(key, override), self._operations.clock)

    async def list_rates(self, prefix: str = "") -> list[dict[str, Any]]:
        """The keys in use that begin with this: what they allow, and when they open."""
        pages = pages_of(lambda after: self._operations.rates.page(prefix, after, PAGE_MAX))
        return [_shown(key, bucket, self._operations.clock) async for page in pages for key, bucket in page]

    @in_name_of_actor
    async def reset_rate(self, key: str, *, actor: str | None = None) -> None:
        """Have what jobs and runs say hold again for the key. Raises NotFound where that is so."""
        await self._operations.rates.reset(key)


def _shown(key: str, bucket: Any, clock: Clock) -> dict[str, Any]:
    return msgspec.structs.asdict(rate_view(key, bucket, clock))
