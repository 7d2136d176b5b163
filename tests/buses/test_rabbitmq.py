"""The contract on a real RabbitMQ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiormq.channel import Channel

from horarium.buses.rabbitmq import GROUP_JOBS, RabbitBus
from horarium.errors import BusUnavailable
from horarium.ports import Bus
from horarium.testing.bus_contract import BusContract
from tests.buses.brokers import RabbitWorkers
from tests.servers.rabbitmq import RabbitMQ
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow


class TestRabbitBus(BusContract):
    @pytest_asyncio.fixture
    async def broker(self, rabbitmq: RabbitMQ) -> AsyncIterator[RabbitWorkers]:
        workers = RabbitWorkers(rabbitmq)
        yield workers
        await workers.hang_up()

    def make_bus(self, broker: RabbitWorkers, confirm_seconds: float) -> Bus:  # type: ignore[override]
        return RabbitBus(broker.url, confirm_seconds)


async def _publish_on(bus: RabbitBus, job: str) -> None:
    """The broker says that it takes nothing when it is sent something."""
    for _ in range(50):
        await bus.publish(job, b"during", 60)


async def test_a_broker_short_of_memory_is_not_sent_to_and_says_so(rabbitmq: RabbitMQ, job: str) -> None:
    workers = RabbitWorkers(rabbitmq)
    bus = RabbitBus(rabbitmq.url, confirm_seconds=9.0)
    bus.open(lambda: None)
    await bus.publish(job, b"before", 60)
    await asyncio.to_thread(rabbitmq.control, "set_vm_memory_high_watermark", "absolute", "1")
    try:
        with pytest.raises(BusUnavailable):
            await _publish_on(bus, job)
        await until(lambda: "alarm" in (bus.problem or ""))
        with pytest.raises(BusUnavailable, match="takes no messages"):
            await bus.publish(job, b"refused at once", 60)
    finally:
        await asyncio.to_thread(rabbitmq.control, "set_vm_memory_high_watermark", "0.4")
    await until(lambda: bus.problem is None)
    await bus.publish(job, b"after", 60)
    async with asyncio.timeout(PATIENCE):
        received = {await workers.receive(job)}
        while b"after" not in received:
            received.add(await workers.receive(job))
    assert b"refused at once" not in received
    await bus.close()
    await workers.hang_up()


@pytest.mark.parametrize(
    ("user", "host", "words"),
    [("guest:wrong", "/", "user name or password"), ("guest:guest", "/nowhere", "virtual host 'nowhere'")],
)
async def test_who_is_not_let_in_is_told_why(rabbitmq: RabbitMQ, user: str, host: str, words: str) -> None:
    bus = RabbitBus(f"amqp://{user}@127.0.0.1:{rabbitmq.port}{host}")
    bus.open(lambda: None)
    await until(lambda: bus.problem is not None)
    with pytest.raises(BusUnavailable, match=words) as refused:
        await bus.publish("job", b"{}", 60)
    assert "wrong" not in str(refused.value)
    await bus.close()


async def test_queues_that_stand_with_arguments_of_their_own_are_used_as_they_are(rabbitmq: RabbitMQ, job: str) -> None:
    workers = RabbitWorkers(rabbitmq)
    channel = await workers.channel("declare")
    for kind in ("action", "status", "heartbeat"):
        await channel.declare_queue(f"scheduler.job.{job}.{kind}", durable=True, arguments={"x-queue-type": "quorum"})
    bus = RabbitBus(rabbitmq.url)
    bus.open(lambda: None)
    await bus.publish(job, b"{}", 60)
    queue = await channel.get_queue(f"scheduler.job.{job}.action")
    message = await until(lambda: queue.get(fail=False))
    assert message.body == b"{}"
    await message.ack()
    await workers.send(job, "status", [b"s"])
    await until(lambda: bool(bus._inbox))
    await bus.ack(bus.take(1))
    await bus.close()
    await workers.hang_up()


async def test_many_jobs_are_brought_by_few_round_trips(
    rabbitmq: RabbitMQ, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine commands for each job, one by one, cost twenty times our processor time. Among them is a job whose queues
    exist with other arguments, which closes the channel on which the others are declared."""
    answered: list[str] = []
    send = Channel.rpc

    async def rpc(self: Channel, frame: Any, *given: Any, **how: Any) -> Any:
        if not getattr(frame, "nowait", False):
            answered.append(frame.name)
        return await send(self, frame, *given, **how)

    workers = RabbitWorkers(rabbitmq)
    channel = await workers.channel("declare")
    odd = f"{job}-0"
    await channel.declare_queue(f"scheduler.job.{odd}.status", durable=True, arguments={"x-queue-type": "quorum"})
    monkeypatch.setattr(Channel, "rpc", rpc)
    bus = RabbitBus(rabbitmq.url)
    bus.open(lambda: None)
    names = [f"{job}-{n}" for n in range(2 * GROUP_JOBS)]
    bus.listen(names)
    await until(lambda: bus._line is not None and len(bus._line._consuming) == 2 * len(names))
    assert bus._line is not None
    assert bus._line.declared == set(names)
    one_by_one = 7 * GROUP_JOBS  # only those of the group with the odd one
    assert len(answered) < one_by_one + 40
    for name in (names[0], names[-1]):
        await workers.send(name, "status", [name.encode()])
    await until(lambda: len(bus._inbox) == 2)
    assert {report.body.decode() for report in bus.take(2)} == {names[0], names[-1]}
    await bus.close()
    await workers.hang_up()


async def test_a_job_whose_queues_can_not_be_made_keeps_no_other_from_its_work(rabbitmq: RabbitMQ, job: str) -> None:
    workers = RabbitWorkers(rabbitmq)
    channel = await workers.channel("declare")
    odd, well = f"{job}-a", f"{job}-b"
    other = await channel.declare_exchange(f"scheduler.job.{odd}", "fanout", durable=True)
    bus = RabbitBus(rabbitmq.url)
    bus.open(lambda: None)
    bus.listen([odd, well])
    with pytest.raises(BusUnavailable, match="inequivalent arg 'type'"):
        await bus.publish(odd, b"{}", 60)
    await bus.publish(well, b"{}", 60)
    await workers.send(well, "status", [b"s"])
    await until(lambda: len(bus._inbox) == 1)
    assert bus.problem is None
    await other.delete()
    await bus.publish(odd, b"{}", 60)
    await workers.send(odd, "status", [b"t"])
    await until(lambda: len(bus._inbox) == 2)
    assert {report.job for report in bus.take(2)} == {odd, well}
    await bus.close()
    await workers.hang_up()
