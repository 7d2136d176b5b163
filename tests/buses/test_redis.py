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

pytestmark = pytest.mark.slow


class TestRedisBus(BusContract):
    @pytest_asyncio.fixture
    async def broker(self, redis_server: Redis) -> AsyncIterator[RedisWorkers]:
        workers = RedisWorkers(redis_server)
        yield workers
        await workers.hang_up()

    def make_bus(self, broker: RedisWorkers, confirm_seconds: float) -> Bus:  # type: ignore[override]
        return RedisBus(broker.url, confirm_seconds)
