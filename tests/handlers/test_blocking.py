"""An async handler that blocks the event loop: its run is not lost, and the log says which handler it is, and where."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from horarium import RunContext, Scheduler
from horarium.delivery import blocking
from tests.handlers.conftest import done
from tests.passing import PassingClock
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow


async def test_work_that_blocks_for_longer_than_its_lease_is_done_once(
    scheduler: Scheduler, clock: PassingClock
) -> None:
    calls: list[int] = []

    @scheduler.handler()
    async def work(run: RunContext) -> str:
        calls.append(run.attempt)
        clock.let_pass(300)
        return "done"

    await scheduler.start()
    run = await done(scheduler, "work", retry={"attempts_max": 3})
    assert (run.state, run.attempt, run.error, calls) == ("completed", 1, None, [1])


class Lines(logging.Handler):
    """What is logged of the event loop from the line on that names the handler `work`, with which `said` is set: a loop
    that stood still on a busy machine is told of, too."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.said = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.said.is_set() or "the handler 'work' blocks it" in record.getMessage():
            self.lines.append(record.getMessage())
            self.said.set()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    lines = Lines()
    monkeypatch.setattr(blocking, "STILL_SECONDS", 0.1)
    monkeypatch.setattr(logging.getLogger("horarium"), "handlers", [lines])
    return lines


async def test_the_log_names_a_handler_that_blocks_the_event_loop(scheduler: Scheduler, lines: Lines) -> None:
    over = asyncio.Event()

    @scheduler.handler()
    async def waits(run: RunContext) -> None:
        await over.wait()

    @scheduler.handler()
    async def work(run: RunContext) -> None:
        assert lines.said.wait(PATIENCE)  # blocks

    await scheduler.start()
    await scheduler.enqueue("waits")
    run = await done(scheduler, "work")
    await until(lambda: any("the event loop goes on" in line for line in lines.lines))
    over.set()
    assert run.state == "completed"
    assert f"the handler 'work' blocks it (run {run.id})" in lines.lines[0]
    assert "lines.said.wait(PATIENCE)  # blocks" in lines.lines[0]
    assert "asyncio" not in lines.lines[0]
    assert "handler.py" not in lines.lines[0]


PROGRAM = """
import asyncio, logging, threading
from horarium import Scheduler

logging.basicConfig()
scheduler = Scheduler("sqlite:///blocked.db")

@scheduler.handler(timeouts={"heartbeat_seconds": 1})
async def work(run):
    with open("calls", "a") as calls:
        calls.write(f"{run.attempt}\\n")
    threading.Event().wait(4)  # blocks the event loop for four leases
    return "done"

async def main():
    async with scheduler:
        await scheduler.start()
        run = await scheduler.enqueue("work")
        done = await scheduler.wait_for(run.id, timeout=60)
        print(done.state, done.attempt, done.to_dict()["result"], done.error)

asyncio.run(main())
"""


def test_a_process_that_stood_still_loses_nothing_that_it_holds(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert ended.stdout == "completed 1 done None\n", ended.stderr
    assert (tmp_path / "calls").read_text() == "1\n"
    assert "lost" not in ended.stderr
