"""The contract on a real NATS with JetStream."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from horarium.buses.nats import NatsBus
from horarium.ports import Bus
from horarium.testing.bus_contract import BusContract
from tests.buses.brokers import NatsWorkers
from tests.servers.nats import Nats

pytestmark = pytest.mark.slow


class TestNatsBus(BusContract):
    @pytest_asyncio.fixture
    async def broker(self, nats_server: Nats) -> AsyncIterator[NatsWorkers]:
        workers = NatsWorkers(nats_server)
        yield workers
        await workers.hang_up()

    def make_bus(self, broker: NatsWorkers, confirm_seconds: float) -> Bus:  # type: ignore[override]
        return NatsBus(broker.url, confirm_seconds)
