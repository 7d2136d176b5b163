"""Cancels of runs that are performed elsewhere: workers on a bus, and HTTP endpoints that took a run over (202).

Everything follows from the store, so that a cancel asked anywhere (another node, a planner, a deleted job) gets through
and a crash loses none. On a bus every node that serves it sends, again and again until the run ends. To an endpoint one
node sends a signed request, once per cancel: the node that delivered the attempt, or, where that is gone, the first of
those that deliver. The result is written into the run's history, which is also how every node knows that it was
sent. An attempt whose request is still under way is left out: it is ended where it is, and its delivery informs
the endpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

from horarium.clock import DAY, INSTANT_MAX, SECOND, Clock, Instant, to_micros, to_wall
from horarium.errors import Outage
from horarium.model import EventKind, HttpTarget, Job, Node, Run, RunChange, State
from horarium.operations.writing.named import jobs_of
from horarium.ports import BATCH_MAX, CANCEL, Bus, Store
from horarium.rules.settling import noted
from horarium.services.loop.beat import BEAT_EVERY
from horarium.services.loop.service import Service, Wake

LOOK_SECONDS = 5.0
"""How often runs that were asked to stop are looked for, without any signal."""
LOOK_SECONDS_MIN = 0.2
"""At most this often, with any number of cancels."""
LEASE_MAX = DAY
CANCEL_AGAIN = 5 * SECOND
"""How often a cancel is sent over a bus until its run ends."""
AT_ONCE_MAX = 64
"""Cancel requests under way at one time."""
TRIES_MAX = 3
PAUSE_SECONDS = 2.0
"""Before the second try; twice that before the third."""
STOP_SECONDS = 5.0
SILENT_AFTER = BEAT_EVERY * 3 // 2
CANCEL_SENT = {
    EventKind.CANCEL_TAKEN: "cancel request taken by its endpoint",
    EventKind.CANCEL_NOT_TAKEN: "cancel request not taken by its endpoint",
}

Held = tuple[str, int]
"""Run and token."""
SendCancel = Callable[[Run], Awaitable[None]]
"""Sends one cancel over a bus. Raises BusUnavailable."""
Notify = Callable[[HttpTarget, Run], Awaitable[bool]]
"""Sends one cancel request. Whether it was taken."""


async def cancelling_runs(store: Store, queue: str, clock: Clock) -> list[Run]:
    """The runs of a queue that were asked to stop. Their leases are not renewed any more, so they are among those
    that end soonest."""
    runs, _ = await store.overdue_runs(clock.now(), BATCH_MAX, clock.steady() + LEASE_MAX)
    return [run for run in runs if run.state is State.CANCELLING and run.queue == queue]


# ---- over a bus -------------------------------------------------------------------------------------------------


class BusCancels(Service):
    """Tells workers to stop: a cancel goes out for each run of this bus that was asked to stop, again and again until
    it ends, from every node that serves the bus. Nothing is remembered that a crash could lose."""

    topics = (CANCEL,)

    def __init__(self, name: str, bus: Bus, store: Store, clock: Clock, send: SendCancel) -> None:
        self.name = f"cancels-{name}"
        self._queue = f"bus/{name}"
        self._bus = bus
        self._store = store
        self._clock = clock
        self._send = send
        self._asked = True
        self._looked_at: Instant | None = None
        self._sent: dict[Held, Instant] = {}
        self._named: dict[str, Run] = {}
        self.wake = Wake()

    def signalled(self) -> None:
        """A cancel was asked, of any run."""
        self._asked = True

    def add(self, run: Run) -> None:
        """Tell this one to stop, soon: its worker has just shown that it does not know."""
        self._named[run.id] = run
        self.wake()

    async def step(self, now: Instant) -> Instant | None:
        if self._bus.problem is not None:
            return None
        self._sent = {key: at for key, at in self._sent.items() if now - CANCEL_AGAIN < at <= now}
        for run in list(self._named.values()):
            await self._tell([run], now)
            if self._named[run.id] is run:
                del self._named[run.id]
        pause = to_micros(LOOK_SECONDS_MIN if self._asked else LOOK_SECONDS)
        if self._looked_at is None or not self._looked_at <= now < self._looked_at + pause:
            self._asked = False
            self._looked_at = now
            try:
                await self._tell(await cancelling_runs(self._store, self._queue, self._clock), now)
            except Outage:
                self._asked, self._looked_at = True, None
                raise
        elif self._asked:
            return self._looked_at + pause
        return None

    async def _tell(self, runs: Iterable[Run], now: Instant) -> None:
        """Send a cancel for each, unless one went out just now."""
        for run in runs:
            if _held(run) not in self._sent:
                await self._send(run)
                self._sent[_held(run)] = now


# ---- to HTTP endpoints ------------------------------------------------------------------------------------------


def sends(run: Run, me: str, nodes: Sequence[Node], now: Instant) -> bool:
    """Whether this node sends the cancel of that run: it delivered it, or it is the first of those that deliver and
    the one that did is gone."""
    alive = {node.name for node in nodes if "dispatcher" in node.roles and node.is_alive(now, SILENT_AFTER)}
    if run.worker == me:
        return True
    return run.worker not in alive and min({me, *alive}) == me


def was_told(run: Run) -> bool:
    """Whether its history says that the cancel went out, or was given up."""
    return any(event.state is State.CANCELLING and event.kind in CANCEL_SENT for event in run.history)


class HttpCancels(Service):
    """The service that sends them. `under_way`: whether this process is still performing that attempt's request."""

    name = "cancels-http"
    topics = (CANCEL,)
    sleeps = True

    def __init__(
        self,
        store: Store,
        clock: Clock,
        node: str,
        notify: Notify,
        under_way: Callable[[Run], bool],
    ) -> None:
        self._store = store
        self._clock = clock
        self._node = node
        self._notify = notify
        self._under_way = under_way
        self._asked = True
        self._looked_at: Instant | None = None
        self._sending: dict[Held, asyncio.Task[None]] = {}
        self._tried: dict[Held, tuple[int, Instant]] = {}
        self.wake = Wake()

    def signalled(self) -> None:
        """A cancel was asked, of any run."""
        self._asked = True

    async def step(self, now: Instant) -> Instant | None:
        """Begin to send the cancels of all runs that were asked to stop and that this node is to send."""
        again_at = self._again_at()
        hurried = self._asked or again_at <= now
        pause = to_micros(LOOK_SECONDS_MIN if hurried else LOOK_SECONDS)
        if self._looked_at is not None and self._looked_at <= now < self._looked_at + pause:
            return min(self._looked_at + pause, again_at)
        self._asked = False
        self._looked_at = now
        try:
            runs = await self._ours(await cancelling_runs(self._store, "http", self._clock), now)
            jobs = await jobs_of(self._store, runs)
        except Outage:
            self._asked, self._looked_at = True, None
            raise
        self._tried = {key: tried for run in runs if (tried := self._tried.get(key := _held(run))) is not None}
        for run in runs:
            target = _target(run, jobs.get(run.job_id or ""))
            if target is not None and _held(run) not in self._sending:
                self._consider(run, target)
        look_at = now + to_micros(LOOK_SECONDS_MIN if self._asked else LOOK_SECONDS)
        return min(look_at, self._again_at())

    def _again_at(self) -> Instant:
        """When the next try of any is due, by the wall clock."""
        return min((to_wall(self._clock, at) for _, at in self._tried.values()), default=INSTANT_MAX)

    async def _ours(self, runs: Sequence[Run], now: Instant) -> list[Run]:
        """Those whose cancel was not sent yet, and is to be sent by this node."""
        runs = [run for run in runs if not was_told(run)]
        others = any(run.worker != self._node for run in runs)
        nodes = await self._store.list_nodes(now - SILENT_AFTER) if others else []
        return [run for run in runs if sends(run, self._node, nodes, now)]

    def _consider(self, run: Run, target: HttpTarget) -> None:
        """Send it now, unless its time has not come."""
        key = _held(run)
        tries, not_before = self._tried.get(key, (0, 0))
        if not_before > self._clock.steady():
            return
        if self._under_way(run) or len(self._sending) >= AT_ONCE_MAX:
            self._asked = True
            return
        task = asyncio.get_running_loop().create_task(self._tell(run, target, tries + 1))
        self._sending[key] = task
        task.add_done_callback(lambda _: self._sent(key))

    def _sent(self, key: Held) -> None:
        self._sending.pop(key, None)
        self.wake()

    async def _tell(self, run: Run, target: HttpTarget, number: int) -> None:
        """One try. The last one counts, taken or not. Where the store is out, it may be sent once more, with the same
        id. The run is read again first: its delivery may have ended, and informed the endpoint, since it was read."""
        try:
            if not await self._still(run):
                return
        except Outage:
            self._asked = True
            return
        taken = await self._notify(target, run)
        if not taken and number < TRIES_MAX:
            pause = to_micros(PAUSE_SECONDS * 2 ** (number - 1))
            self._tried[_held(run)] = number, self._clock.steady() + pause
            return
        with suppress(Outage):
            present = await self._still(run)
            if present is not None:
                now = self._clock.now()
                kind = EventKind.CANCEL_TAKEN if taken else EventKind.CANCEL_NOT_TAKEN
                after = noted(present, now, CANCEL_SENT[kind], kind)
                await self._store.settle_runs([RunChange(after, run.token, State.CANCELLING)], self._clock.steady())

    async def _still(self, run: Run) -> Run | None:
        """The run as it is now, if its endpoint still has to be told to stop it."""
        (present,) = await self._store.get_runs([run.id])
        if present is None or present.token != run.token or present.state is not State.CANCELLING:
            return None
        return None if was_told(present) else present

    async def stop(self) -> None:
        """Let requests under way end, for at most a few seconds."""
        tasks = list(self._sending.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_SECONDS)
            for task in late:
                task.cancel()


def _held(run: Run) -> Held:
    return run.id, run.token


def _target(run: Run, job: Job | None) -> HttpTarget | None:
    """The run's HTTP target, if it names a URL for cancels."""
    target = job.target if job is not None else run.policy.target if run.policy is not None else None
    return target if isinstance(target, HttpTarget) and target.cancel_url is not None else None
