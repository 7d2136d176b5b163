"""Other programs at the file of a live server: the documented backup, a look with any other `sqlite3`.

Closing any descriptor of a file drops every POSIX lock that the process holds on it (How To Corrupt An SQLite Database,
2.2), and a connection of SQLite does not notice. A stranger that closes the file then takes itself for the last one
and deletes the write-ahead log under the server.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from horarium.errors import StoreUnavailable
from horarium.stores.sqlite import SqliteStore
from horarium.testing.values import NOW, a_run
from tests.blackbox.outside import Server, serving
from tests.waiting import eventually

pytestmark = pytest.mark.slow

SQLITE3 = "/usr/bin/sqlite3"
"""The distribution's, with a SQLite of its own, older than ours."""


def read_locks(path: Path, pid: int | None = None) -> int:
    """How many shared locks a process holds on a file, as the kernel has it."""
    inode = os.stat(path).st_ino
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return sum(
        line[1:4] == ["POSIX", "ADVISORY", "READ"]
        and int(line[4]) == (pid or os.getpid())
        and int(line[5].rsplit(":", 1)[1]) == inode
        for line in lines
    )


def backup(path: Path) -> None:
    """As docs/operating.md says."""
    copy = path.with_name("copy.db")
    subprocess.run([SQLITE3, path, f".backup {copy}"], check=True, capture_output=True, timeout=60)
    assert subprocess.run([SQLITE3, copy, "pragma integrity_check"], capture_output=True, text=True).stdout == "ok\n"


def select(path: Path) -> None:
    subprocess.run([SQLITE3, path, "select count(*) from runs"], check=True, capture_output=True, timeout=60)


def python(path: Path) -> None:
    """In a process of its own: in the same one, its close would drop our locks as any other does."""
    assert count_runs(path) >= 0


def count_runs(path: Path) -> int:
    program = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], 60); print(c.execute(sys.argv[2]).fetchone()[0])"
    done = subprocess.run(
        [sys.executable, "-c", program, path, "select count(*) from runs"], check=True, capture_output=True, timeout=60
    )
    return int(done.stdout)


def vacuum(path: Path) -> None:
    path.with_name("vacuumed.db").unlink(missing_ok=True)
    subprocess.run([SQLITE3, path, f"vacuum into '{path.with_name('vacuumed.db')}'"], check=True, timeout=60)


STRANGERS = [backup, select, python, vacuum]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "h.db"


async def test_a_store_holds_its_lock_for_as_long_as_it_is_open(path: Path) -> None:
    store = SqliteStore(f"sqlite:///{path}")
    await store.open()
    assert read_locks(path) > 0
    await store.check()
    await store.stats(NOW)
    assert read_locks(path) > 0
    other = SqliteStore(f"sqlite:///{path}", namespace="other")
    await other.open()
    assert read_locks(path) > 0
    await other.close()
    assert read_locks(path) > 0
    await store.close()
    assert read_locks(path) == 0


async def test_stores_that_make_one_file_at_the_same_time_hold_it(path: Path) -> None:
    stores = [SqliteStore(f"sqlite:///{path}", namespace=f"n{number}") for number in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    assert read_locks(path) > 0
    for store in stores:
        await store.close()


@pytest.mark.parametrize("stranger", STRANGERS)
async def test_a_stranger_leaves_the_log_of_a_store_alone(path: Path, stranger: Callable[[Path], None]) -> None:
    store = SqliteStore(f"sqlite:///{path}")
    await store.open()
    await store.add_runs([a_run(1)])
    stranger(path)
    log = path.with_name("h.db-wal")
    assert log.exists()
    await store.add_runs([a_run(2)])
    assert count_runs(path) == 2
    await store.close()


@pytest.mark.parametrize("gone", ["h.db-wal", "h.db"])
async def test_a_store_whose_file_was_taken_away_writes_nothing_more(path: Path, gone: str) -> None:
    store = SqliteStore(f"sqlite:///{path}")
    await store.open()
    await store.add_runs([a_run(1)])
    path.with_name(gone).rename(path.with_name("away"))
    for number in (2, 3):
        with pytest.raises(StoreUnavailable, match=rf"{gone} was removed or replaced by another program"):
            await store.add_runs([a_run(number)])
    with pytest.raises(StoreUnavailable, match="was removed or replaced"):
        await store.check()
    await store.close()


# ---- real servers


def trigger(server: Server, count: int) -> list[str]:
    return [server("POST", "/jobs/hourly/trigger", {})["id"] for _ in range(count)]


def ids_in(path: Path) -> set[str]:
    """Through a server that is started again: what is there after all that happened."""
    with serving(f"sqlite:///{path}") as server:
        return {run["id"] for run in server.runs("hourly")}


@pytest.fixture
def server(path: Path) -> Iterator[Server]:
    with serving(f"sqlite:///{path}") as server:
        server.add("hourly", 3600)
        yield server


@pytest.mark.parametrize("stranger", STRANGERS)
def test_what_was_acknowledged_after_a_stranger_looked_survives_a_kill(
    server: Server, path: Path, stranger: Callable[[Path], None]
) -> None:
    told = trigger(server, 10)
    stranger(path)
    assert read_locks(path, server.process.pid) > 0
    told += trigger(server, 20)
    server.kill()
    assert set(told) <= ids_in(path)
    backup(path)


def test_strangers_beside_two_servers_at_every_moment_lose_and_double_nothing(path: Path) -> None:
    """They look again and again while one server stays, and another one is started, killed and stopped beside it."""
    over = threading.Event()
    looks = 0
    failed: list[BaseException] = []

    def look() -> None:
        nonlocal looks
        while not over.is_set():
            try:
                STRANGERS[looks % len(STRANGERS)](path)
            except Exception as error:
                failed.append(error)
            looks += 1

    with serving(f"sqlite:///{path}") as server:
        server.add("hourly", 3600)
        server.add("second", 1)
        looking = threading.Thread(target=look)
        looking.start()
        try:
            told = trigger(server, 20)
            for end in (Server.kill, Server.stop):
                with serving(f"sqlite:///{path}", "--node-name", "beside") as beside:
                    told += trigger(beside, 20) + trigger(server, 20)
                    end(beside)
                told += trigger(server, 20)
            claimed = [run["id"] for _ in range(3) for run in server.claim("second", wait=5, limit=100)]
        finally:
            over.set()
            looking.join()
        server.kill()
    assert failed == []
    assert looks >= 3
    assert len(claimed) == len(set(claimed)) > 0
    assert set(told) <= ids_in(path)
    select(path)
    assert subprocess.run([SQLITE3, path, "pragma integrity_check"], capture_output=True, text=True).stdout == "ok\n"


def test_a_server_whose_log_was_deleted_says_so_and_takes_no_more(server: Server, path: Path) -> None:
    trigger(server, 1)
    path.with_name("h.db-wal").unlink()
    reply = server.ask("POST", "/api/v1/jobs/hourly/trigger", {})
    assert reply.status == 503
    assert "h.db-wal was removed or replaced by another program" in reply.problem["detail"]
    assert eventually(lambda: server.ask("GET", "/readyz").status == 503)
    assert eventually(lambda: any("was removed or replaced" in line for line in server.log))
