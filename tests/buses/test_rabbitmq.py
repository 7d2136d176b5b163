"""The contract on a real RabbitMQ."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from horarium.buses.rabbitmq import RabbitBus
from horarium.ports import Bus
from horarium.testing.bus_contract import BusContract
from tests.buses.brokers import RabbitWorkers
from tests.servers.rabbitmq import RabbitMQ

pytestmark = pytest.mark.slow


class TestRabbitBus(BusContract):
    @pytest_asyncio.fixture
    async def broker(self, rabbitmq: RabbitMQ) -> AsyncIterator[RabbitWorkers]:
        workers = RabbitWorkers(rabbitmq)
        yield workers
        await workers.hang_up()

    def make_bus(self, broker: RabbitWorkers, confirm_seconds: float) -> Bus:  # type: ignore[override]
        return RabbitBus(broker.url, confirm_seconds)
