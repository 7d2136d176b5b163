"""What a server that has nothing to do has loaded, and how seldom it looks."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from horarium.server.http import HttpServer
from horarium.services.service import EARLY_SECONDS, POLL_SECONDS, Health, Loop
from horarium.stores.sqlite.touched import RECENT_SECONDS, Touched
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock
from tests.blackbox.outside import environment
from tests.server.conftest import Running
from tests.services.conftest import START
from tests.services.test_rescuer_and_loop import Scripted
from tests.waiting import PATIENCE, until

IDLE = """
import json, sys
from horarium.server import process
from horarium.server.sources import load_settings

async def _until(stop, serving):
    print(json.dumps(sorted(sys.modules)))
process._until = _until
process.run_server(load_settings({"store": sys.argv[1], "port": 0, "log_level": "error"}))
"""
SELDOM = (
    "aiohttp", "aiosmtplib", "aio_pika", "apprise", "asyncpg", "cryptography", "httpx", "jinja2", "joserfc", "nats",
    "pymongo", "redis", "rich", "ruamel", "structlog",
    "horarium.cli", "horarium.client", "horarium.doors", "horarium.library", "horarium.stores.cockroach",
    "horarium.stores.memory", "horarium.stores.mongo", "horarium.stores.postgres", "horarium.stores.redis",
    "horarium.testing", "horarium.triggers.phrase",
)  # fmt: skip
"""What an idle server on a SQLite file must not have loaded: each costs memory, or a later start."""


@pytest.mark.slow
def test_an_idle_server_has_not_loaded_what_it_does_not_use(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/idle.db"
    done = subprocess.run(
        [sys.executable, "-c", IDLE, store],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        check=True,
    )
    loaded = json.loads(done.stdout)
    assert {"horarium.dashboard.app", "horarium.stores.sqlite", "litestar"} <= set(loaded)
    assert [name for name in loaded if any(name == each or name.startswith(f"{each}.") for each in SELDOM)] == []


async def test_loops_that_began_at_different_times_look_at_the_same_time() -> None:
    now = asyncio.get_running_loop().time
    loops = [Loop(Scripted(), ManualClock(START), LocalSignal(), Health(), looks_at) for looks_at in (0.25, 0.25, 0.75)]
    looks = []
    for loop in loops:
        pause = await loop._step()
        assert EARLY_SECONDS < pause <= POLL_SECONDS + EARLY_SECONDS
        looks.append((now() + pause) % POLL_SECONDS)
    assert looks == pytest.approx([0.25, 0.25, 0.75], abs=0.2)


async def test_a_file_that_was_not_written_to_is_not_asked_about(tmp_path: Path) -> None:
    asked = 0

    async def changed() -> bool:
        nonlocal asked
        asked += 1
        return True

    file, log = tmp_path / "x.db", tmp_path / "x.db-wal"
    file.write_bytes(b"1")
    touched = Touched(str(file), changed)
    assert [await touched.changed() for _ in range(2)] == [True, True], "it was written to just now"
    long_ago = time.time() - 10 * RECENT_SECONDS
    os.utime(file, (long_ago, long_ago))
    assert [await touched.changed() for _ in range(3)] == [True, False, False]
    log.write_bytes(b"2")
    os.utime(log, (long_ago, long_ago))
    assert [await touched.changed() for _ in range(2)] == [True, False]
    log.write_bytes(b"23")
    os.utime(log, (long_ago, long_ago))
    assert [await touched.changed() for _ in range(2)] == [True, False]
    log.write_bytes(b"45")
    assert await touched.changed()
    assert asked == 6


async def test_a_server_without_connections_looks_at_nothing(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = 0
    on_tick = HttpServer.on_tick

    async def counted(self: HttpServer, counter: int) -> bool:
        nonlocal ticks
        ticks += 1
        return await on_tick(self, counter)

    monkeypatch.setattr(HttpServer, "on_tick", counted)
    assert not running.server._intake.connected.is_set(), "it waits for a first connection"
    client = await running.connect()
    await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await client.answer())[0] == 200
    await until(lambda: ticks > 1)
    client.writer.close()
    await until(lambda: not running.server._intake.connected.is_set())
    assert running.open == 0
