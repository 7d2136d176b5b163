"""What a server that has nothing to do has loaded, and how seldom it looks."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import apsw
import pytest

from horarium import Scheduler
from horarium.node.backends import make_backend
from horarium.operations.runs.waiting import ended_topic
from horarium.ports import ENDED, JOBS, WRITTEN
from horarium.server.config import ROLES
from horarium.server.http import HttpServer
from horarium.services.loop.service import (
    EARLY_SECONDS,
    LEFT_OUT_MAX,
    POLL_SECONDS,
    STEPPED_SECONDS,
    Health,
    Looks,
    Loop,
    _Ill,
)
from horarium.stores import wakeups
from horarium.stores.sqlite import SqliteStore
from horarium.stores.sqlite.touched import RECENT_SECONDS, Touched
from horarium.stores.wakeups import LocalSignal, PolledSignal
from horarium.testing import ManualClock
from horarium.testing.values import a_run, completed
from tests.blackbox.outside import environment
from tests.server.conftest import Running
from tests.services.conftest import START
from tests.services.test_rescuer_and_loop import Scripted
from tests.waiting import PATIENCE, until

NO_TIME = 1e-6
"""Seconds: what a sum of floats may be off by."""
IDLE = """
import asyncio, json, sys
from horarium.server import process
from horarium.cli import main

async def _until(stop, serving):
    while not (asked_for.server is None or asked_for.server.started):
        await asyncio.sleep(0)
    print(json.dumps(sorted(sys.modules)))

class Stopping(process.Stopping):
    def __init__(self):
        super().__init__()
        global asked_for
        asked_for = self

process._until, process.Stopping = _until, Stopping
sys.argv = ["horarium", "serve", "--store", sys.argv[1], "--port", "0", "--log-level", "error"]
main()
"""
"""The command, which says once it serves what it has loaded."""
SELDOM = (
    "aio_pika", "aiohttp", "aiosmtplib", "anyio._backends", "apprise", "asyncpg", "attrs", "cryptography", "difflib",
    "httpx", "jinja2", "joserfc", "nats", "pydantic", "pydantic_core", "pymongo",
    "redis", "rich", "ruamel", "structlog", "stringprep", "yaml", "horarium.client", "horarium.doors",
    "horarium.library", "horarium.stores.cockroach", "horarium.stores.memory", "horarium.stores.mongo",
    "horarium.stores.postgres", "horarium.stores.redis", "horarium.testing", "horarium.triggers.phrase",
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
    assert {"horarium.dashboard.app", "horarium.stores.sqlite", "starlette.requests"} <= set(loaded)
    assert [name for name in loaded if any(name == each or name.startswith(f"{each}.") for each in SELDOM)] == []


class Sleeper(Scripted):
    """Looks only if `wakeful`, and only at writes if `at_writes`."""

    def __init__(self, *, wakeful: bool, of_writes: bool = False) -> None:
        super().__init__()
        self.wakeful, self.of_writes = wakeful, of_writes

    def looks(self) -> bool:
        return self.wakeful

    def at_writes(self) -> bool:
        return self.of_writes


class Counted(LocalSignal):
    """A signal that knows how much was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def writes(self) -> int | None:
        return self.written


class Looked:
    """Loops of some services, which look when the test says so."""

    def __init__(self, *services: Scripted) -> None:
        self.clock, self.signal, self.health = ManualClock(START), Counted(), Health()
        self.services = services
        loops = [Loop(service, self.clock, self.signal, self.health) for service in services]
        self.looks = Looks(loops, self.clock)
        self.loops = loops

    async def steps(self) -> list[int]:
        """How often each has stepped, once all of them wait."""
        await until(lambda: all(loop._waiting for loop in self.loops) and not any(s.wake.is_set for s in self.services))
        return [service.steps for service in self.services]

    async def __aenter__(self) -> Looked:
        self.tasks = [asyncio.create_task(loop.run()) for loop in self.loops]
        await self.steps()
        self.looks.look()
        return self

    async def __aexit__(self, *_: object) -> None:
        for loop in self.loops:
            loop.stop()
        await asyncio.gather(*self.tasks)


async def test_the_loops_of_a_node_look_at_the_same_part_of_a_second() -> None:
    now = asyncio.get_running_loop().time
    for at in (0.25, 0.75):
        before, pause, after = now(), Looks([], ManualClock(START), at).pause(), now()
        assert EARLY_SECONDS < pause <= POLL_SECONDS + EARLY_SECONDS
        looks_at = at + POLL_SECONDS * math.floor((after + pause - at) / POLL_SECONDS + NO_TIME)
        assert before + pause - NO_TIME <= looks_at <= after + pause + NO_TIME


