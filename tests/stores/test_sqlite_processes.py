"""Several processes on one file: they share the work, and one that is killed takes nothing acknowledged with it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from horarium.model import Run
from horarium.stores.sqlite import SqliteStore
from horarium.testing.values import NOW, QUEUE, a_run
from tests.waiting import PATIENCE

PROCESSES, RUNS, BATCH = 4, 2_000, 20
ACKNOWLEDGED_MIN = 10
WAIT_SECONDS = PATIENCE

pytestmark = pytest.mark.slow
spawn = multiprocessing.get_context("spawn")


async def test_processes_on_one_file_share_the_runs_without_sharing_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    store = SqliteStore(url)
    await store.open()
    runs = [a_run(number) for number in range(RUNS)]
    for start in range(0, RUNS, 1_000):
        await store.add_runs(runs[start : start + 1_000])
    pipes = [spawn.Pipe() for _ in range(PROCESSES)]
    workers = [spawn.Process(target=claim_all, args=(url, theirs)) for _, theirs in pipes]
    for worker in workers:
        worker.start()
    for ours, _ in pipes:
        assert ours.recv() == "open"
    for ours, _ in pipes:
        ours.send("go")
    claimed = [run_id for ours, _ in pipes for run_id in ours.recv()]
    for worker in workers:
        worker.join(WAIT_SECONDS)
    assert sorted(claimed) == sorted(run.id for run in runs)
    assert {run.token for run in await store.get_runs(claimed) if run is not None} == {1}
    await store.close()


def claim_all(url: str, pipe: Connection) -> None:
    pipe.send(asyncio.run(_claim_all(url, pipe)))


async def _claim_all(url: str, pipe: Connection) -> list[str]:
    store = SqliteStore(url)
    await store.open()
    pipe.send("open")
    pipe.recv()
    claimed: list[str] = []
    while runs := (await store.claim_runs([QUEUE], BATCH, str(os.getpid()), NOW, NOW, NOW)).runs:
        claimed += [run.id for run in runs]
    await store.close()
    return claimed


async def test_what_a_killed_process_acknowledged_is_there_and_its_batches_are_whole(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    for turn in range(3):
        ours, theirs = spawn.Pipe(duplex=False)
        writer = spawn.Process(target=add_for_ever, args=(url, turn, theirs))
        writer.start()
        theirs.close()
        for _ in range(ACKNOWLEDGED_MIN):
            ours.recv()
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(WAIT_SECONDS)
        await all_there(url, turn, acknowledged=ACKNOWLEDGED_MIN + drained(ours))


async def all_there(url: str, turn: int, acknowledged: int) -> None:
    store = SqliteStore(url)
    await store.open()
    assert await store._writer.call(lambda session: session.connection.execute("PRAGMA integrity_check").get) == "ok"
    for batch in range(acknowledged + 1):
        found = await store.get_runs([run.id for run in batch_of(turn, batch)])
        present = {run is not None for run in found}
        assert present == {True} or (batch == acknowledged and present == {False})
    await store.close()


def drained(pipe: Connection) -> int:
    count = 0
    while pipe.poll(0):
        try:
            pipe.recv()
        except EOFError:
            break
        count += 1
    return count


def batch_of(turn: int, batch: int) -> list[Run]:
    first = (turn * 10_000 + batch) * BATCH
    return [a_run(first + number) for number in range(BATCH)]


def add_for_ever(url: str, turn: int, pipe: Connection) -> None:
    asyncio.run(_add_for_ever(url, turn, pipe))


async def _add_for_ever(url: str, turn: int, pipe: Connection) -> None:
    store = SqliteStore(url)
    await store.open()
    for batch in range(10_000):
        assert all(await store.add_runs(batch_of(turn, batch)))
        pipe.send(batch)
