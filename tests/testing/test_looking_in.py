"""One handler by itself, what was enqueued, and schedulers that are moved to memory for a test."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pydantic
import pytest

from horarium import Discard, NotFound, Retry, RunContext, Scheduler, SyncScheduler, WrongArguments
from horarium.errors import InvalidRequest
from horarium.testing import assert_enqueued, assert_not_enqueued, enqueued, in_memory, perform
from tests.blackbox.outside import environment

scheduler = Scheduler("sqlite:////nowhere/jobs.db")
plain = SyncScheduler("sqlite:////nowhere/jobs.db")


@scheduler.handler("report")
async def report(run: RunContext, month: int, strict: bool = False) -> dict[str, Any]:
    await run.progress({"month": month})
    run.log("month %d", month)
    if strict and await run.cancelled.wait(0):
        return {"stopped": True}
    if month > 12:
        raise Discard("no such month")
    return {"pages": month, "attempt": run.attempt}


@plain.handler()
def add(run: RunContext, a: int, b: int) -> int:
    run.progress({"a": a})
    if run.cancelled.wait(0):
        raise Retry("stopped")
    return a + b


@plain.handler()
async def late(run: RunContext) -> str:
    return run.id


async def test_a_handler_is_performed_with_a_real_context() -> None:
    assert await perform(scheduler, "report", {"month": 3}) == {"pages": 3, "attempt": 1}
    assert await perform(scheduler, report, {"month": 3}, attempt=2) == {"pages": 3, "attempt": 2}
    assert await perform(scheduler, report, {"month": 3, "strict": True}, cancelled=True) == {"stopped": True}
    with pytest.raises(Discard, match="no such month"):
        await perform(scheduler, report, {"month": 13})
    with pytest.raises(WrongArguments, match="month"):
        await perform(scheduler, report, {"month": "March"})
    with pytest.raises(NotFound, match="'reprot'"):
        await perform(scheduler, "reprot")


def test_a_plain_handler_is_performed_in_the_thread_of_the_test() -> None:
    assert perform(plain, add, {"a": 1, "b": 2}) == 3
    assert perform(plain, late)
    with pytest.raises(Retry):
        perform(plain, "add", {"a": 1, "b": 2}, cancelled=True)


async def test_a_result_that_can_not_be_kept_is_an_error_of_the_test_too() -> None:
    other = Scheduler("memory://")
    other.add_handler("odd", lambda run: object())
    with pytest.raises(InvalidRequest, match="can't be written as JSON"):
        await perform(other, "odd")


async def test_what_was_enqueued_is_seen_at_once() -> None:
    with in_memory(scheduler):
        async with scheduler:
            await scheduler.enqueue(report, {"month": 3}, delay="1h")
            await scheduler.enqueue("report", {"month": 4, "strict": True}, connection=object())
            await scheduler.enqueue("other")
        assert assert_enqueued(scheduler, report, {"month": 4}).priority == 0
        assert_enqueued(scheduler, "report", count=2)
        assert_not_enqueued(scheduler, "report", {"month": 5})
        assert len(enqueued(scheduler)) == 3
        with pytest.raises(
            AssertionError, match=r"(?s)expected a run of 'report' with .'month': 5.*report .'month': 3"
        ):
            assert_enqueued(scheduler, report, {"month": 5})
        with pytest.raises(AssertionError, match="expected 1 run, not 2"):
            assert_enqueued(scheduler, "report", count=1)
        with pytest.raises(AssertionError, match="expected no such run; enqueued: report"):
            assert_not_enqueued(scheduler, "report", {"month": 3})
    with pytest.raises(InvalidRequest, match="on a real store"):
        assert_enqueued(scheduler, "report")


def test_one_that_is_open_looks_into_memory_and_goes_on(tmp_path: Path) -> None:
    with SyncScheduler(f"sqlite:///{tmp_path}/live.db") as live:
        live.enqueue("work")
        with in_memory(live):
            live.enqueue("work")
            assert len(enqueued(live)) == 1
        assert [run.queue for run in live.list_runs().items] == ["handler/work"]


def test_all_schedulers_of_the_program_are_moved_and_come_back() -> None:
    kept = scheduler._runtime, plain._scheduler._runtime
    with in_memory():
        plain.enqueue("add", {"a": 1, "b": 2})
        sql, values = plain.enqueue_sql("add", [{"a": 3, "b": 4}])
        assert (sql, values) == ("SELECT 1", ())
        assert_enqueued(plain, add, {"a": 3})
        assert enqueued(scheduler) == []
    assert kept == (scheduler._runtime, plain._scheduler._runtime)


class Address(pydantic.BaseModel):
    street: str
    since: date


def test_args_are_compared_as_a_run_keeps_them() -> None:
    address = Address(street="Main Street", since=date(2027, 1, 1))
    with in_memory(plain):
        plain.enqueue("move", {"to": address, "at": Decimal("1.50")})
        assert_enqueued(plain, "move", {"to": address, "at": Decimal("1.50")})
        with pytest.raises(AssertionError, match="no such run"):
            assert_not_enqueued(plain, "move", {"to": address})


TEST = """
import pytest
from app import scheduler
from horarium.testing import assert_enqueued

def test_one({fixture}):
    scheduler.enqueue("mail", {{"to": "a"}})
    assert_enqueued(scheduler, "mail", {{"to": "a"}}, count=1)

def test_another({fixture}):
    scheduler.enqueue("mail", {{"to": "a"}})
    assert_enqueued(scheduler, "mail", count=1)
"""


OUTLASTING = """
@pytest.fixture(scope="module")
def enqueued_once():
    scheduler.enqueue("mail", {"to": "a"})

def test_a_third(enqueued_once):
    scheduler.enqueue("mail", {"to": "a"})
    assert_enqueued(scheduler, "mail", count=1)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("fixture", "ini"), [("horarium_memory", ""), ("", "horarium_memory = true")])
def test_the_plugin_gives_each_test_empty_stores(tmp_path: Path, fixture: str, ini: str) -> None:
    (tmp_path / "app.py").write_text(
        "from horarium import SyncScheduler\nscheduler = SyncScheduler('sqlite:////nowhere/jobs.db')\n"
    )
    (tmp_path / "test_app.py").write_text(TEST.format(fixture=fixture) + (OUTLASTING if ini else ""))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = .\n{ini}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "horarium.testing.plugin"],
        cwd=tmp_path, env={**environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    passed = f"{3 if ini else 2} passed"
    assert (done.returncode, passed in done.stdout) == (0, True), done.stdout + done.stderr
    assert "PYTEST_CURRENT_TEST" in os.environ


def test_the_plugin_is_found_by_pytest() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nhorarium = "horarium.testing.plugin"\n' in project
