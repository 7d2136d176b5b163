"""The CockroachDB store keeps the contract: on a serializable PostgreSQL while it gives statements and commits up, and
on a CockroachDB if HORARIUM_TEST_COCKROACH_URL names one."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from horarium.model import PAYLOAD_BYTES_MAX, QueueTarget
from horarium.ports import Store
from horarium.stores.cockroach import CockroachStore
from horarium.stores.cockroach.session import CockroachSession
from horarium.testing.contract import StoreContract
from horarium.testing.values import a_job, a_run
from tests.stores.cockroach_server import REAL_URL, Trouble, TroubledStore
from tests.stores.postgres_server import transaction_on

pytestmark = pytest.mark.slow

SERVERS = ["giving-up", *(["cockroachdb"] if REAL_URL else [])]


class TestCockroachStore(StoreContract):
    @pytest.fixture(autouse=True, params=SERVERS)
    def _database(self, request: pytest.FixtureRequest, no_marks: None) -> None:
        self.server = request.param
        real = self.server == "cockroachdb"
        self.url = REAL_URL if real else request.getfixturevalue("serializable_url")
        self.trouble = Trouble()
        if not real:  # of which `make cockroach` asks the most sequences
            self.machine_examples = 20

    async def open_store(self, namespace: str) -> Store:
        if self.server == "giving-up":
            store: CockroachStore = TroubledStore(self.url, namespace, self.trouble)
        else:
            store = CockroachStore(self.url, namespace)
        await store.open()
        return store

    def transaction(self, store: Store) -> AbstractAsyncContextManager[Any]:
        return transaction_on(self.url.replace("cockroachdb://", "postgresql://"), isolation="serializable")


async def test_no_message_is_larger_than_the_server_takes(
    serializable_url: str, no_marks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes a connection that sends more than 16 MiB."""
    sizes: list[int] = []
    rows = CockroachSession.rows

    async def weighed(self: CockroachSession, name: str, *values: Any) -> list[Any]:
        columns = [value for value in values if isinstance(value, list)]
        sizes.append(sum(len(item) for column in columns for item in column if isinstance(item, str | bytes)))
        return await rows(self, name, *values)

    monkeypatch.setattr(CockroachSession, "rows", weighed)
    large = b'"' + b"x" * (PAYLOAD_BYTES_MAX - 2) + b'"'
    store = CockroachStore(serializable_url, "large")
    await store.open()
    assert await store.add_jobs(
        [a_job(f"job-{number}", target=QueueTarget("q", "x" * (PAYLOAD_BYTES_MAX - 2))) for number in range(70)]
    )
    assert await store.add_runs([a_run(number, payload=large) for number in range(70)]) == [True] * 70
    assert max(sizes) < 16 * 2**20
    await store.close()
