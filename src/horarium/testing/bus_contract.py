"""The contract of `ports.Bus` as tests: derive `BusContract` for a bus of your own.

    class TestMyBus(BusContract):
        broker = ...        a fixture that gives a `Broker`: the real one, and the worker's side of it
        def make_bus(self, broker, confirm_seconds): return MyBus(broker.url, confirm_seconds)

It needs pytest and pytest-asyncio with `asyncio_mode = "auto"`. Every test uses a job of its own, so one broker serves
all of them. `Broker.kill` and `Broker.pause` do it to the real thing.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

import pytest
import pytest_asyncio

from horarium.errors import BusUnavailable
from horarium.ports import RECEIVED_MAX, Bus, Report, Unconfirmed

ANSWER_SECONDS = 60.0
"""How long anything may take, a broker's restart not included."""
CONFIRM_SECONDS = 30.0
JOBS = itertools.count()


class Broker(Protocol):
    """A broker, and the worker's side of it."""

    async def start(self) -> None:
        """Start it, with all that it had stored."""

    async def kill(self) -> None:
        """End it at once."""

    async def pause(self) -> None:
        """It answers nothing any more, and closes no connection."""

    async def resume(self) -> None:
        """It answers again."""

    async def receive(self, job: str) -> bytes:
        """The next action of the job, acknowledged. Waits for one, and for the queue."""

    async def send(self, job: str, kind: str, bodies: Sequence[bytes]) -> None:
        """Put reports on the job's queue, confirmed."""

    async def waiting(self, job: str, kind: str) -> int:
        """Messages on the queue that no consumer holds."""

    async def delete_queues(self, job: str) -> None:
        """Delete all that the job has, with its messages."""


class Listener:
    """A bus under test, and what it has received."""

    def __init__(self, bus: Bus, job: str) -> None:
        self.bus = bus
        self.job = job
        self._woken = asyncio.Event()

    def open(self) -> None:
        self.bus.open(self._woken.set)

    async def take(self, count: int = 1) -> list[Report]:
        """Wait until this number of reports has come in."""
        taken: list[Report] = []
        async with asyncio.timeout(ANSWER_SECONDS):
            while len(taken) < count:
                self._woken.clear()
                found = self.bus.take(count - len(taken))
                taken += await self.ours(found)
                if not found:
                    await self._woken.wait()
        return taken

    async def ours(self, reports: Sequence[Report]) -> list[Report]:
        """Those of our job. A bus may bring reports of others too: what earlier tests have left is put away."""
        await self.bus.ack([report for report in reports if report.job != self.job])
        return [report for report in reports if report.job == self.job]

    async def publish(self, job: str, body: bytes) -> None:
        """Publish; while the broker is away, again and again."""
        async with asyncio.timeout(ANSWER_SECONDS * 2):
            while True:
                try:
                    return await self.bus.publish(job, body, 60)
                except BusUnavailable:
                    await asyncio.sleep(0.05)


async def eventually(holds: Callable[[], bool]) -> None:
    """Return when it holds."""
    async with asyncio.timeout(ANSWER_SECONDS * 2):
        while not holds():  # noqa: ASYNC110 (a broker on another machine sets no event of ours)
            await asyncio.sleep(0.02)