async def test_a_look_wakes_only_those_that_want_to_look() -> None:
    async with Looked(Sleeper(wakeful=True), Sleeper(wakeful=False)) as looked:
        before = await looked.steps()
        for _ in range(3):
            looked.looks.look()
            after = await looked.steps()
        assert [after[0] - before[0], after[1] - before[1]] == [3, 0]


async def test_a_step_of_the_clock_wakes_all_of_them_once() -> None:
    async with Looked(Sleeper(wakeful=False), Sleeper(wakeful=True, of_writes=True)) as looked:
        before = await looked.steps()
        for step in (3_600.0, -7_200.0, STEPPED_SECONDS * 3 / 4):
            looked.clock.step(step)
            looked.clock.advance(POLL_SECONDS)
            looked.looks.look()
            await looked.steps()
        assert await looked.steps() == [count + 2 for count in before]


async def test_slow_steps_of_the_clock_add_up() -> None:
    async with Looked(Sleeper(wakeful=False)) as looked:
        (before,) = await looked.steps()
        for _ in range(8):
            looked.clock.step(STEPPED_SECONDS / 4 * 1.01)
            looked.clock.advance(POLL_SECONDS)
            looked.looks.look()
            await looked.steps()
        assert await looked.steps() == [before + 2]


async def test_where_nothing_was_written_most_looks_are_left_out() -> None:
    async with Looked(Sleeper(wakeful=True, of_writes=True), Sleeper(wakeful=True)) as looked:
        before = await looked.steps()
        for _ in range(2 * (LEFT_OUT_MAX + 1)):
            looked.looks.look()
            await looked.steps()
        after = await looked.steps()
        assert [after[0] - before[0], after[1] - before[1]] == [2, 2 * (LEFT_OUT_MAX + 1)]
        looked.signal.written += 1
        looked.looks.look()
        assert (await looked.steps())[0] == after[0] + 1


async def test_what_was_seen_to_be_written_is_looked_for_at_once() -> None:
    async with Looked(Sleeper(wakeful=True, of_writes=True)) as looked:
        looking = asyncio.create_task(Looks(looked.loops, looked.clock, signal=looked.signal).run())
        await until(lambda: WRITTEN in looked.signal._wakes)
        (before,) = await looked.steps()
        looked.signal.written += 1
        looked.signal.wake(WRITTEN)
        assert await looked.steps() == [before + 1]
        looking.cancel()
        await asyncio.wait([looking])
        assert WRITTEN not in looked.signal._wakes


async def test_a_part_that_is_ill_looks_until_it_is_well() -> None:
    async with Looked(Sleeper(wakeful=False)) as looked:
        (before,) = await looked.steps()
        looked.health._ill["scripted"] = _Ill("an outage", "an outage", steady_seconds=3_600.0)
        looked.looks.look()
        assert await looked.steps() == [before + 1]
        del looked.health._ill["scripted"]
        looked.looks.look()
        assert await looked.steps() == [before + 1]


async def test_no_part_of_an_idle_node_looks_where_nothing_was_written() -> None:
    async with Scheduler("memory://", roles=ROLES) as scheduler:
        await scheduler.start()
        loops = scheduler._runtime._loops
        assert loops is not None
        for loop in loops._loops.values():
            await until(lambda loop=loop: loop._waiting)  # type: ignore[misc]
        services = [loop.service for loop in loops._loops.values()]
        assert [service.name for service in services if service.looks() and not service.at_writes()] == []


async def none_over(ids: Sequence[str]) -> list[str]:
    return []


async def test_a_file_that_was_not_written_to_is_not_asked_about(tmp_path: Path) -> None:
    asked = 0

    async def changed(*, alone: bool) -> bool:
        nonlocal asked
        asked += 1
        return True

    file, log = tmp_path / "x.db", tmp_path / "x.db-wal"
    file.write_bytes(b"1")
    touched = Touched(str(file), changed, none_over)
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


class WellWatched:
    """A store on a file, with the wake-ups that tell what others write to it."""

    def __init__(self, url: str) -> None:
        backend = make_backend(url)
        assert isinstance(backend.store, SqliteStore)
        assert isinstance(backend.signal, PolledSignal)
        self.store, self.signal, self.woken = backend.store, backend.signal, 0
        self.signal.subscribe(JOBS, self._wake)
        asked = self.signal._asked
        assert isinstance(asked, Touched)
        self.touched = asked

    def _wake(self) -> None:
        self.woken += 1

    @property
    def waits(self) -> bool:
        """Whether it waits until the file is written to."""
        return self.touched._watched is not None and self.touched._watched.waits

    async def calm(self) -> None:
        """Return once it waits until the file is written to."""
        await until(lambda: self.waits)


