"""Forecasts as pages ask for them: one that took long to work out is shown again for a while."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from horarium.access.acting import who_reads
from horarium.clock import Clock, Instant
from horarium.operations.looking.forecasting import Asked, Forecast

COUNTS_MAX = 30_000
"""Counts in the forecasts that are kept."""
SHARE = 20
"""A forecast is kept for twenty times as long as it took: all who look cost a twentieth of a core at most."""


class Foresight:
    """The last forecasts of what everyone may see. With a few thousand jobs, they are new each second or so."""

    def __init__(self, several: Callable[[Sequence[Asked]], Awaitable[list[Forecast]]], clock: Clock) -> None:
        self._several, self._clock = several, clock
        self._kept: OrderedDict[tuple[Asked, bool], tuple[float, Forecast]] = OrderedDict()
        self._turn = asyncio.Lock()

    async def forecast(
        self, since: Instant, until: Instant, seconds: int, by: str = "queue", *, running: bool = True
    ) -> Forecast:
        """As the operation of that name; that of a bound visitor is worked out each time. `running`: the
        number of runs at one time, too."""
        (found,) = await self.several([(since, until, seconds, by)], running=running)
        return found

    async def several(self, asked: Sequence[Asked], *, running: bool = True) -> list[Forecast]:
        """The same, of several spans, for which the jobs are read once."""
        if who_reads() is not None:
            return await self._several(asked)
        async with self._turn:
            begun = self._clock.monotonic()
            kept = {each: self._kept.get((each, running), (begun, None)) for each in asked}
            known = {each: found for each, (over_at, found) in kept.items() if found is not None and begun < over_at}
            missing = [each for each in asked if each not in known]
            for each, found in zip(missing, await self._several(missing) if missing else (), strict=True):
                if not running:
                    found = replace(found, buckets=[replace(bucket, running={}) for bucket in found.buckets])
                known[each] = found
                now = self._clock.monotonic()
                self.keep(each, found, now + SHARE * (now - begun), running)
            return [known[each] for each in asked]

    def keep(self, asked: Asked, found: Forecast, over_at: float, running: bool = True) -> None:
        """Show this until then, as far as there is room."""
        self._kept[asked, running] = over_at, found
        self._kept.move_to_end((asked, running))
        while sum(_counts(each) for _, each in self._kept.values()) > COUNTS_MAX:
            self._kept.popitem(last=False)


def _counts(forecast: Forecast) -> int:
    return sum(1 + len(bucket.starts) + len(bucket.running) for bucket in forecast.buckets)
