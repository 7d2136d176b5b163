"""The contract of `ports.Store` as tests: derive `StoreContract` for a store of your own.

    class TestMyStore(StoreContract):
        async def open_store(self, namespace):
            store = MyStore(URL, namespace=namespace)
            await store.open()
            return store

It needs pytest, hypothesis and pytest-asyncio with `asyncio_mode = "auto"`. Each test has a namespace of its own, and
there are no capabilities: a store keeps all of it. Override `faults` to have real failures of the backend tried.
"""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in ("base", "jobs", "planning", "claiming", "holding", "settling"))
)

from horarium.testing.contract.claiming import ClaimingContract  # noqa: E402 (after the rewrite is registered)
from horarium.testing.contract.holding import HoldingContract  # noqa: E402
from horarium.testing.contract.jobs import JobContract  # noqa: E402
from horarium.testing.contract.planning import PlanningContract  # noqa: E402
from horarium.testing.contract.settling import SettlingContract  # noqa: E402

__all__ = ["StoreContract"]


class StoreContract(JobContract, PlanningContract, ClaimingContract, HoldingContract, SettlingContract):
    """Everything that `ports.Store` promises."""