class BusContract(ABC):
    """Everything that `ports.Bus` promises."""

    @abstractmethod
    def make_bus(self, broker: Broker, confirm_seconds: float) -> Bus:
        """A bus on this broker, not opened. It gives a confirmation up after `confirm_seconds`."""

    @pytest.fixture
    def job(self) -> str:
        return f"contract.{next(JOBS)}:job"

    @pytest_asyncio.fixture
    async def bus(self, broker: Broker, job: str) -> AsyncIterator[Listener]:
        listener = Listener(self.make_bus(broker, CONFIRM_SECONDS), job)
        listener.open()
        yield listener
        await listener.bus.close()

    @pytest_asyncio.fixture
    async def other(self, broker: Broker, job: str) -> AsyncIterator[Listener]:
        listener = Listener(self.make_bus(broker, CONFIRM_SECONDS), job)
        yield listener
        await listener.bus.close()

    # ---- actions

    async def test_an_action_arrives_as_it_was_published(self, bus: Listener, broker: Broker, job: str) -> None:
        body = b'{"text": "\xc3\xa9\\u0000"}'
        await bus.publish(job, body)
        assert await broker.receive(job) == body

    async def test_many_published_at_once_arrive_once_each(self, bus: Listener, broker: Broker, job: str) -> None:
        bodies = {b"%d" % number for number in range(500)}
        await asyncio.gather(*(bus.publish(job, body) for body in bodies))
        received = [await broker.receive(job) for _ in bodies]
        assert len(received) == len(bodies)
        assert set(received) == bodies

    async def test_a_large_action_arrives(self, bus: Listener, broker: Broker, job: str) -> None:
        body = b"x" * 400_000
        await bus.publish(job, body)
        assert await broker.receive(job) == body

    async def test_actions_of_one_job_do_not_reach_another(self, bus: Listener, broker: Broker, job: str) -> None:
        await bus.publish(job, b"mine")
        await bus.publish(f"{job}.action", b"other")
        assert await broker.receive(job) == b"mine"
        assert await broker.waiting(job, "action") == 0

    async def test_a_job_may_have_any_name(self, bus: Listener, broker: Broker, job: str) -> None:
        bus.job = f"{job} \u00e4.(b) & 'c' * > %2E!"
        await bus.publish(bus.job, b"mine")
        assert await broker.receive(bus.job) == b"mine"
        await broker.send(bus.job, "status", [b"s"])
        assert [(report.job, report.body) for report in await bus.take()] == [(bus.job, b"s")]

    # ---- reports

    async def test_reports_come_with_their_kind_and_job(self, bus: Listener, broker: Broker, job: str) -> None:
        await bus.publish(job, b"{}")
        await broker.send(job, "status", [b"s"])
        await broker.send(job, "heartbeat", [b"h"])
        taken = await bus.take(2)
        assert {(report.kind, report.job, report.body) for report in taken} == {
            ("status", job, b"s"),
            ("heartbeat", job, b"h"),
        }

    async def test_a_job_that_is_listed_is_listened_to(
        self, bus: Listener, other: Listener, broker: Broker, job: str
    ) -> None:
        await bus.publish(job, b"{}")
        await bus.bus.close()
        await broker.send(job, "status", [b"s"])
        other.bus.listen([job])
        other.open()
        assert [report.body for report in await other.take()] == [b"s"]

    async def test_what_is_not_acknowledged_comes_again_after_a_crash(
        self, bus: Listener, other: Listener, broker: Broker, job: str
    ) -> None:
        await bus.publish(job, b"{}")
        await broker.send(job, "status", [b"kept", b"done"])
        taken = await bus.take(2)
        await bus.bus.ack([report for report in taken if report.body == b"done"])
        await bus.bus.close()
        other.bus.listen([job])
        other.open()
        assert [report.body for report in await other.take()] == [b"kept"]
        await broker.send(job, "status", [b"later"])
        assert [report.body for report in await other.take()] == [b"later"]

    async def test_what_is_given_back_comes_again(self, bus: Listener, broker: Broker, job: str) -> None:
        await bus.publish(job, b"{}")
        await broker.send(job, "status", [b"s"])
        await bus.bus.nack(await bus.take())
        again = await bus.take()
        assert [report.body for report in again] == [b"s"]
        await bus.bus.ack(again)

    async def test_what_is_rejected_does_not_come_again(
        self, bus: Listener, other: Listener, broker: Broker, job: str
    ) -> None:
        await bus.publish(job, b"{}")
        await broker.send(job, "status", [b"poison"])
        await bus.bus.reject(await bus.take())
        await bus.bus.close()
        other.bus.listen([job])
        other.open()
        await broker.send(job, "status", [b"good"])
        assert [report.body for report in await other.take()] == [b"good"]

    async def test_an_answer_that_comes_late_or_twice_harms_nothing(
        self, bus: Listener, broker: Broker, job: str
    ) -> None:
        await bus.publish(job, b"{}")
        await broker.send(job, "status", [b"s"])
        taken = await bus.take()
        await bus.bus.ack(taken)
        await bus.bus.close()
        await bus.bus.ack(taken)
        await bus.bus.nack(taken)
        bus.open()
        await broker.send(job, "status", [b"next"])
        await bus.publish(job, b"{}")
        assert [report.body for report in await bus.take()] == [b"next"]

    async def test_no_more_is_held_than_may_be(self, bus: Listener, broker: Broker, job: str) -> None:
        await bus.publish(job, b"{}")
        extra = 500
        await broker.send(job, "heartbeat", [b"%d" % number for number in range(RECEIVED_MAX + extra)])
        seen: set[bytes] = set()
        while len(seen) < RECEIVED_MAX + extra:
            taken = await bus.take()
            taken += bus.bus.take(RECEIVED_MAX * 2)
            assert len(taken) <= RECEIVED_MAX
            seen |= {report.body for report in taken}
            await bus.bus.ack(taken)

    async def test_nodes_share_the_reports(self, bus: Listener, other: Listener, broker: Broker, job: str) -> None:
        await bus.publish(job, b"{}")
        other.open()
        await other.publish(job, b"{}")
        await broker.send(job, "status", [b"%d" % number for number in range(50)])
        seen: list[bytes] = []

        def gathered() -> bool:
            for listener in (bus, other):
                seen.extend(report.body for report in listener.bus.take(100))
            return len(seen) >= 50

        await eventually(gathered)
        assert sorted(seen) == sorted(b"%d" % number for number in range(50))

    async def test_draining_gives_back_what_was_not_taken(
        self, bus: Listener, other: Listener, broker: Broker, job: str
    ) -> None:
        await bus.publish(job, b"{}")
        await broker.send(job, "status", [b"first"])
        first = await bus.take()
        await broker.send(job, "status", [b"second", b"third"])
        await bus.bus.drain()
        assert bus.bus.take(10) == []
        await bus.bus.ack(first)
        other.bus.listen([job])
        other.open()
        assert {report.body for report in await other.take(2)} == {b"second", b"third"}

    async def test_deleted_queues_are_made_again(self, bus: Listener, broker: Broker, job: str) -> None:
        await bus.publish(job, b"one")
        await broker.send(job, "status", [b"before"])
        await bus.bus.ack(await bus.take())
        await broker.delete_queues(job)
        await bus.publish(job, b"two")
        assert await broker.receive(job) == b"two"
        await broker.send(job, "status", [b"after"])
        assert [report.body for report in await bus.take()] == [b"after"]

    # ---- a broker that fails

    @pytest.mark.slow
    async def test_a_broker_that_is_down_at_the_start_is_waited_for(
        self, other: Listener, broker: Broker, job: str
    ) -> None:
        await broker.kill()
        try:
            other.open()
            with pytest.raises(BusUnavailable) as refused:
                await other.bus.publish(job, b"{}", 60)
            assert not isinstance(refused.value, Unconfirmed)
            assert other.bus.problem
        finally:
            await broker.start()
        await other.publish(job, b"now")
        assert other.bus.problem is None
        assert await broker.receive(job) == b"now"
        await broker.send(job, "status", [b"s"])
        assert [report.body for report in await other.take()] == [b"s"]

    @pytest.mark.slow
    async def test_what_was_confirmed_survives_a_kill(self, bus: Listener, broker: Broker, job: str) -> None:
        confirmed: set[bytes] = set()
        enough = asyncio.Event()

        async def keep_on(first: int) -> None:
            for number in range(first, 2_000, 20):
                await bus.bus.publish(job, b"%d" % number, 600)
                confirmed.add(b"%d" % number)
                if len(confirmed) == 100:
                    enough.set()

        await bus.publish(job, b"0")
        confirmed.add(b"0")
        publishing = asyncio.gather(*(keep_on(first) for first in range(1, 21)), return_exceptions=True)
        await enough.wait()
        await broker.kill()
        await publishing
        await broker.start()
        await bus.publish(job, b"last")
        seen: set[bytes] = set()
        while not seen >= confirmed | {b"last"}:
            seen.add(await asyncio.wait_for(broker.receive(job), ANSWER_SECONDS))
        await broker.send(job, "status", [b"heard again"])
        assert [report.body for report in await bus.take()] == [b"heard again"]

    async def _publish_until_it_stops(self, bus: Listener, job: str) -> None:
        """A process may do one thing more before it stops."""
        for _ in range(1_000):
            await bus.bus.publish(job, b"during", 60)

    @pytest.mark.slow
    async def test_a_broker_that_falls_silent_holds_nobody_up(self, broker: Broker, job: str) -> None:
        bus = Listener(self.make_bus(broker, 0.5), job)
        bus.open()
        await bus.publish(job, b"before")
        await broker.pause()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                with pytest.raises(BusUnavailable):
                    await self._publish_until_it_stops(bus, job)
                await eventually(lambda: bus.bus.problem is not None)
        finally:
            await broker.resume()
        await bus.publish(job, b"after")
        seen: set[bytes] = set()
        while not seen >= {b"before", b"after"}:
            seen.add(await asyncio.wait_for(broker.receive(job), ANSWER_SECONDS))
        await broker.send(job, "status", [b"s"])
        assert [report.body for report in await bus.take()] == [b"s"]
        await bus.bus.close()
