"""The common part of every bus on a network: one connection, made again for as long as the bus is open.

An adapter derives from `Link` and writes `_session`: connect, call `_went_up`, serve until the connection breaks. The
fate of a message is told by the error: before the hand-over it is BusUnavailable, after it Unconfirmed. After a
confirmation that never came the broker has to prove itself: one message at a time goes out until one is confirmed, so
that a broker that takes messages and says nothing costs one attempt, not one of every run.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from horarium.buses.inbox import Inbox, Interest
from horarium.errors import BusUnavailable
from horarium.ports import Report, Unconfirmed

PATIENCE_SECONDS = 2.0
"""How long a publish waits for a connection."""


class Standing:
    """Whether the broker can be reached. `problem`: its fault, if it has one."""

    def __init__(self, kind: str) -> None:
        self.problem: str | None = None
        self._kind = kind
        self._up = asyncio.Event()

    @property
    def is_up(self) -> bool:
        return self._up.is_set()

    def went_up(self) -> None:
        log.info("%s: connected", self._kind)
        self.problem = None
        self._up.set()

    def went_down(self, reason: str, *, wanted: bool = False) -> None:
        """`wanted`: this side closed the connection; there is nothing to warn of."""
        if self.problem is None and not wanted:
            log.warning("%s: %s; connecting again", self._kind, reason)
        self.problem = f"{self._kind}: {reason}"
        self._up.clear()

    async def wait_up(self) -> None:
        """Wait a moment for the connection. Raises BusUnavailable."""
        if self._up.is_set():
            return
        try:
            await asyncio.wait_for(self._up.wait(), PATIENCE_SECONDS)
        except TimeoutError:
            raise BusUnavailable(self.problem or f"{self._kind}: not connected") from None


class Proof:
    """The debt of a broker that left a message unconfirmed: to confirm one, before others are sent to it."""

    def __init__(self, kind: str) -> None:
        self.is_owed = False
        self._kind = kind
        self._under_way = False

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Around sending one message; given if that raises nothing. Raises BusUnavailable for a second one."""
        if self._under_way:
            raise BusUnavailable(f"{self._kind}: waiting for the broker to confirm a message again")
        self._under_way = True
        try:
            yield
            self.is_owed = False
        finally:
            self._under_way = False


KINDS = ("status", "heartbeat")
"""The type of reports; `action` is that of messages to workers."""
CONNECT_SECONDS = 10.0
CONFIRM_SECONDS = 10.0
CLOSE_SECONDS = 5.0
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.1, 2.0
"""Between two tries to connect."""

log = logging.getLogger("horarium")


def queue_name(job: str, kind: str) -> str:
    """The wire's name of one of a job's queues."""
    return f"scheduler.job.{job}.{kind}"


class Link(ABC):
    """The common part of `ports.Bus`. `_session`, `_send`, `_settle` are the adapter's."""

    kind = "bus"

    def __init__(self, confirm_seconds: float = CONFIRM_SECONDS) -> None:
        self._confirm_seconds = confirm_seconds
        self._inbox = Inbox()
        self._interest = Interest()
        self._standing = Standing(self.kind)
        self._proof = Proof(self.kind)
        self._keeper: asyncio.Task[None] | None = None

    # ---- the connection

    @property
    def problem(self) -> str | None:
        return self._standing.problem

    def open(self, wake: Callable[[], None]) -> None:
        self._inbox.wake = wake
        self._interest.over = False
        self._standing.problem = None
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._keep(), name=f"horarium-{self.kind}")

    async def close(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await end([keeper], 2 * CLOSE_SECONDS)
        self._went_down("closed")

    async def _keep(self) -> None:
        pause = PAUSE_SECONDS_MIN
        while True:
            try:
                await self._session()
                reason = "the connection was closed"
            except asyncio.CancelledError:
                reason = "the connection was cut"
            except Exception as error:
                reason = words(error)
            if asking_to_end():
                return
            if self._standing.is_up:
                pause = PAUSE_SECONDS_MIN
            self._went_down(reason)
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)

    def _went_up(self) -> None:
        self._standing.went_up()
        self._inbox.wake()

    def _went_down(self, reason: str) -> None:
        """A received message is no longer ours to acknowledge: the broker gives it out again."""
        self._standing.went_down(reason, wanted=self._keeper is None)
        self._inbox.clear()

    @abstractmethod
    async def _session(self) -> None:
        """One connection, from its beginning to its end. Calls `_went_up` once it can be used."""

    # ---- actions

    async def publish(self, job: str, body: bytes, expires_seconds: float) -> None:
        self._interest.add(job)
        await self._standing.wait_up()
        if not self._proof.is_owed:
            await self._try(job, body, expires_seconds)
            return
        with self._proof.attempt():
            await self._try(job, body, expires_seconds)

    async def _try(self, job: str, body: bytes, expires_seconds: float) -> None:
        """Send, and give every failure its meaning."""
        try:
            await self._send(job, body, expires_seconds)
        except TimeoutError:
            self._proof.is_owed = True
            self._cut()
            raise Unconfirmed(f"{self.kind}: no confirmation within {self._confirm_seconds:g} s") from None
        except asyncio.CancelledError:
            if asking_to_end():
                raise
            raise Unconfirmed(f"{self.kind}: the connection was cut before the confirmation came") from None
        except BusUnavailable:
            raise
        except Exception as error:
            raise Unconfirmed(f"{self.kind}: {words(error)}") from error

    @abstractmethod
    async def _send(self, job: str, body: bytes, expires_seconds: float) -> None:
        """Send one action and wait for its confirmation. Raises TimeoutError if it does not come in time,
        BusUnavailable if the message certainly was not taken; anything else counts as unconfirmed."""

    @abstractmethod
    def _cut(self) -> None:
        """Give the present connection up: the broker does not answer."""

    # ---- reports

    def listen(self, jobs: Iterable[str]) -> None:
        self._interest.list_jobs(jobs)

    def take(self, limit: int) -> list[Report]:
        return self._inbox.take(limit)

    async def nack(self, reports: Sequence[Report]) -> None:
        await self._settle(reports, "nack")

    async def ack(self, reports: Sequence[Report]) -> None:
        await self._settle(reports, "ack")

    async def reject(self, reports: Sequence[Report]) -> None:
        await self._settle(reports, "reject")

    async def _settle(self, reports: Sequence[Report], how: str) -> None:
        if not reports:
            return
        try:
            async with asyncio.timeout(self._confirm_seconds):
                await self._answer(reports, how)
        except asyncio.CancelledError:
            if asking_to_end():
                raise
        except Exception as error:
            log.debug("%s: %d reports could not be answered (%s); they come again", self.kind, len(reports), error)

    @abstractmethod
    async def _answer(self, reports: Sequence[Report], how: str) -> None:
        """Tell the broker `ack`, `nack` or `reject`. What it raises is let be: then the reports come again."""

    async def drain(self) -> None:
        self._interest.end()
        if self._standing.is_up:
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._stop_receiving()
        await self.nack(self.take(len(self._inbox)))

    @abstractmethod
    async def _stop_receiving(self) -> None:
        """Return when no report comes in any more."""


async def end(tasks: Sequence[asyncio.Task[Any]], patience_seconds: float) -> None:
    """Cancel these and wait for their end. A driver may swallow a cancellation, so they are cancelled again."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        done, left = await asyncio.wait(left, timeout=patience_seconds)
        for task in done:
            if not task.cancelled():
                task.exception()


def asking_to_end() -> bool:
    """Whether this very task was asked to end; a driver may raise CancelledError for reasons of its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def words(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
