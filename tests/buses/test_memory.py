"""The contract on the bus within one process."""

from __future__ import annotations

import pytest

from horarium.buses.memory import MemoryBus
from horarium.ports import Bus
from horarium.testing.bus_contract import BusContract
from tests.buses.brokers import MemoryWorkers


class TestMemoryBus(BusContract):
    @pytest.fixture
    def broker(self) -> MemoryWorkers:
        return MemoryWorkers()

    def make_bus(self, broker: MemoryWorkers, confirm_seconds: float) -> Bus:  # type: ignore[override]
        return MemoryBus(broker.broker, confirm_seconds)
