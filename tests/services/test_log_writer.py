"""How what handlers say comes to be written: in order, once, and bounded without losing the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from horarium.clock import SECOND
from horarium.errors import StoreUnavailable
from horarium.model import Run
from horarium.model.logs import LOG_BYTES_MAX, LogLine
from horarium.operations.runs.logs import LINES_MAX, Logs
from horarium.rules.backlog import FIRST_BYTES, Backlog
from horarium.rules.logbook import size_of
from horarium.services.performing.log_writer import ACCOUNT, FLUSH, LogWriter
from horarium.testing import ManualClock
from horarium.testing.values import NOW, a_run
from tests.waiting import until


class Paper:
    """What is written, in batches. `fails`: so many times after it took the next ones; `gate`: waited for first."""

    def __init__(self) -> None:
        self.batches: list[list[LogLine]] = []
        self.fails: list[int] = []
        self.asked: list[list[LogLine]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def account(self) -> None:
        """Nothing was written by others."""

    async def append(self, run: Run, lines: Sequence[LogLine]) -> None:
        self.asked.append(list(lines))
        await self.gate.wait()
        if len(self.asked) in self.fails:
            raise StoreUnavailable("no answer")
        self.batches.append(list(lines))

    @property
    def texts(self) -> list[str]:
        return [line.text for batch in self.batches for line in batch]


def a_writer() -> tuple[LogWriter, Paper]:
    paper = Paper()
    return LogWriter(cast(Logs, paper), ManualClock(NOW)), paper


async def test_what_is_said_later_is_written_later() -> None:
    writer, paper = a_writer()
    run = a_run(1)
    paper.gate.clear()
    writer.add(run, "log", "first")
    earlier = asyncio.ensure_future(writer.flush())
    await until(lambda: paper.asked)
    writer.add(run, "log", "second")
    later = asyncio.ensure_future(writer.written(run))
    await asyncio.sleep(0)
    assert len(paper.asked) == 1, "one at a time"
    paper.gate.set()
    await asyncio.gather(earlier, later)
    assert paper.texts == ["first", "second"]


async def test_an_end_waits_for_lines_that_are_being_written() -> None:
    writer, paper = a_writer()
    run = a_run(1)
    paper.gate.clear()
    writer.add(run, "log", "only")
    flushing = asyncio.ensure_future(writer.flush())
    await until(lambda: paper.asked)
    end = asyncio.ensure_future(writer.written(run))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not end.done()
    paper.gate.set()
    await asyncio.gather(flushing, end)
    assert paper.texts == ["only"]


async def test_after_an_outage_the_same_lines_are_given_again_before_any_others() -> None:
    writer, paper = a_writer()
    run = a_run(1)
    paper.fails = [2, 3]
    writer.add(run, "log", "\n".join(f"line {number}" for number in range(LINES_MAX + 5)))
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await writer.flush()
        writer.add(run, "log", "more")
    await writer.flush()
    assert paper.asked[1] == paper.asked[2] == paper.asked[3]
    assert len(paper.asked[1]) == 5
    assert paper.texts == [f"line {number}" for number in range(LINES_MAX + 5)] + ["more", "more"]


async def test_of_too_much_the_beginning_and_the_end_are_kept() -> None:
    writer, paper = a_writer()
    run = a_run(1)
    for number in range(40_000):
        writer.add(run, "log", f"line {number} of very many that are said in one go")
    await writer.written(run)
    assert paper.texts[0].startswith("line 0 ")
    assert paper.texts[-1].startswith("line 39999 ")
    (said,) = [text for text in paper.texts if "left out" in text]
    kept = len(paper.texts) - 1
    assert said == f"[{40_000 - kept:,} lines left out]"
    assert sum(size_of(line) for batch in paper.batches for line in batch) < LOG_BYTES_MAX + 100


async def test_a_step_is_never_wanted_before_now() -> None:
    clock = ManualClock(NOW)
    writer = LogWriter(cast(Logs, Paper()), clock)
    account_at = await writer.step(NOW)
    assert account_at == NOW + ACCOUNT
    clock.advance((ACCOUNT - 1) / SECOND)
    writer.add(a_run(1), "log", "just before the account is due")
    next_at = await writer.step(clock.now())
    clock.advance(2 / SECOND)
    assert clock.now() > account_at
    assert await writer.step(clock.now()) == next_at == NOW + ACCOUNT - 1 + FLUSH


def backlog() -> Backlog[str]:
    return Backlog(len)


def test_what_is_left_out_is_counted_once_however_often_it_waits_again() -> None:
    line = "x" * 1000
    first = backlog()
    first.add_all([line] * 1_000)
    (left_out,) = [entry for entry in first.entries() if isinstance(entry, int)]
    again = backlog()
    again.add_all(first.entries())
    again.add_all([line] * 300)
    entries = again.entries()
    assert sum(entry for entry in entries if isinstance(entry, int)) == 1_300 - sum(each == line for each in entries)
    assert left_out == 1_000 - (len(first) - 1)
    assert again.size <= LOG_BYTES_MAX
    assert entries[: FIRST_BYTES // 1000] == [line] * (FIRST_BYTES // 1000)


def test_where_there_is_no_room_the_line_itself_is_left_out() -> None:
    lines = backlog()
    assert [lines.add("four", room) for room in (10, 4, 3, 0)] == [4, 4, 0, 0]
    assert lines.entries() == ["four", "four", 2]
    assert (lines.add(3), lines.size) == (0, 8)


def test_a_line_that_is_said_as_the_event_loop_closes_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, _ = a_writer()
    writer._loop = asyncio.new_event_loop()
    writer._loop.close()
    monkeypatch.setattr(writer._loop, "is_closed", lambda: False)
    writer.add(a_run(1), "log", "last words")
    assert writer.looks()