async def test_a_write_of_another_process_ends_the_wait_for_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shared.db"
    watched, other = WellWatched(url), SqliteStore(url)
    for store in (watched.store, other):
        await store.open()
    await watched.signal.start()
    try:
        for number in range(2):
            await watched.calm()
            woken, writes = watched.woken, watched.signal.writes()
            await other.add_runs([a_run(number)])
            await until(lambda before=woken: watched.woken > before)  # type: ignore[misc]
            assert watched.signal.writes() != writes
        await watched.calm()
        woken, writes = watched.woken, watched.signal.writes()
        await watched.store.add_runs([a_run(9)])
        assert watched.signal.writes() != writes, "its own writes are known at once"
        await watched.calm()
        assert watched.woken == woken, "and are no news"
    finally:
        await watched.signal.stop()
        for store in (other, watched.store):
            await store.close()


async def test_one_that_waits_for_an_end_hears_of_writes_before_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "POLL_SECONDS", 1e6)
    url, heard = f"sqlite:///{tmp_path}/shared.db", 0
    watched, other, runs = WellWatched(url), SqliteStore(url), [a_run(number) for number in range(3)]

    def hear() -> None:
        nonlocal heard
        heard += 1

    for store in (watched.store, other):
        await store.open()
    await watched.signal.start()
    try:
        await until(lambda: watched.signal._task is not None)
        await watched.store.add_runs(runs)
        deaf = watched.signal.subscribe(ENDED, hear)  # also in the middle of a pause
        for number, run in enumerate(runs):
            told = watched.signal.subscribe(ended_topic(run.id), hear)
            await watched.calm()
            writes, known = watched.signal.writes(), watched.woken
            await other.add_runs([a_run(3 + number)])
            await until(lambda writes=writes: watched.signal.writes() != writes)  # type: ignore[misc]
            await watched.calm()
            assert heard == number, "none that is waited for is over"
            await other.settle_runs([completed(run)], 0)
            await until(lambda number=number: heard == number + 1)  # type: ignore[misc]
            told()
            assert number == 0 or watched.woken == known, "the others are woken by one timer, after their pause"
        deaf()
        assert ENDED not in watched.signal._wakes
    finally:
        await watched.signal.stop()
        assert watched.signal._waking is None
        for store in (other, watched.store):
            await store.close()


async def test_a_question_after_a_write_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched, asked = WellWatched(f"sqlite:///{tmp_path}/own.db"), 0
    changed = watched.store.changed

    async def counted(*, alone: bool) -> bool:
        nonlocal asked
        asked += 1
        return await changed(alone=alone)

    monkeypatch.setattr(watched.touched, "_changed", counted)
    await watched.store.open()
    await watched.signal.start()
    try:
        await watched.calm()
        before = asked
        await watched.store.add_runs([a_run(1)])
        await until(lambda: asked > before and watched.waits)
        assert asked <= before + 2, "the first may come before all of it is written"
    finally:
        await watched.signal.stop()
        await watched.store.close()


async def test_it_is_asked_when_no_process_is_in_the_middle_of_a_write(tmp_path: Path) -> None:
    """What such a write put into the log is seen by the watch before it can be seen by a question."""
    watched = WellWatched(f"sqlite:///{tmp_path}/shared.db")
    await watched.store.open()
    await watched.signal.start()
    other = apsw.Connection(str(tmp_path / "shared.db"))
    try:
        await watched.calm()
        woken = watched.woken
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE namespaces SET name = name || '2'")
        os.utime(watched.touched._paths[1])
        await until(lambda: not watched.waits)
        for _ in range(3):
            assert await watched.store.get_jobs(["none"]) == [None]
        assert not watched.touched._certain, "it can't tell yet"
        other.execute("COMMIT")
        await until(lambda: watched.woken > woken)
        await watched.calm()
    finally:
        other.close()
        await watched.signal.stop()
        await watched.store.close()


async def test_where_there_are_no_events_it_is_asked_again_after_a_pause(tmp_path: Path) -> None:
    async def changed(*, alone: bool) -> bool:
        return False

    file = tmp_path / "x.db"
    file.write_bytes(b"1")
    os.utime(file, (1, 1))
    touched = Touched(str(file), changed, none_over)
    await touched.changed()
    await touched.touched()  # its log is not there, so nothing can be watched
    assert touched._watched is not None
    touched.close()
