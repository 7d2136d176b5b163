"""Wake-ups: a dictionary of callbacks within one process, and what every way of carrying them between processes shares.

Nothing is queued for a listener: a wake-up that no listener waits for is lost, which does no harm, since a listener
looks for work before it waits. They only cut latency; everything stays correct with all of them dropped.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from horarium.errors import HorariumError, Outage
from horarium.ports import ENDED, ENDED_RUN, REPEATED, WRITTEN, Topic


def _nothing() -> None:
    """No one listens."""


class Written:
    """How often it was seen that something was written to a store: a server says a mark when it is asked, another one
    after each write by any process. A change is told at once to listeners. Used on one event loop."""

    def __init__(self) -> None:
        self._mark: object = None
        self._count = 0
        self.tell: Callable[[], None] = _nothing
        """Called when it was seen that something was written."""

    def saw(self, mark: object) -> None:
        """The last mark of the server. None: it did not answer, or can't tell."""
        if mark != self._mark:
            self._mark, self._count = mark, self._count + 1
            self.tell()

    def count(self) -> int | None:
        """`ports.Signal.writes`, as of when the server was last asked. A server that no one uses writes now and then
        for itself. None: it was not asked, did not answer, or can't tell."""
        return None if self._mark is None else self._count


POLL_SECONDS = 0.1
AWAITED_POLL_SECONDS, PACE_SECONDS, AT_ONCE = 0.01, 0.04, 10
"""The same while a caller waits for the end of a run: ten times with the first pause, then at that pace."""
RECONNECT_SECONDS_MIN, RECONNECT_SECONDS_MAX = 0.2, 5.0
WAITING_MAX = 1_000
"""Topics that wait to be sent, at most; more are dropped."""
CANCEL_SECONDS = 0.2

Work = Callable[[asyncio.Event], Awaitable[None]]


class LocalSignal:
    """The Signal of one process. Used on the event loop only."""

    def __init__(self) -> None:
        self._wakes: dict[Topic, list[Callable[[], None]]] = {}

    def publish(self, topic: Topic) -> None:
        if topic in self._wakes:
            self.wake(topic)

    def subscribe(self, topic: Topic, wake: Callable[[], None]) -> Callable[[], None]:
        wakes = self._wakes.setdefault(topic, [])
        wakes.append(wake)

        def unsubscribe() -> None:
            if wake in wakes:
                wakes.remove(wake)
            if not wakes and self._wakes.get(topic) is wakes:
                del self._wakes[topic]

        return unsubscribe

    def writes(self) -> int | None:
        return None

    def wake(self, topic: Topic) -> None:
        """Wake the subscribers of this process."""
        for wake in tuple(self._wakes.get(topic, ())):
            wake()

    def wake_all(self, *but: Topic) -> None:
        """Wake all subscribers: something unknown changed. Repeated words are heard in time."""
        for topic in tuple(self._wakes):
            if not topic.endswith(REPEATED) and topic not in but:
                self.wake(topic)


class ChangeCounter(Protocol):
    """The questions of a PolledSignal."""

    async def changed(self) -> bool:
        """Whether another process wrote since this was last asked. Raises Outage."""

    async def over(self, run_ids: Sequence[str], /) -> list[str]:
        """Those of these runs that are over, or do not exist. Raises Outage."""

    async def touched(self) -> None:
        """Return once it is possible that a process wrote since `changed` was asked."""

    def close(self) -> None:
        """It is not asked any more."""


