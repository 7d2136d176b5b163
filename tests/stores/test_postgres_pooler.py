"""The PostgreSQL store behind a real PgBouncer in transaction mode."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from horarium.clock import MINUTE
from horarium.model import Plan, State
from horarium.ports import Beat, RunFilter, Store, Topic
from horarium.stores.postgres import PostgresSignal, PostgresStore
from horarium.testing.contract.base import ids, take
from horarium.testing.contract.claiming import ClaimingContract
from horarium.testing.contract.holding import HoldingContract
from horarium.testing.contract.keeping import KeepingContract
from horarium.testing.contract.planning import PlanningContract
from horarium.testing.contract.races import RaceContract
from horarium.testing.contract.settling import SettlingContract
from horarium.testing.values import NOW, a_change, a_job, a_run, completed
from tests.servers.pgbouncer import PgBouncer
from tests.stores import patience

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["", "statement_timeout"])
def pooler_url(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[str]:
    """With PgBouncer's defaults, which refuse our settings, and with one that takes them and drops them."""
    ignored = ",".join(
        (
            "search_path,synchronous_commit,default_transaction_isolation,jit,plan_cache_mode,enable_seqscan",
            "enable_hashjoin,enable_mergejoin,enable_sort,max_parallel_workers_per_gather,statement_timeout",
            "idle_in_transaction_session_timeout,tcp_keepalives_idle,tcp_keepalives_interval,tcp_keepalives_count",
        )
    )
    settings = {"ignore_startup_parameters": ignored} if request.param else {}
    pooler = PgBouncer(postgres_url, **settings)
    try:
        pooler.start()
        yield pooler.url
    finally:
        pooler.stop()


@pytest.mark.parametrize("parameters", ["", "?pgbouncer=true"])
async def test_many_nodes_work_through_a_pooler(
    pooler_url: str, parameters: str, request: pytest.FixtureRequest
) -> None:
    namespace = f"pooler-{request.node.name}"
    stores = [PostgresStore(pooler_url + parameters, namespace) for _ in range(4)]
    for store in stores:
        await store.open()
        assert store.location.pooler
    store = stores[0]
    job = a_job(next_fire_at=NOW)
    await store.add_jobs([job])
    runs = [a_run(n, priority=n % 2) for n in range(100)]
    await store.add_runs([*runs, *(a_run(n, concurrency_key="k", concurrency_max=1) for n in range(200, 203))])
    claims = await asyncio.gather(*(take(store, 30, worker=str(n)) for n, store in enumerate(stores * 2)))
    taken = [run for claimed in claims for run in claimed.runs]
    taken += (await take(store)).runs
    assert len(ids(taken)) == len(set(ids(taken))) == 101
    assert None not in await store.heartbeat_runs([Beat(run.id, 1) for run in taken], NOW + 1)
    assert await store.settle_runs([completed(run) for run in taken[:50]], NOW) == [True] * 50
    back = [a_change(run, state=State.PENDING, lease_expires_at=None) for run in taken[50:60]]
    assert await store.settle_runs([*back, *map(completed, taken[60:])], NOW) == [True] * 51
    plan = Plan(replace(job, next_fire_at=NOW + MINUTE), (a_run(1, of=job),))
    assert sum([(await node.commit_plans([plan], NOW))[0] for node in stores]) == 1
    assert (await store.list_runs(RunFilter(job="job"), None, 5)).items == (a_run(1, of=job),)
    for store in stores:
        await store.close()


class TestPostgresStoreThroughPgBouncer(
    PlanningContract, ClaimingContract, HoldingContract, SettlingContract, KeepingContract, RaceContract
):
    """What happens to runs, with four connections to the server for however many nodes."""

    @pytest.fixture(autouse=True)
    def _database(self, default_pooler_url: str, no_marks: None) -> None:
        self.url = default_pooler_url

    async def open_store(self, namespace: str) -> Store:
        store = PostgresStore(self.url + patience.POSTGRES, namespace)
        await store.open()
        assert store.location.pooler
        return store


@pytest.fixture(scope="module")
def default_pooler_url(postgres_url: str) -> Iterator[str]:
    pooler = PgBouncer(postgres_url)
    try:
        pooler.start()
        yield pooler.url
    finally:
        pooler.stop()


async def test_without_a_pooler_none_is_suspected(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    await store.open()
    assert not store.location.pooler
    await store.close()


async def test_behind_a_pooler_wake_ups_stay_within_the_process(pooler_url: str) -> None:
    signal = PostgresSignal(pooler_url)
    await signal.start()
    woken = asyncio.Event()
    signal.subscribe(Topic("jobs"), woken.set)
    signal.publish(Topic("jobs"))
    assert woken.is_set()
    await signal.stop()
