"""The library as DESIGN and README show it: each program in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from horarium import Scheduler, at, cron, every, rrule, when
from tests.blackbox.outside import environment
from tests.waiting import PATIENCE

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

PROGRAM = """
import asyncio
from datetime import timedelta

from horarium import Scheduler, cron, rrule, every, at, when

scheduler = Scheduler("sqlite:///horarium.db")

@scheduler.handler("report")
async def report(run):
    print("report", run.args, run.attempt, flush=True)

async def main():
    async with scheduler:
        await scheduler.add_job("nightly", cron("0 3 * * *", timezone="Europe/Berlin"), handler="report", args={"a": 1})
        await scheduler.enqueue("report", {"n": 1}, delay=timedelta(seconds=0.2))
        await scheduler.enqueue_many("report", [{"n": 2}, {"n": 3}])
        await scheduler.run_forever()

asyncio.run(main())
"""

DRAIN = """
import asyncio
from horarium import Scheduler

async def main():
    scheduler = Scheduler("sqlite:///horarium.db", handler_concurrency=1)
    begun, go = asyncio.Event(), asyncio.Event()

    @scheduler.handler("slow")
    async def slow(run):
        begun.set()
        await go.wait()
        return "done"

    async with scheduler:
        first = await scheduler.enqueue("slow")
        second = await scheduler.enqueue("slow")
        print((await scheduler.get_run(first.id)).state, flush=True)
        await scheduler.start()
        await begun.wait()
        stopping = asyncio.create_task(scheduler.stop())
        await asyncio.sleep(0)
        go.set()
        await stopping
        states = sorted([(await scheduler.get_run(run.id)).state for run in (first, second)])
        print(*states, flush=True)

asyncio.run(main())
"""


def program(text: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text], cwd=folder, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.slow
def test_the_program_in_the_design_runs_as_written(tmp_path: Path) -> None:
    running = program(PROGRAM, tmp_path)
    assert running.stdout is not None
    lines = {running.stdout.readline().strip() for _ in range(3)}
    assert lines == {f"report {{'n': {n}}} 1" for n in (1, 2, 3)}
    running.send_signal(signal.SIGTERM)
    out, error = running.communicate(timeout=PATIENCE)
    assert (running.returncode, out, error) == (0, "", "")


@pytest.mark.slow
def test_stop_lets_what_runs_finish_and_opening_starts_nothing(tmp_path: Path) -> None:
    out, error = program(DRAIN, tmp_path).communicate(timeout=PATIENCE)
    assert out.splitlines() in (["pending", "completed pending"], ["pending", "completed completed"]), error


def test_a_trigger_is_a_value_on_its_own() -> None:
    rule = rrule("DTSTART;TZID=Europe/Berlin:20250101T083000\nRRULE:FREQ=DAILY")
    first = rule.next_after(NOON)
    assert first == datetime(2026, 1, 2, 7, 30, tzinfo=UTC)
    assert first.utcoffset() == timedelta(0)
    assert rule.next_after(first) == first + timedelta(days=1), "strictly after"
    assert rule.fires(NOON, 2) == [first, first + timedelta(days=1)]
    assert rule.between(NOON, first) == []
    assert rule.between(first, first + timedelta(days=1)) == [first]
    assert str(rule)
    assert at(NOON).next_after(NOON) is None
    assert at(NOON).next_after(NOON - timedelta(microseconds=1)) == NOON
    assert every("5m") == every(timedelta(minutes=5)) == every(300)
    assert str(when("every other tuesday at 9:34am", timezone="America/New_York"))
    assert cron("0 3 * * *").next_after(NOON) == datetime(2026, 1, 2, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    "refused",
    [
        lambda: cron("61 * * * *"),
        lambda: cron("0 0 30 2 *"),
        lambda: cron("0 3 * * *", timezone="Mars/Phobos"),
        lambda: rrule("FREQ=NEVER"),
        lambda: rrule("DTSTART;TZID=Nope/Zone:20260101T000000\nRRULE:FREQ=DAILY"),
        lambda: every(0),
        lambda: every("5x"),
        lambda: when("every now and then"),
        lambda: at(datetime(2026, 1, 1)),
        lambda: every("5m").next_after(datetime(2026, 1, 1)),
        lambda: Scheduler("foo://x"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_what_was_given_is_a_value_error(refused: object) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        refused()  # type: ignore[operator]


async def test_wrong_jobs_are_value_errors_that_say_what_is_meant(store: str) -> None:
    async with Scheduler(store) as scheduler:
        for name, fields, words in (
            ("a b", {"queue": "q"}, "letters"),
            ("x", {}, "target"),
            ("x", {"queue": "q", "overlap": "no"}, "overlap"),
            ("x", {"queue": "q", "retries": 3}, "retries"),
            ("x", {"queue": "q", "handler": "h"}, "exactly one"),
            ("x", {"http": "http://127.0.0.1/"}, "url"),
        ):
            with pytest.raises(ValueError, match=words):
                await scheduler.add_job(name, every("5m"), **fields)
        with pytest.raises(ValueError, match="future"):
            await scheduler.add_job("x", at(NOON), queue="q")
        assert (await scheduler.list_jobs()).items == ()
