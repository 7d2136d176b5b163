"""A killed writer leaves no change without its record, no end without its follow-up, and no plan in part."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from secrets import token_hex

import pytest

from horarium.model import Run
from horarium.model.records import RecordFilter
from horarium.node.backends import make_store
from horarium.ports import JobFilter, RunFilter, Store
from tests.servers.mongo import Mongo, let_the_hold_run_out
from tests.servers.redis import Redis
from tests.stores.writer import TOGETHER

pytestmark = pytest.mark.slow

ROUNDS = 6
MANY = 100_000


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    server = Redis(appendonly="no")
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgres", "cockroach", "redis", "mongo", "standalone"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/store.db"
        case "postgres":
            return str(request.getfixturevalue("postgres_url"))
        case "cockroach":
            return str(request.getfixturevalue("serializable_url"))
        case "redis":
            return str(request.getfixturevalue("redis").url)
    mongo: Mongo = request.getfixturevalue(request.param)
    return mongo.url


def kill_a_writer(url: str, namespace: str, round_: int, seconds: float) -> None:
    command = [sys.executable, "-m", "tests.stores.writer", url, namespace, str(round_)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
    if url.startswith("mongodb://"):
        let_the_hold_run_out(url)


async def records_below(store: Store, prefix: str) -> list[str]:
    found = (await store.list_records(RecordFilter(prefix), None, MANY)).items
    labelled = (await store.list_records(RecordFilter(prefix, labels={"all": "yes"}), None, MANY)).items
    assert labelled == found
    return [record.name.removeprefix(prefix) for record in found]


async def all_runs(store: Store) -> list[Run]:
    """Every run: a page of a list looks at a bounded number of them, and may be short."""
    runs: list[Run] = []
    after: str | None = None
    while True:
        page = await store.list_runs(RunFilter(), after, MANY)
        runs += page.items
        if page.next_after is None:
            return runs
        after = page.next_after


async def look(store: Store) -> int:
    """Hold what was written against what should have come along. How many runs were followed."""
    runs = await all_runs(store)
    ended = sorted(run.id for run in runs if run.finished)
    assert sorted(run.id.removesuffix("!") for run in runs if run.queue == "notify") == ended
    assert await records_below(store, "audit/run/") == ended
    jobs = (await store.list_jobs(JobFilter(), None, MANY)).items
    sets = (await store.list_records(RecordFilter("set/"), None, MANY)).items
    planned = Counter((job.name.rpartition("-")[0], job.version) for job in jobs if job.name.startswith("set-"))
    assert planned == {(each.name.replace("/", "-"), each.version): TOGETHER for each in sets}
    own = [job for job in jobs if job.name.startswith("job-")]
    owed = sorted(f"{job.name.removeprefix('job-')}/{version}" for job in own for version in range(1, job.version + 1))
    assert await records_below(store, "audit/job/") == owed
    keys = (await store.list_records(RecordFilter("key/"), None, MANY)).items
    owed = sorted(f"{key.name.removeprefix('key/')}/{n}" for key in keys for n in range(1, key.version + 1))
    assert await records_below(store, "audit/key/") == owed
    return len(ended)


def test_a_killed_writer_leaves_everything_whole(url: str) -> None:
    namespace, random = f"killed-{token_hex(4)}", Random(7)

    async def looked() -> int:
        store = make_store(url, namespace)
        await store.open()
        try:
            return await look(store)
        finally:
            await store.close()

    for round_ in range(ROUNDS):
        kill_a_writer(url, namespace, round_, random.uniform(0.05, 0.6))
    followed = asyncio.run(looked())
    while not followed:  # on a busy machine none may have come so far
        round_ += 1
        assert round_ < 10 * ROUNDS
        kill_a_writer(url, namespace, round_, 2.0)
        followed = asyncio.run(looked())
