"""Logs of runs on every store: written by several processes, read while they grow, and bounded."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from horarium.clock import HOUR, SystemClock
from horarium.errors import LeaseLost, NotFound, StoreUnavailable
from horarium.model import Run
from horarium.model.logs import LOG_BYTES_MAX, LogLine
from horarium.model.records import RecordFilter
from horarium.node.backends import make_store
from horarium.operations.runs.logs import BOOKS, SIZES, TEXTS, LogPage, Logs
from horarium.operations.writing.context import Context
from horarium.ports import Store
from horarium.stores.wakeups import LocalSignal
from horarium.testing.clock import ManualClock
from horarium.testing.values import NOW, a_finished_run, a_run

pytestmark = pytest.mark.slow


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = make_store(url, f"n{secrets.token_hex(6)}")
    await store.open()
    yield store
    await store.close()


def logs_of(store: Store) -> Logs:
    return Logs(Context(store, ManualClock(NOW), LocalSignal(), os.urandom))


def lines(*texts: str) -> list[LogLine]:
    return [LogLine(NOW, "stdout", text) for text in texts]


def texts(page: LogPage) -> list[str]:
    return [line.text for line in page.lines]


async def counted(store: Store, prefix: str) -> int:
    return len((await store.list_records(RecordFilter(prefix), None, 200)).items)


async def test_a_log_is_read_from_where_the_reader_was(store: Store) -> None:
    run, logs = a_run(1), logs_of(store)
    await store.add_runs([run])
    assert await logs.read(run.id, 0, 10) == LogPage([], 0)
    await logs.append(run, lines("a", "b"))
    page = await logs_of(store).read(run.id, 0, 10)
    assert (texts(page), page.next_line) == (["a", "b"], 2)
    await logs.append(run, lines("c"))
    assert texts(await logs.read(run.id, 2, 10)) == ["c"]
    assert await logs.read(run.id, 1, 1) == LogPage(lines("b"), 2)


async def test_a_run_that_is_over_says_so(store: Store) -> None:
    run, logs = a_finished_run(1), logs_of(store)
    await store.add_runs([run])
    assert (await logs.read(run.id, 0, 10)).next_line is None
    await logs.append(run, lines("a", "b"))
    assert (await logs.read(run.id, 0, 1)).next_line == 1
    assert (await logs.read(run.id, 1, 10)).next_line is None
    with pytest.raises(NotFound):
        await logs.read("0-0", 0, 10)


async def test_many_writers_lose_no_line(store: Store) -> None:
    run = a_run(1)
    await store.add_runs([run])
    nodes = [logs_of(store) for _ in range(3)]
    await asyncio.gather(
        *(node.append(run, lines(f"{index}-{n}")) for index, node in enumerate(nodes) for n in range(5))
    )
    found = texts(await nodes[0].read(run.id, 0, 100))
    assert sorted(found) == sorted(f"{index}-{n}" for index in range(3) for n in range(5))


async def test_the_middle_of_a_long_log_is_cut_and_that_is_said(store: Store) -> None:
    run, logs = a_run(1), logs_of(store)
    await store.add_runs([run])
    for start in range(0, 600, 100):
        await logs.append(run, lines(*(f"{number} ".ljust(1_000, ".") for number in range(start, start + 100))))
    page = await logs.read(run.id, 0, 1_000)
    numbers = [int(line.text.split()[0]) for line in page.lines if line.stream == "stdout"]
    (cut,) = [line for line in page.lines if line.stream == "horarium"]
    assert (numbers[0], numbers[-1], page.next_line) == (0, 599, 600)
    assert cut.text == f"[{600 - len(numbers)} lines left out]"
    assert len(numbers) * 1_000 <= LOG_BYTES_MAX
    assert len(numbers) > 220
    assert await counted(store, TEXTS) <= 16
    chunk = texts(await logs.read(run.id, 100, 1_000))
    assert chunk[0].startswith("[")


async def test_lines_of_which_nobody_knows_are_written_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store took them and its answer was lost; another writer came before they were given again."""
    run, logs, other = a_run(1), logs_of(store), logs_of(store)
    await store.add_runs([run])
    await logs.append(run, lines("a"))
    honest = store.put_records

    async def loses_its_answer(changes: Any) -> list[bool]:
        await honest(changes)
        raise StoreUnavailable("no answer")

    async def is_away(changes: Any) -> list[bool]:
        raise StoreUnavailable("away")

    for number, put in enumerate((loses_its_answer, is_away)):
        monkeypatch.setattr(store, "put_records", put)
        said = lines(f"b{number}", f"c{number}")
        with pytest.raises(StoreUnavailable):
            await logs.append(run, said)
        monkeypatch.setattr(store, "put_records", honest)
        await other.append(run, lines("theirs"))
        await logs.append(run, said)
    await logs.append(run, lines("d"))
    assert texts(await logs.read(run.id, 0, 20)) == ["a", "b0", "c0", "theirs", "theirs", "b1", "c1", "d"]


async def test_a_stale_worker_adds_nothing(store: Store) -> None:
    run, logs = a_run(1, token=3), logs_of(store)
    await store.add_runs([run])
    await logs.report(run.id, 3, lines("mine"))
    with pytest.raises(LeaseLost):
        await logs.report(run.id, 2, lines("not mine"))
    assert texts(await logs.read(run.id, 0, 10)) == ["mine"]


async def test_a_reader_that_waits_is_answered_when_there_is_a_line(store: Store) -> None:
    run, logs = a_run(1), Logs(Context(store, SystemClock(), LocalSignal(), os.urandom))
    await store.add_runs([run])
    waiting = asyncio.create_task(logs.read(run.id, 0, 10, 20.0))
    await asyncio.sleep(0)
    await logs_of(store).append(run, lines("from another process"))
    assert texts(await waiting) == ["from another process"]
    waiting = asyncio.create_task(logs.read(run.id, 1, 10, 20.0))
    await asyncio.sleep(0)
    logs.close()
    assert (await waiting).next_line == 1


async def test_what_is_old_goes_and_what_is_too_much_goes_from_the_oldest(store: Store) -> None:
    def of(number: int, hours: int) -> Run:
        return a_run(number, created_at=NOW - hours * HOUR)

    runs, logs = [of(1, 50), of(2, 30), of(3, 10), of(4, 0)], logs_of(store)
    await store.add_runs(runs)
    for run in runs:
        for _ in range(4):
            await logs.append(run, lines(*("x" * 1_000 for _ in range(10))))
    await logs.account()
    assert await counted(store, SIZES) == 4
    assert await logs.prune(NOW, 40 * 3_600, 10**9) > 0

    async def left() -> list[int]:
        pages = [await logs_of(store).read(run.id, 0, 100) for run in runs]
        return [len(page.lines) for page in pages]

    assert await left() == [0, 40, 40, 40]
    await logs.prune(NOW, 40 * 3_600, 100_000)
    assert await left() == [0, 0, 40, 40]
    await logs.prune(NOW, 40 * 3_600, 1)
    assert (await left(), await counted(store, BOOKS)) == ([0, 0, 0, 0], 0)
