"""Forecasts as pages ask for them: one that takes long is worked out beside, and is shown again for a while."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from horarium.access.acting import who_reads
from horarium.clock import Clock, Instant
from horarium.dashboard.site import BY_LIVE, Visit
from horarium.operations.looking.forecasting import Asked, Forecast

COUNTS_MAX = 30_000
"""Counts in the forecasts that are kept."""
KEPT_LEAST = 3
"""Those of one page are kept, however many counts they have: it is put together from them once the last is there."""
SHARE = 20
"""A forecast is new for twenty times as long as it took: all who look cost a twentieth of a core at most. For as long
again it is shown to those who ask while the next one is worked out."""
PATIENCE_SECONDS = 0.08
"""How long a page waits for its forecasts before it is shown without. No page waits for one that has been worked out
for as long already."""
IN_VIEW_SECONDS = 0.5
"""How long one waits that is in view, and looks again."""

Key = tuple[Asked, bool, str]
"""A question, whether the answer has the number of runs at one time, and the bounds of the reader."""


def is_in_view(visit: Visit) -> bool:
    """Whether the page is in view, and looks again or brings a part of itself."""
    return BY_LIVE in visit.request.headers or "hx-request" in visit.request.headers


class Kept(NamedTuple):
    """A forecast, when the next one is due, and when it is shown no more."""

    found: Forecast
    due_at: float
    over_at: float


class Foresight:
    """The last forecasts. With a few thousand jobs, they are new each second or so."""

    def __init__(self, several: Callable[[Sequence[Asked]], Awaitable[list[Forecast]]], clock: Clock) -> None:
        self._several, self._clock = several, clock
        self._kept: OrderedDict[Key, Kept] = OrderedDict()
        self._work: tuple[list[Key], asyncio.Task[list[Forecast]]] | None = None
        self._begun = 0.0

    async def forecast(
        self,
        since: Instant,
        until: Instant,
        seconds: int,
        by: str = "queue",
        *,
        running: bool = True,
        in_view: bool = False,
    ) -> Forecast | None:
        """As the operation of that name; None: it takes long, and is there for those who ask again. `running`: the
        number of runs at one time, too. `in_view`: the page that asks is."""
        found = await self.several([(since, until, seconds, by)], running=running, in_view=in_view)
        return None if found is None else found[0]

    async def several(
        self, asked: Sequence[Asked], *, running: bool = True, in_view: bool = False
    ) -> list[Forecast] | None:
        """The same, of several spans, for which the jobs are read once."""
        keys = [(each, running, str(who_reads() or "")) for each in asked]
        try:
            async with asyncio.timeout(IN_VIEW_SECONDS if in_view else self._patience()):
                return await self._all_of(keys)
        except TimeoutError:
            return None

    def _patience(self) -> float:
        under_way = self._work is not None and not self._work[1].done()
        return max(PATIENCE_SECONDS - (self._clock.monotonic() - self._begun) * under_way, 0)

    async def _all_of(self, keys: Sequence[Key]) -> list[Forecast]:
        """One is worked out at a time; it goes on after the page that asked was shown without. Raises as the operation
        does, also where that was in between."""
        while True:
            now = self._clock.monotonic()
            kept = {key: one for key in keys if (one := self._kept.get(key)) is not None and now < one.over_at}
            known = {key: one.found for key, one in kept.items()}
            missing = [key for key in keys if key not in known]
            if not missing:
                due = [key for key in keys if now >= kept[key].due_at]
                if due and (self._work is None or self._work[1].done()):
                    self._begin(due)
                return [known[key] for key in keys]
            of, work = self._work or (missing, None)
            if work is None or (work.done() and (of != missing or work.cancelled() or work.exception() is None)):
                of, work = missing, self._begin(missing)
            await asyncio.wait((work,))
            if of == missing:
                self._work = None
                known.update(zip(missing, work.result(), strict=True))
                return [known[key] for key in keys]

    def _begin(self, keys: list[Key]) -> asyncio.Task[list[Forecast]]:
        work = asyncio.create_task(self._work_out(keys), name="horarium-foresight")
        work.add_done_callback(_seen)
        self._work, self._begun = (keys, work), self._clock.monotonic()
        return work

    async def _work_out(self, keys: Sequence[Key]) -> list[Forecast]:
        begun, found = self._clock.monotonic(), []
        for key, one in zip(keys, await self._several([asked for asked, _, _ in keys]), strict=True):
            found.append(one if key[1] else replace(one, buckets=[replace(each, running={}) for each in one.buckets]))
        now = self._clock.monotonic()
        for key, one in zip(keys, found, strict=True):
            self.keep(key, Kept(one, now + SHARE * (now - begun), now + 2 * SHARE * (now - begun)))
        return found

    def keep(self, key: Key, kept: Kept) -> None:
        """Have this for those who ask, as far as there is room."""
        self._kept[key] = kept
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_LEAST and sum(_counts(each.found) for each in self._kept.values()) > COUNTS_MAX:
            self._kept.popitem(last=False)


def _seen(work: asyncio.Task[list[Forecast]]) -> None:
    """Take note of its error, which only those who wait for it raise."""
    if not work.cancelled():
        work.exception()


def _counts(forecast: Forecast) -> int:
    return sum(1 + len(bucket.starts) + len(bucket.running) for bucket in forecast.buckets)
