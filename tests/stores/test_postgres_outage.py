"""PostgreSQL fails under a running server of ours: it says so once, in /readyz and in its log, and goes on by itself
where it stopped. And a disk that is full refuses writes, loses nothing, and is used again once there is room."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from horarium.errors import StoreUnavailable
from horarium.ports import RunFilter
from horarium.stores.postgres import PostgresStore
from horarium.testing.contract.base import ids, take
from horarium.testing.values import NOW, a_run, completed
from tests.blackbox.outside import Server, instant, serving
from tests.servers.postgres import Postgres
from tests.stores.postgres_server import execute, new_database, running
from tests.waiting import eventually, let_pass

pytestmark = pytest.mark.slow

PAUSED_SECONDS = 9.0
"""How long the server stands still; each call of ours gives up after less."""
NOT_YET = (OSError, AssertionError)
"""On a busy machine a call may be given up, and be answered 503, before the server stands still, and after it."""
REASONS_MAX = 4
DISK_BYTES = 24 * 1024 * 1024
RUNS_MAX = 60


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """One that may be stopped, unlike the shared one."""
    with running() as server:
        yield server


@pytest.fixture
def url(server: Postgres) -> str:
    return new_database(server)


def test_a_server_that_stands_still_is_told_of_once_and_nothing_is_lost(
    server: Postgres, url: str, tmp_path: Path
) -> None:
    with serving(url + "?query_seconds=5&connect_seconds=5") as node:
        eventually(lambda: node.ask("GET", "/readyz").status == 200, what="ready")
        job = {
            "name": "tick",
            "trigger": {"type": "interval", "every_seconds": 1},
            "target": {"type": "queue", "queue": "nobody"},
            "catch_up": {"policy": "all"},
        }
        node("POST", "/jobs", job)
        eventually(lambda: len(fires(node)) >= 2, what="the first runs", ignoring=NOT_YET)
        server.pause()
        stopped = time.monotonic()
        try:
            answer = eventually(
                lambda: (reply := node.ask("GET", "/readyz")).status == 503 and reply, what="/readyz to say so"
            )
            assert "did not answer in time" in answer.body.decode()
            assert node.ask("GET", "/healthz").status == 200
            let_pass(stopped + PAUSED_SECONDS - time.monotonic())
        finally:
            server.resume()
        eventually(lambda: node.ask("GET", "/readyz").status == 200, what="ready again")
        before = eventually(lambda: len(fires(node)), what="all runs", ignoring=NOT_YET)
        times = eventually(
            lambda: len(found := fires(node)) >= before + 2 and found, what="further runs", ignoring=NOT_YET
        )
    assert times == [times[0] + number for number in range(len(times))]
    assert len(times) > PAUSED_SECONDS
    begun = [line.split("can't work: ")[1].split(";")[0] for line in node.log if "can't work: " in line]
    assert begun, "the log says nothing"
    assert len(begun) == len(set(begun)) <= REASONS_MAX, f"a reason is said once for all parts: {begun}"
    ended = [line.split("works again: ")[1] for line in node.log if "works again: " in line]
    assert len(ended) == len(begun)
    assert "planner" in " ".join(ended)


def fires(node: Server) -> list[int]:
    """The fire times of all runs, in seconds, earliest first."""
    return [round(instant(run["fire_at"]).timestamp()) for run in node.runs("tick")]


# -- a full disk


class SmallDisk:
    """A tablespace with little room: a file system of its own where one may be mounted. Where not, the server itself
    answers as if it were full."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
        self.mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        if os.getuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(folder, owner.pw_uid, owner.pw_gid)

    async def fill(self, url: str) -> None:
        if not self.mounted:
            return await execute(url, REFUSE)
        with (self.folder / "ballast").open("wb", buffering=0) as ballast:
            for size in (65_536, 512):
                try:
                    while True:
                        ballast.write(b"x" * size)
                except OSError:
                    continue
        return None

    async def free(self, url: str) -> None:
        if self.mounted:
            (self.folder / "ballast").unlink()
        else:
            await execute(url, "DROP FUNCTION public.refuse CASCADE")

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


REFUSE = """
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON horarium.runs EXECUTE FUNCTION public.refuse()
"""


@pytest.fixture
def disk(server: Postgres) -> Iterator[SmallDisk]:
    folder = server.folder / "small"
    folder.mkdir()
    disk = SmallDisk(folder)
    yield disk
    name = "small_db"
    asyncio.run(execute(server.url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)", "DROP TABLESPACE IF EXISTS small"))
    disk.close()


@pytest.fixture
def small_url(server: Postgres, disk: SmallDisk) -> str:
    tablespace = f"CREATE TABLESPACE small LOCATION '{disk.folder}'"
    asyncio.run(execute(server.url, tablespace, "CREATE DATABASE small_db TABLESPACE small"))
    return server.url.removesuffix("/postgres") + "/small_db"


async def test_a_full_disk_refuses_writes_and_is_used_again_once_there_is_room(small_url: str, disk: SmallDisk) -> None:
    store = PostgresStore(small_url)
    await store.open()
    await store.add_runs([a_run(n) for n in range(10)])
    claimed = (await take(store, 5)).runs
    await disk.fill(small_url)
    acknowledged: list[str] = []
    why = ""
    for number in range(100, 100 + RUNS_MAX):
        run = a_run(number, payload=json.dumps(os.urandom(50_000).hex()).encode())
        try:
            assert await store.add_runs([run]) == [True]
            acknowledged.append(run.id)
        except StoreUnavailable as error:
            why = str(error)
            break
    assert "No space left on device" in why
    assert "53100" in why
    assert len((await store.list_runs(RunFilter(), None, 200)).items) == 10 + len(acknowledged), "reading goes on"
    await disk.free(small_url)
    assert await store.add_runs([a_run(500)]) == [True]
    assert await store.settle_runs([completed(run) for run in claimed], NOW) == [True] * 5
    assert None not in await store.get_runs([*ids(claimed), *acknowledged, a_run(500).id])
    await store.check()
    await store.close()