class PolledSignal(LocalSignal):
    """A LocalSignal that also asks, ten times a second, whether another process wrote: for stores that can't notify,
    but where asking costs almost nothing (a SQLite file: one pragma), and where it is known when there is no need to.
    While a caller waits for the end of a run it asks after 10 ms, on a busy file 25 times a second, which of those runs
    are over, and wakes these callers alone as often.
    `written`: how much this process wrote."""

    def __init__(self, asked: ChangeCounter, written: Callable[[], int]) -> None:
        super().__init__()
        self._asked = asked
        self._written = written
        self._foreign = 0
        self._task: asyncio.Task[None] | None = None
        self._awaited = asyncio.Event()
        self._paced_at = 0.0
        self._waking: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Begin to ask."""
        if self._task is None:
            self._task = asyncio.create_task(self._ask())

    async def stop(self) -> None:
        """Stop asking."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            self._asked.close()
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None

    def subscribe(self, topic: Topic, wake: Callable[[], None]) -> Callable[[], None]:
        if topic == ENDED:
            self._awaited.set()
        return super().subscribe(topic, wake)

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        woken_at = 0.0
        while True:
            await self._pause()
            await self._asked.touched()
            try:
                if not await self._asked.changed():
                    continue
            except Outage:
                self._foreign += 1
                continue
            self._foreign += 1
            await self._wake_ended()
            if self._waking is None:
                woken_at = max(loop.time(), woken_at + POLL_SECONDS)
                self._waking = loop.call_at(woken_at, self._wake_all)

    async def _wake_ended(self) -> None:
        awaited = [topic[len(ENDED_RUN) : -len(REPEATED)] for topic in self._wakes if topic.startswith(ENDED_RUN)]
        with suppress(Outage):
            for run_id in await self._asked.over(awaited):
                self.wake(Topic(f"{ENDED_RUN}{run_id}{REPEATED}"))

    async def _pause(self) -> None:
        now = asyncio.get_running_loop().time()
        self._paced_at = max(self._paced_at, now - AT_ONCE * PACE_SECONDS) + PACE_SECONDS
        await asyncio.sleep(max(AWAITED_POLL_SECONDS, self._paced_at - now))
        if ENDED not in self._wakes:
            self._awaited.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._awaited.wait(), POLL_SECONDS - AWAITED_POLL_SECONDS)

    def _wake_all(self) -> None:
        self._waking = None
        self.wake_all(ENDED)

    def writes(self) -> int | None:
        return self._foreign + self._written()


class SharedSignal(LocalSignal, ABC):
    """A LocalSignal whose publications other processes hear too. One task listens, one sends, each over a connection of
    its own, so publishing never waits, and later wake-ups are coalesced, a topic once. A task that fails starts again,
    more slowly while it goes on failing; what it was about to send is dropped. An adapter says how, in `_listen` (which
    calls `_listens` once it hears) and `_send` (which sends `_topics` until it fails); both raise a HorariumError when
    they are cut off, and set `went_well` once something got through. `written`: the change counter of the store."""

    def __init__(self, written: Written | None = None) -> None:
        super().__init__()
        self._written = written or Written()
        self._written.tell = self._tell_written
        self.listening = asyncio.Event()
        """Set while publications of other processes are heard."""
        self._waiting: dict[Topic, None] = {}
        self._sendable = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def publish(self, topic: Topic) -> None:
        self.wake(topic)
        if self._tasks and len(self._waiting) < WAITING_MAX:
            self._waiting[topic] = None
            self._sendable.set()

    async def start(self) -> None:
        """Begin to listen and to send, and go on through every outage until `stop`. Returns at once."""
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = {loop.create_task(self._again(work)) for work in (self._listen, self._send)}

    def writes(self) -> int | None:
        return self._written.count()

    def _tell_written(self) -> None:
        self.wake(WRITTEN)

    async def stop(self) -> None:
        """Disconnect. May be called twice."""
        tasks, self._tasks = self._tasks, set()
        while tasks:
            # Once may not do: a driver in the middle of connecting may take a cancellation for a failure.
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)

    async def _again(self, work: Work) -> None:
        pause = RECONNECT_SECONDS_MIN
        while True:
            went_well = asyncio.Event()
            with suppress(HorariumError):
                await work(went_well)
            if work == self._listen:
                self.listening.clear()
            pause = RECONNECT_SECONDS_MIN if went_well.is_set() else min(2 * pause, RECONNECT_SECONDS_MAX)
            await asyncio.sleep(pause)

    @abstractmethod
    async def _listen(self, went_well: asyncio.Event) -> None:
        """Hear what others publish, until cut off."""

    @abstractmethod
    async def _send(self, went_well: asyncio.Event) -> None:
        """Send local wake-ups, until cut off."""

    def _listens(self, went_well: asyncio.Event) -> None:
        """Listening has begun, perhaps again: earlier wake-ups are lost, so all subscribers are woken."""
        went_well.set()
        self.listening.set()
        self.wake_all()

    async def _topics(self) -> list[Topic]:
        """The topics to send: waits until there is one."""
        while not self._waiting:
            await self._sendable.wait()
            self._sendable.clear()
        topics, self._waiting = list(self._waiting), {}
        return topics
