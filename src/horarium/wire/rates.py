"""A rate limit as text, `KEY=100/1m`, and as it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct, to_builtins

from horarium.clock import SECOND, Clock, to_datetime, to_wall
from horarium.errors import InvalidRequest, InvalidTrigger
from horarium.policies import KEY_LENGTH_MAX
from horarium.rules.rates import Bucket, Override, opens_at, shown_limit
from horarium.triggers import every
from horarium.wire.faults import instant_of


def read_limit(text: str) -> dict[str, Any]:
    """`100/1m` as `{"max": 100, "per_seconds": 60.0}`. Raises InvalidRequest."""
    most, slash, window = text.partition("/")
    try:
        seconds = every(window).every / SECOND if slash and most.isdecimal() else None
    except InvalidTrigger:
        seconds = None
    if seconds is None:
        raise InvalidRequest(f"rate: {text!r} is not MAX/TIME, such as 100/1m", field="rate")
    return {"max": int(most), "per_seconds": seconds}


def read_rate(text: str) -> dict[str, Any]:
    """`api:{payload.customer}=100/1m` as the fields of a rate limit. Raises InvalidRequest."""
    key, equals, limit = text.rpartition("=")
    if not key or not equals:
        raise InvalidRequest(f"rate: {text!r} is not KEY=MAX/TIME, such as api=100/1m", field="rate")
    return {"key": key, **read_limit(limit)}


def plain_rates(given: Any) -> Any:
    """Rate limits as plain data: one or several of them, each a text, a struct or a mapping."""
    if given is None:
        return ()
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    return [read_rate(each) if isinstance(each, str) else to_builtins(each) for each in several]


class RateView(Struct):
    """A key of rate limits. `overridden`: this limit was set for the key, and holds instead of those of jobs.
    `opens_at`: when the next attempt may begin; null: now."""

    key: str
    max: int | None
    per_seconds: float | None
    burst: int | None
    overridden: bool
    until: datetime | None
    opens_at: datetime | None


def rate_view(key: str, bucket: Bucket, clock: Clock) -> RateView:
    now, steady = clock.now(), clock.steady()
    limit, override = shown_limit(bucket, now), bucket.override
    overridden = override is not None and (override.until is None or override.until > now)
    until = override.until if overridden and override is not None else None
    opens = opens_at(bucket, now, steady)
    return RateView(
        key,
        None if limit is None else limit.max,
        None if limit is None else limit.per_seconds,
        None if limit is None else limit.burst or max(1, limit.max // 10),
        overridden,
        None if until is None else to_datetime(until),
        None if opens is None else to_datetime(to_wall(clock, opens)),
    )


def is_key(text: str) -> bool:
    """Whether a rate limit can have this key."""
    return 0 < len(text) <= KEY_LENGTH_MAX


def override_of(most: int, per_seconds: float, burst: int | None, until: datetime | None) -> Override:
    """The limit that is set for a key. Raises InvalidRequest."""
    end = None if until is None else instant_of(until, "until")
    if burst is not None and burst > most:
        raise InvalidRequest(f"burst: {burst:,} is more than max, which is {most:,}", field="burst")
    return Override(most, per_seconds, burst, until=end)
