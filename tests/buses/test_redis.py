"""The contract on a real Redis (Valkey) that syncs every write."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from horarium.buses.redis import RedisBus
from horarium.ports import Bus
from horarium.testing.bus_contract import BusContract
from tests.buses.brokers import RedisWorkers
from tests.servers.redis import Redis
from tests.waiting import until

pytestmark = pytest.mark.slow


class TestRedisBus(BusContract):
    @pytest_asyncio.fixture
    async def broker(self, redis_server: Redis) -> AsyncIterator[RedisWorkers]:
        workers = RedisWorkers(redis_server)
        yield workers
        await workers.hang_up()

    def make_bus(self, broker: RedisWorkers, confirm_seconds: float) -> Bus:  # type: ignore[override]
        return RedisBus(broker.url, confirm_seconds)


async def test_actions_that_expired_make_way_for_those_that_took_their_place(redis_server: Redis, job: str) -> None:
    """Else workers that are slower than the leases would never come to one that still counts."""
    workers = RedisWorkers(redis_server)
    key = f"scheduler.job.{job}.action"
    bus = RedisBus(redis_server.url)
    bus.open(lambda: None)
    for number in range(150):
        await bus.publish(job, b"old %d" % number, 0.001)
    await bus.publish(job, b"kept", 60)

    async def trimmed() -> bool:
        await bus.publish(job, b"new", 60)
        return not any(b"old" in entry[b"body"] for _, entry in await workers.client().xrange(key))

    await until(trimmed)
    assert await workers.receive(job) == b"kept"
    assert await workers.receive(job) == b"new"
    await bus.close()
    await workers.hang_up()


async def test_a_job_whose_key_is_no_stream_keeps_no_other_from_its_work(redis_server: Redis, job: str) -> None:
    workers = RedisWorkers(redis_server)
    odd, well = f"{job}-a", f"{job}-b"
    key = f"scheduler.job.{odd}.status"
    await workers.client().set(key, "of another program")
    bus = RedisBus(redis_server.url)
    bus.open(lambda: None)
    bus.listen([odd, well])
    await bus.publish(well, b"{}", 60)
    await workers.send(well, "status", [b"s"])
    await until(lambda: len(bus._inbox) == 1)
    assert bus.problem is None
    await workers.client().delete(key)
    await workers.send(odd, "status", [b"t"])
    await until(lambda: len(bus._inbox) == 2)
    assert {report.job for report in bus.take(2)} == {odd, well}
    await bus.close()
    await workers.hang_up()
