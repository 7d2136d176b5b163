"""Handlers in processes of their own: reused, ended by time limits and cancels, and gone with their scheduler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from horarium import InvalidJob, RunContext, Scheduler
from horarium.delivery.pool import UNGUARDED, Pool
from horarium.testing import perform
from tests.handlers import pooled
from tests.handlers.conftest import ONCE, done, ended
from tests.handlers.limits import LIMIT, LIMIT_SECONDS
from tests.passing import PassingClock
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow


def gone(path: Path) -> bool:
    return not psutil.pid_exists(int(path.read_text()))


def begun(path: Path) -> bool:
    return path.exists() and path.read_text() != ""


def line_of(function: Callable[..., Any]) -> str:
    """The place of the first line in it."""
    return f"pooled.py:{function.__code__.co_firstlineno + 1}"


async def test_calls_have_processes_that_are_used_again(scheduler: Scheduler) -> None:
    add = scheduler.handler(pool="process")(pooled.add)
    wrong = scheduler.handler(pool="process")(pooled.wrong)
    scheduler.handler(pool="process")(pooled.crash)
    await scheduler.start()
    sums = [json.loads((await done(scheduler, "add", {"a": 1, "b": number})).result or b"") for number in (2, 3)]
    assert [each[0] for each in sums] == [3, 4]
    assert sums[0][1] == sums[1][1] != os.getpid()
    run = await done(scheduler, "wrong", {"day": "2027-01-01"})
    assert str(run.error) == f"ValueError: no such day: 2027-01-01 (at {line_of(pooled.wrong)})"
    assert "pooled.py" in str(run.view().history[-1].detail)
    run = await done(scheduler, "crash")
    assert run.error == "ProcessEnded: its process ended with the status -9"
    assert (await add.enqueue(1, b=2)).queue == "handler/add"
    assert wrong is pooled.wrong


async def test_an_error_whose_constructor_wants_more_is_still_that_error(scheduler: Scheduler) -> None:
    scheduler.add_handler("no_disk", pooled.no_disk, pool="process", give_up_on=pooled.NoDisk)
    await scheduler.start()
    run = await done(scheduler, "no_disk", retry={"attempts_max": 3, "backoff_seconds": 0})
    assert run.error == f"NoDisk: 28: it is full (at {line_of(pooled.no_disk)})"
    assert run.attempt == 1


PROGRAM = """
import asyncio
from horarium import Scheduler
scheduler = Scheduler("memory://")

@scheduler.handler(pool="process")
def add(a: int, b: int) -> int:
    return a + b

async def main() -> None:
    async with scheduler:
        await scheduler.start()
        run = await scheduler.wait_for(await scheduler.enqueue("add", {"a": 1, "b": 2}, retry={"attempts_max": 1}))
        print(run.result or run.error)

"""


@pytest.mark.parametrize(
    ("begin", "said"), [('if __name__ == "__main__": ', "b'3'"), ("", f"before it began: {UNGUARDED}")]
)
def test_a_program_that_is_not_for_import_is_told_so(tmp_path: Path, begin: str, said: str) -> None:
    file = tmp_path / "program.py"
    file.write_text(f"{PROGRAM}{begin}asyncio.run(main())\n")
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert said in done.stdout
    assert ("Conflict: this Scheduler is not for a process of a pool" in done.stderr) is not bool(begin)


def test_a_fork_that_ends_leaves_the_process_to_its_parent() -> None:
    program = (
        "import os, sys; from horarium.delivery.pool import Pool; from tests.handlers import pooled\n"
        "pool = Pool(); first = pool.call(pooled.add, {'a': 1, 'b': 2}, lambda end: None)\n"
        "child = os.fork()\n"
        "if child == 0: sys.stderr.close(); sys.exit()\n"
        "os.waitpid(child, 0); print(first == pool.call(pooled.add, {'a': 1, 'b': 2}, lambda end: None)); pool.close()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "True\n"


def test_to_end_a_call_that_is_over_ends_no_other() -> None:
    pool, ends = Pool(), list[Callable[[], None]]()
    first = pool.call(pooled.add, {"a": 1, "b": 1}, ends.append)
    second = pool.call(pooled.add, {"a": 2, "b": 2}, lambda end: ends[0]())
    pool.close()
    assert (first[0], second[0], first[1]) == (2, 4, second[1])


async def test_a_time_limit_and_a_cancel_end_the_process(
    scheduler: Scheduler, clock: PassingClock, tmp_path: Path
) -> None:
    scheduler.add_handler("endless", pooled.endless, pool="process")
    await scheduler.start()
    first, second = tmp_path / "first", tmp_path / "second"
    run = await scheduler.enqueue("endless", {"path": str(first)}, **LIMIT, **ONCE)
    other = await scheduler.enqueue("endless", {"path": str(second)})
    await until(lambda: begun(first) and begun(second))
    await scheduler.cancel_run(other.id)
    assert (await ended(scheduler, other)).state == "cancelled"
    clock.let_pass(LIMIT_SECONDS)
    run = await ended(scheduler, run)
    assert (run.state, "timed out" in str(run.error)) == ("failed", True)
    await until(lambda: gone(first) and gone(second))


async def test_a_function_that_no_other_process_can_call_is_refused(scheduler: Scheduler) -> None:
    def local(a: int) -> None: ...
    def with_run(run: RunContext) -> None: ...
    async def asynchronous() -> None: ...

    wrong: list[tuple[Any, str]] = [
        (local, "at the top of a module"),
        (with_run, "asks for the run"),
        (asynchronous, "is async"),
    ]
    for function, words in wrong:
        with pytest.raises(InvalidJob, match=words):
            scheduler.add_handler("x", function, pool="process")
    with pytest.raises(InvalidJob, match="pool must be 'process'"):
        scheduler.add_handler("x", pooled.add, pool="thread")  # type: ignore[arg-type]


async def test_it_is_performed_in_a_test_too() -> None:
    scheduler = Scheduler("memory://")
    scheduler.handler(pool="process")(pooled.add)
    assert (await perform(scheduler, "add", {"a": 1, "b": 2}))[0] == 3
    scheduler._program._pool.close()


def test_a_program_that_closes_nothing_ends_all_the_same() -> None:
    program = (
        "from horarium import SyncScheduler; from horarium.testing import perform; from tests.handlers import pooled\n"
        "scheduler = SyncScheduler('memory://'); scheduler.handler(pool='process')(pooled.add)\n"
        "print(perform(scheduler, 'add', {'a': 1, 'b': 2})[0])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert (done.stdout, done.stderr) == ("3\n", "")
