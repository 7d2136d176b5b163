"""Forecasts as pages ask for them: one that took long to work out is shown again for a while."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from horarium.access.acting import who_reads
from horarium.clock import Clock, Instant
from horarium.operations.looking.forecasting import Forecast

COUNTS_MAX = 30_000
"""Counts in the forecasts that are kept."""
SHARE = 20
"""A forecast is kept for twenty times as long as it took: all who look cost a twentieth of a core at most."""

Asked = tuple[Instant, Instant, int, str, bool]


class Foresight:
    """The last forecasts of what everyone may see. With a few thousand jobs, they are new each second or so."""

    def __init__(self, forecast: Callable[[Instant, Instant, int, str], Awaitable[Forecast]], clock: Clock) -> None:
        self._forecast, self._clock = forecast, clock
        self._kept: OrderedDict[Asked, tuple[float, Forecast]] = OrderedDict()
        self._turn = asyncio.Lock()

    async def forecast(
        self, since: Instant, until: Instant, seconds: int, by: str = "queue", *, running: bool = True
    ) -> Forecast:
        """As the operation of that name; that of a bound visitor is worked out each time. `running`: the
        number of runs at one time, too."""
        if who_reads() is not None:
            return await self._forecast(since, until, seconds, by)
        asked = since, until, seconds, by, running
        async with self._turn:
            begun = self._clock.monotonic()
            over_at, found = self._kept.get(asked, (begun, None))
            if found is None or begun >= over_at:
                found = await self._forecast(since, until, seconds, by)
                if not running:
                    found = replace(found, buckets=[replace(each, running={}) for each in found.buckets])
                now = self._clock.monotonic()
                self.keep(asked, found, now + SHARE * (now - begun))
            return found

    def keep(self, asked: Asked, found: Forecast, over_at: float) -> None:
        """Show this until then, as far as there is room."""
        self._kept[asked] = over_at, found
        self._kept.move_to_end(asked)
        while sum(_counts(each) for _, each in self._kept.values()) > COUNTS_MAX:
            self._kept.popitem(last=False)


def _counts(forecast: Forecast) -> int:
    return sum(1 + len(bucket.starts) + len(bucket.running) for bucket in forecast.buckets)
