"""The endpoints under /rates."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from horarium.access.roles import Scope
from horarium.api.endpoints import Answer, Call, Endpoint, Example, Handlers, answer, no_content
from horarium.api.reading import read_cursor, write_cursor
from horarium.api.schemas import Page, PageQuery
from horarium.errors import InvalidRequest
from horarium.policies import KEY_LENGTH_MAX, RATE_MAX, SECONDS_MAX
from horarium.wire.rates import RateView, is_key, override_of, rate_view

KeyPrefix = Annotated[str, Meta(max_length=KEY_LENGTH_MAX, description="Only keys that begin with this.")]


class LimitBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A limit for a key. `burst` left out: a tenth of `max`. `until` left out: for good."""

    max: Annotated[int, Meta(ge=1, le=RATE_MAX)]
    per_seconds: Annotated[float, Meta(ge=1, le=SECONDS_MAX)]
    burst: Annotated[int, Meta(ge=1, le=RATE_MAX)] | None = None
    until: Annotated[datetime, Meta(tz=True)] | None = None


class RatePage(Page[RateView]):
    """One page of keys, in their order."""


class RatesQuery(PageQuery, forbid_unknown_fields=True, kw_only=True):
    """Which keys to list."""

    prefix: KeyPrefix | UnsetType = UNSET


EXAMPLES = (Example("slower for a night", {"max": 10, "per_seconds": 60, "until": "2027-01-01T06:00:00Z"}),)


class RatesApi(Handlers):
    @Endpoint(
        "GET", "/rates", "listRates", tag="rates", scope=Scope.JOBS_READ, query=RatesQuery,
        summary="Keys of rate limits",
        description="Keys that are in use or have a limit of their own: what they allow, and when they open. "
        "A key is deleted ten minutes after it last held anything back.",
        answers={200: (RatePage, "One page")}, problems=("invalid_cursor",),
    )  # fmt: skip
    async def list_all(self, call: Call) -> Answer:
        query: RatesQuery = call.query
        prefix = "" if query.prefix is UNSET else query.prefix
        page = await self._operations.rates.page(prefix, read_cursor("rates", query.cursor, is_key), query.limit)
        items = [rate_view(key, bucket, self._clock) for key, bucket in page.items]
        return answer(RatePage(items, write_cursor("rates", page.next_after)))

    @Endpoint(
        "PUT", "/rates/{key}", "putRate", tag="rates", scope=Scope.JOBS_WRITE,
        summary="Set the limit of a key",
        description="It holds for everybody instead of what jobs and runs say, from the next claim on. Runs "
        "that wait get new places in line.",
        body=LimitBody, examples=EXAMPLES,
        answers={200: (RateView, "The key")}, problems=("conflict",),
    )  # fmt: skip
    async def put(self, call: Call) -> Answer:
        key, asked = _key(call), call.body
        override = override_of(asked.max, asked.per_seconds, asked.burst, asked.until)
        return answer(rate_view(key, await self._operations.rates.put(key, override), self._clock))

    @Endpoint(
        "DELETE", "/rates/{key}", "resetRate", tag="rates", scope=Scope.JOBS_WRITE,
        summary="Have what jobs and runs say hold again for a key",
        answers={204: (None, "It has no limit of its own any more")},
        problems=("invalid_request", "not_found", "conflict"),
    )  # fmt: skip
    async def reset(self, call: Call) -> Answer:
        await self._operations.rates.reset(_key(call))
        return no_content()


def _key(call: Call) -> str:
    key: str = call.request.path_params["key"]
    if not is_key(key):
        raise InvalidRequest(f"key: {key[:200]!r} is not 1 to {KEY_LENGTH_MAX} characters", field="key")
    return key
