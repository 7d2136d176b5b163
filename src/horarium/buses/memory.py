"""A bus within one process: for tests, and for trying out. `memory://NAME`: buses of one name share a broker.

The broker can be stopped and started, and can fall silent, as a real one does; its messages survive both.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

from horarium.buses.link import CONFIRM_SECONDS, CONNECT_SECONDS, KINDS, Link
from horarium.errors import BusUnavailable
from horarium.ports import RECEIVED_MAX, Report

QUEUE_MAX = 1_000_000
"""Messages that one queue holds; more are refused."""

Queue = tuple[str, str]


class MemoryBroker:
    """Queues by (job, kind), and who is connected."""

    def __init__(self) -> None:
        self.running = True
        self.answering = asyncio.Event()
        self.answering.set()
        self.queues: dict[Queue, deque[bytes]] = {}
        self._sessions: list[asyncio.Event] = []
        self._listeners: dict[Queue, list[Callable[[], None]]] = {}
        self._arrivals = asyncio.Event()

    def put(self, job: str, kind: str, body: bytes) -> bool:
        """Put a message on a queue. False: it is full."""
        self.declare(job)
        queue = self.queues[job, kind]
        if len(queue) >= QUEUE_MAX:
            return False
        queue.append(body)
        arrivals, self._arrivals = self._arrivals, asyncio.Event()
        arrivals.set()
        self.tell(job, kind)
        return True

    def declare(self, job: str) -> None:
        """Make what a job lacks of its queues."""
        for each in ("action", *KINDS):
            self.queues.setdefault((job, each), deque())

    def give_back(self, job: str, kind: str, body: bytes) -> None:
        """Put a message at the head of its queue again."""
        self.queues.setdefault((job, kind), deque()).appendleft(body)
        self.tell(job, kind)

    async def get(self, job: str, kind: str) -> bytes:
        """Take the next message of a queue, as a worker does."""
        while not (queue := self.queues.get((job, kind))):
            await self._arrivals.wait()
        return queue.popleft()

    def delete(self, job: str) -> None:
        """Delete a job's queues and their messages."""
        for kind in ("action", *KINDS):
            self.queues.pop((job, kind), None)

    def start(self) -> None:
        """Accept connections."""
        self.running = True

    def kill(self) -> None:
        """Cut every connection, and accept none."""
        self.running = False
        for session in self._sessions:
            session.set()

    def pause(self) -> None:
        """Answer nothing, and close no connection."""
        self.answering.clear()

    def resume(self) -> None:
        """Answer again."""
        self.answering.set()

    def connect(self) -> asyncio.Event:
        """A session; its event is set when it is cut."""
        if not self.running:
            raise BusUnavailable("memory: the broker is down")
        session = asyncio.Event()
        self._sessions.append(session)
        return session

    def hang_up(self, session: asyncio.Event) -> None:
        """End a session."""
        session.set()
        if session in self._sessions:
            self._sessions.remove(session)

    def listen(self, queue: Queue, pull: Callable[[], None]) -> None:
        """Call `pull` whenever there is something on the queue."""
        self._listeners.setdefault(queue, []).append(pull)

    def unlisten(self, pull: Callable[[], None]) -> None:
        """Stop calling it, on every queue."""
        for listeners in self._listeners.values():
            if pull in listeners:
                listeners.remove(pull)

    def tell(self, job: str, kind: str) -> None:
        """Wake the listeners in turn."""
        listeners = self._listeners.get((job, kind), [])
        if listeners:
            listeners.append(listeners.pop(0))
        for pull in tuple(listeners):
            pull()


_brokers: WeakValueDictionary[str, MemoryBroker] = WeakValueDictionary()


def broker_of(name: str) -> MemoryBroker:
    """The broker of that name in this process."""
    broker = _brokers.get(name)
    if broker is None:
        broker = _brokers[name] = MemoryBroker()
    return broker


class MemoryBus(Link):
    """A bus on a MemoryBroker."""

    kind = "memory"

    def __init__(self, broker: MemoryBroker, confirm_seconds: float = CONFIRM_SECONDS) -> None:
        super().__init__(confirm_seconds)
        self.broker = broker
        self._session_end: asyncio.Event | None = None
        self._held: dict[int, Report] = {}
        self._number = 0

    async def _session(self) -> None:
        broker = self.broker
        async with asyncio.timeout(CONNECT_SECONDS):
            await broker.answering.wait()
        session = broker.connect()
        self._session_end = session
        try:
            self._went_up()
            while not session.is_set():
                self._interest.changed.clear()
                self._listen_to_all()
                waits = [asyncio.ensure_future(event.wait()) for event in (session, self._interest.changed)]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
        finally:
            self._session_end = None
            broker.hang_up(session)
            broker.unlisten(self._pull)
            held, self._held = self._held, {}
            self._inbox.clear()
            for report in reversed(held.values()):
                broker.give_back(report.job, report.kind, report.body)

    def _listen_to_all(self) -> None:
        self.broker.unlisten(self._pull)
        for job in sorted(self._interest.jobs):
            self.broker.declare(job)
            for kind in KINDS:
                self.broker.listen((job, kind), self._pull)
        self._pull()

    def _pull(self) -> None:
        """Receive what there is, as far as there is room."""
        if self._session_end is None or self._session_end.is_set() or not self.broker.answering.is_set():
            return
        for job in sorted(self._interest.jobs):
            for kind in KINDS:
                queue = self.broker.queues.get((job, kind), deque())
                while queue and len(self._held) < RECEIVED_MAX:
                    self._receive(job, kind, queue.popleft())

    def _receive(self, job: str, kind: str, body: bytes) -> None:
        self._number += 1
        report = Report(kind, job, body, self._number)
        self._held[self._number] = report
        self._inbox.add(report)

    async def _send(self, job: str, body: bytes, expires_seconds: float) -> None:
        async with asyncio.timeout(self._confirm_seconds):
            await self.broker.answering.wait()
        if self._session_end is None or self._session_end.is_set():
            raise BusUnavailable(self.problem or "memory: not connected")
        if not self.broker.put(job, "action", body):
            raise BusUnavailable(f"memory: {QUEUE_MAX:,} actions of {job!r} wait already")

    def _cut(self) -> None:
        if self._session_end is not None:
            self._session_end.set()

    async def _answer(self, reports: Sequence[Report], how: str) -> None:
        for report in reports:
            if self._held.pop(report.receipt, None) is not None and how == "nack":
                self.broker.give_back(report.job, report.kind, report.body)
        self._pull()

    async def _stop_receiving(self) -> None:
        self.broker.unlisten(self._pull)
