"""The contract of `ports.Store` as tests: derive `StoreContract` for a store of your own.

    class TestMyStore(StoreContract):
        async def open_store(self, namespace):
            store = MyStore(URL, namespace=namespace)
            await store.open()
            return store

It needs pytest, hypothesis and pytest-asyncio with `asyncio_mode = "auto"`. Each test has a namespace of its own. A
store keeps all of it; one thing alone may be lacking, and is declared: give `transaction` if callers can add runs in a
transaction of their own (`ports.TransactionalStore`). Override `faults` to have real failures of the backend tried.
"""

from pkgutil import iter_modules

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

# ruff: noqa: E402 (pytest must know of the modules before they are imported)
from horarium.testing.contract.atomicity import AtomicityContract
from horarium.testing.contract.claiming import ClaimingContract
from horarium.testing.contract.following import FollowingContract
from horarium.testing.contract.health import HealthContract
from horarium.testing.contract.holding import HoldingContract
from horarium.testing.contract.jobs import JobContract
from horarium.testing.contract.keeping import KeepingContract
from horarium.testing.contract.listing import ListingContract
from horarium.testing.contract.machine import MachineContract
from horarium.testing.contract.planning import PlanningContract
from horarium.testing.contract.races import RaceContract
from horarium.testing.contract.records import RecordContract
from horarium.testing.contract.replacing import ReplacingContract
from horarium.testing.contract.settling import SettlingContract
from horarium.testing.contract.sweeping import SweepingContract
from horarium.testing.contract.transactions import TransactionContract
from horarium.testing.contract.wholes import WholeContract

__all__ = ["StoreContract"]


class StoreContract(
    JobContract,
    PlanningContract,
    ClaimingContract,
    HoldingContract,
    SettlingContract,
    HealthContract,
    SweepingContract,
    ListingContract,
    KeepingContract,
    RecordContract,
    FollowingContract,
    ReplacingContract,
    TransactionContract,
    RaceContract,
    AtomicityContract,
    WholeContract,
    MachineContract,
):
    """Everything that `ports.Store` promises."""
