"""The circuit breaker of HTTP hosts: counts requests that fail in a row, and holds a host that does not answer.

Every node counts for itself, in memory, and shares its streak in a record of its own, `breaker/HOST/NODE`, once a
second at most: no row is written by two nodes. The hold is a hold as others are (`rules.holds`), but for its probes:
the claim lets one run through at a time (`operations.settling.holding`), and a request that is answered lifts it.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec
from msgspec import Struct

from horarium.clock import Instant
from horarium.model import Job, Outcome, Run
from horarium.model.holds import Hold
from horarium.model.records import Record, RecordFilter, put_over
from horarium.operations.bounds.listing import pages_of
from horarium.operations.channels import ChannelOperations
from horarium.operations.holds import HoldOperations
from horarium.operations.settling.holding import PREFIX as HOLD
from horarium.operations.settling.holding import Holding, decode_hold
from horarium.operations.writing.context import Context
from horarium.ports import PAGE_MAX, Assignment, Control, Delivery
from horarium.rules.breaking import PREFIX, Streak, after, answers, failures_in_a_row, going_on, opened, probe_failed
from horarium.rules.holds import claim_text, end_of, host_of
from horarium.services.alerts.troubles import Trouble, tell_system
from horarium.services.loop.service import Service, Wake

SHARED = "breaker/"
HOSTS_MAX = 1_000
"""Hosts of which one node remembers a streak."""

_streak = msgspec.json.Decoder(Streak).decode


class Limits(Struct, frozen=True):
    """How many failures in a row open the breaker (0: none do), and how long it is until the next probe."""

    failures: int
    seconds: float


class Breaker(Service):
    """Counts the failures of hosts on one node, and opens and closes the holds on them."""

    name = "breaker"
    rest_seconds = 0.2

    def __init__(
        self,
        context: Context,
        holds: HoldOperations,
        holding: Holding,
        channels: ChannelOperations,
        node: str,
        limits: Limits,
    ) -> None:
        self.wake = Wake()
        self._context, self._store, self._clock = context, context.store, context.clock
        self._holds = holds
        self._holding = holding
        self._channels = channels
        self._node = node
        self._limits = limits
        self._streaks: dict[str, Streak] = {}
        self._news: dict[str, dict[str, str]] = {}
        """By host: the error of each request since the last look, by its claim."""
        self._opened: dict[str, Hold] = {}

    def looks(self) -> bool:
        return bool(self._news)

    def heard(self, run: Run, job: Job | None, outcome: Outcome | None) -> None:
        """A request was made. Only counts, so that no delivery waits."""
        host, answered = host_of(job, run), answers(outcome)
        if host is None or answered is None or not self._limits.failures:
            return
        before = self._streaks.get(host, Streak())
        if host not in self._streaks and len(self._streaks) >= HOSTS_MAX:
            del self._streaks[next(iter(self._streaks))]
        self._streaks[host] = after(before, answered, self._clock.now())
        is_news = before.failures or not answered or self._is_held(host)
        if is_news:
            self._news.setdefault(host, {})[claim_text(run)] = getattr(outcome, "error", "")
            self.wake()

    def _is_held(self, host: str) -> bool:
        return any(hold.id == PREFIX + host for hold in self._holding.known)

    async def step(self, now: Instant) -> Instant | None:
        if not self._news:
            return None
        shared = await self._shared()
        for host, errors in list(self._news.items()):
            streak = self._streaks.get(host)
            if streak is not None and streak.failures:
                streak = self._streaks[host] = going_on(streak, self._others(shared[host]))
                await self._failed(host, errors, streak, shared[host], now)
            elif streak is not None:
                await self._answered(host, streak, shared[host], now)
            if self._streaks.get(host) in (streak, None):
                self._news.pop(host, None)
        return now if self._news else None

    async def _failed(
        self, host: str, errors: dict[str, str], streak: Streak, shared: dict[str, Record], now: Instant
    ) -> None:
        mine = await self._share(host, streak, shared)
        failures = failures_in_a_row([*self._others(shared), streak], now)
        if failures < self._limits.failures and not self._is_held(host):
            return
        stored, hold = await self._stored(host)
        made = self._opened.get(host)
        if hold is None or end_of(hold) <= now:
            if failures < self._limits.failures:
                return
            made = self._opened[host] = opened(host, failures, [*errors.values()][-1], self._limits.seconds, now)
            if not await self._holds.write(stored, made, "hold.create"):
                return
        elif made is None or made.begins_at != hold.begins_at:
            if stored is not None and (sooner := probe_failed(hold, errors, now)) is not None:
                await self._holds.write(stored, sooner, "hold.update")
            return
        await self._tell("breaker_open", host, made.reason, made.begins_at)
        await self._delete([*shared.values(), mine])
        del self._opened[host]
        if self._streaks.get(host) == streak:
            del self._streaks[host]

    async def _answered(self, host: str, streak: Streak, shared: dict[str, Record], now: Instant) -> None:
        if any(other.failures for other in self._others(shared)):
            await self._share(host, streak, shared)
        else:
            await self._delete(list(shared.values()))
        _, hold = await self._stored(host)
        if hold is not None and end_of(hold) > now:
            await self._tell("breaker_closed", host, f"{host} answers again", hold.begins_at)
            await self._holds.lift(hold.id)

    # ---- what nodes share

    async def _shared(self) -> dict[str, dict[str, Record]]:
        """The records of all nodes, by host and node."""
        found: dict[str, dict[str, Record]] = defaultdict(dict)
        async for page in pages_of(lambda after: self._store.list_records(RecordFilter(SHARED), after, PAGE_MAX)):
            for record in page:
                host, _, node = record.name.removeprefix(SHARED).partition("/")
                found[host][node] = record
        return found

    def _others(self, shared: dict[str, Record]) -> list[Streak]:
        return [_streak(record.body) for node, record in shared.items() if node != self._node]

    async def _share(self, host: str, streak: Streak, shared: dict[str, Record]) -> Record:
        """Write the streak of this node. Its record."""
        name = f"{SHARED}{host}/{self._node}"
        change = put_over(shared.get(self._node), name, msgspec.json.encode(streak))
        await self._store.put_records([change])
        return change.record

    async def _delete(self, records: list[Record]) -> None:
        changes = [record.removal() for record in {record.name: record for record in records}.values()]
        if changes:
            await self._store.put_records(changes)

    async def _stored(self, host: str) -> tuple[Record | None, Hold | None]:
        (record,) = await self._store.get_records([HOLD + PREFIX + host])
        return record, None if record is None else decode_hold(record.body)

    async def _tell(self, event: str, host: str, message: str, at: Instant) -> None:
        await tell_system(self._context, self._channels, Trouble(event, host, at, message))


class Counted:
    """A delivery whose outcomes the breaker hears of."""

    def __init__(self, delivery: Delivery, breaker: Breaker) -> None:
        self._delivery = delivery
        self._breaker = breaker

    async def deliver(self, assignment: Assignment, control: Control) -> Outcome | None:
        """As the delivery does."""
        outcome = await self._delivery.deliver(assignment, control)
        self._breaker.heard(assignment.run, assignment.job, outcome)
        return outcome

    async def close(self) -> None:
        await self._delivery.close()
