"""One queue: what waits and who serves it, when it will be empty; held and lifted, and whose turn comes how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any
from urllib.parse import urlencode

import msgspec

from horarium.access.roles import Scope
from horarium.clock import HOUR, MINUTE, Instant
from horarium.dashboard.activity import over_all
from horarium.dashboard.attention import Watching, some_runs
from horarium.dashboard.backlog import backlog, bars_of, longest_wait, moments_of
from horarium.dashboard.charts import bar_chart
from horarium.dashboard.formats import duration, fault_in, span
from horarium.dashboard.shares import shares_of
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.errors import Forbidden, InvalidRequest, NotFound
from horarium.model import CLAIMED, Run, State
from horarium.model.targets import named_queue
from horarium.operations.facade import Operations
from horarium.operations.settling.turns import QueueSettings
from horarium.policies import FAIR_WEIGHT_MAX, FairWeights
from horarium.ports import PAGE_MAX, QueueStats, RunFilter
from horarium.rules.holds import scope_words, stretch_at
from horarium.services.polling.claims import Claims
from horarium.triggers.words import counted
from horarium.wire.faults import Fault

WAITING = frozenset({State.PENDING})
ENDED = frozenset({State.COMPLETED, State.FAILED})
KEYS_SHOWN = 20
READ_MAX = 1_000
READ_SPAN = 3 * HOUR
"""How far back runs are read for what an hour ago waited."""
RUNS_NEEDED = 5
"""With fewer runs that ended no rate is given."""


class QueuePage(Pages):
    """The page at `/queue`."""

    def __init__(self, operations: Operations, claims: Claims, watching: Watching) -> None:
        self._operations, self._claims, self._watching = operations, claims, watching

    @Page("GET", "/queue", "queue", scope=Scope.RUNS_READ, place="queues")
    async def show(self, visit: Visit) -> Answer:
        return await self._page(visit, None)

    async def _page(self, visit: Visit, given: str | None, problem: Fault | None = None) -> Answer:
        queue = _named(visit)
        stats = (await self._watching.look()).stats
        known = next((one for one in stats.queues if one.queue == queue), QueueStats(queue, 0, 0, 0, None))
        ended, waiting, held = [
            await self._runs(queue, states, since)
            for states, since in ((ENDED, max(visit.now - READ_SPAN, 0)), (WAITING, None), (CLAIMED, None))
        ]
        if visit.principal.bound and not (ended or waiting or held or known.due or known.running or known.scheduled):
            raise NotFound(f"there is no queue {queue!r}")
        weights = await self._weights(queue)
        over_time = await self._over_time(visit, known, (ended, waiting, held), weights or {})
        values: dict[str, Any] = {
            "queue": known,
            **over_time,
            "problem": problem,
            "pace": _pace(known, ended, visit.now),
            "took": _usual(ended),
            "holds": [] if visit.principal.bound else self._holds(queue, visit.now),
            "workers": Counter(run.worker for run in held if run.worker is not None).most_common(KEYS_SHOWN),
            "idle": 0 if visit.principal.bound else await self._idle(queue),
            "looked": len(waiting),
            "settable": weights is not None,
            "weights": _text(weights or {}) if given is None else given,
        }
        return Shown("queue.html", values, 422 if problem else 200)

    async def _runs(self, queue: str, states: frozenset[State], since: Instant | None) -> Sequence[Run]:
        where = RunFilter(queue=queue, states=states, since=since)
        return (await self._operations.store.list_runs(where, None, PAGE_MAX)).items

    async def _over_time(
        self, visit: Visit, known: QueueStats, read: tuple[Sequence[Run], ...], weights: FairWeights
    ) -> dict[str, Any]:
        """Its last hour: of the runs of the last hours, and of those that ended, wait or are held now, which many that
        wait do not hide."""
        ended, waiting, held = read
        end = visit.now - visit.now % MINUTE + MINUTE
        starts, since = range(max(end - HOUR, 0), end, MINUTE), max(visit.now - READ_SPAN, 0)
        where = RunFilter(queue=known.queue, since=since, until=visit.now + 1)
        found, more = await some_runs(self._operations, where, READ_MAX)
        known_since = found[-1].fire_at if more else since
        runs = list({run.id: run for run in (*found, *waiting, *held)}.values())
        moments = moments_of(runs, starts, visit.now)
        now = moments[-1]
        now.waiting, now.held, now.oldest = known.due, known.running, known.oldest_due_at
        # Fewer than a page are all that ended.
        ends_since = since if len(ended) < PAGE_MAX else known_since
        bars = bars_of({run.id: run for run in (*runs, *ended)}.values(), starts, ends_since)
        return {
            "turns": shares_of(waiting, runs, weights, visit.now)[:KEYS_SHOWN],
            "ended": bar_chart(bars, MINUTE, visit.zone),
            "ends": over_all(bars),
            "ends_partly": ends_since > starts.start,
            "backlog": backlog(moments, bars, known_since, visit.zone, visit.now),
            "longest": longest_wait(runs, max(known_since, starts.start), visit.now),
            "known_since": known_since if known_since > starts.start else None,
        }

    async def _weights(self, queue: str) -> FairWeights | None:
        """None: the visitor may not reach all of this queue."""
        try:
            return (await self._operations.queues.get(queue)).fair_weights
        except Forbidden:
            return None

    async def _idle(self, queue: str) -> int:
        return (await self._claims.waiting_everywhere()).queues.get(queue, 0)

    def _holds(self, queue: str, now: Instant) -> list[dict[str, Any]]:
        """Those that hold it now: its own, and one on everything."""
        found = []
        for hold in self._operations.reconciler.holding.known:
            stretch = stretch_at(hold, now)
            if stretch is not None and (hold.scope.all or hold.scope.queue in (queue, queue.removeprefix("pull/"))):
                ends = stretch.ends_at if hold.repeat else hold.ends_at
                own = hold.scope.queue is not None
                found.append({"hold": hold, "what": scope_words(hold.scope), "until": ends, "own": own})
        return found

    @Page("POST", "/queue", "queue-set", scope=Scope.JOBS_WRITE, place="queues")
    async def set(self, visit: Visit) -> Answer:
        text = visit.text("weights")
        try:
            weights = _read(text)
        except InvalidRequest as error:
            return await self._page(visit, text, fault_in(error, ("weights",)))
        queue = _named(visit)
        await self._operations.queues.put(queue, QueueSettings(weights))
        return Went(_address(queue), f"{counted(len(weights), 'weight')} set, for runs that are made from now on.")


def _named(visit: Visit) -> str:
    queue = named_queue(visit.text("name"))
    if queue is None:
        raise NotFound("name the queue, as in /queue?name=images")
    return queue


def _address(queue: str) -> str:
    return "/queue?" + urlencode({"name": queue})


def _read(text: str) -> dict[str, int]:
    """Lines such as `gold=3`. Raises InvalidRequest."""
    found: dict[str, int] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        key, sign, number = line.rpartition("=")
        if not sign or not key or not number.strip().isdecimal() or len(number) > 9:
            raise InvalidRequest(f"weights: {line[:50]!r} is not KEY=NUMBER, such as gold=3", field="weights")
        found[key.strip()] = int(number)
    try:
        return msgspec.convert(found, FairWeights)
    except msgspec.ValidationError:
        raise InvalidRequest(
            f"weights: each is 1 to {FAIR_WEIGHT_MAX:,}, of 200 keys at most", field="weights"
        ) from None


def _text(weights: FairWeights) -> str:
    return "\n".join(f"{key}={weight}" for key, weight in sorted(weights.items()))


def _pace(queue: QueueStats, ended: Sequence[Run], now: Instant) -> tuple[str, str]:
    """How many runs end in a minute, and when the queue is empty at that rate; by the last ones of an hour."""
    ends = sorted(run.finished_at for run in ended if run.finished_at is not None and now - run.finished_at < HOUR)
    if len(ends) < RUNS_NEEDED or now - ends[0] < MINUTE:
        return "not known", "not known" if queue.due else "nothing waits"
    rate = len(ends) * MINUTE / (now - ends[0])
    empty = f"in about {span(round(queue.due / rate) * MINUTE)}" if queue.due >= rate else "within a minute"
    return f"{rate:,.1f}", empty if queue.due else "nothing waits"


def _usual(ended: Sequence[Run]) -> str:
    took = [run.finished_at - run.started_at for run in ended
            if run.finished_at is not None and run.started_at is not None]  # fmt: skip
    return duration(round(median(took))) if took else "not known"
