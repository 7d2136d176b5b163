"""Workers that know the wire alone as it is written down: three fields out, three back, no token, nothing of ours."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from horarium.library.values import Run
from horarium.model import State
from tests.buses.test_scheduler import LEASE, Begin, Bench, on_both, on_memory
from tests.buses.test_scheduler import bench_of as bench_of
from tests.waiting import until


async def _silent_once(bench: Bench) -> tuple[Run, dict[str, Any]]:
    """A run whose first worker fell silent and whose second action was taken, and that action."""
    run = await bench.begin(timeouts=LEASE)
    first = await bench.action()
    await bench.silence(run, first)
    second = await bench.action()
    assert (first["runId"], second["runId"], second["attempt"]) == (run.id, run.id, 2)
    return run, second


@on_both
@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
async def test_a_late_end_changes_nothing_before_the_next_worker_has_spoken(
    bench_of: Begin, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = await bench_of()
    run = await bench.begin(timeouts=LEASE)
    await bench.silence(run, await bench.action())
    second = await bench.action()
    with caplog.at_level(logging.WARNING, "horarium"):
        await bench.say("status", second, status=status)
        await bench.until_counted("stale", 1)
    assert "changed nothing" in caplog.text
    stands = await bench.scheduler.get_run(run.id)
    assert (stands.state, stands.attempt) == (State.PENDING, 2)
    await bench.say("status", second, status="running")
    await bench.say("status", second, status="completed", result="right")
    ended = await bench.until(run.id, lambda run: run.finished)
    assert (ended.state, ended.result, ended.attempt) == (State.COMPLETED, b'"right"', 2)


@on_memory
async def test_an_end_that_overtakes_its_own_running_counts(bench_of: Begin) -> None:
    bench = await bench_of()
    run, second = await _silent_once(bench)
    await bench.say("status", second, status="completed")
    await bench.say("status", second, status="running")
    ended = await bench.until(run.id, lambda run: run.finished)
    assert (ended.state, ended.attempt) == (State.COMPLETED, 2)


@on_memory
async def test_workers_that_never_say_running_are_known_by_the_runs_that_they_end(bench_of: Begin) -> None:
    bench = await bench_of()
    first = await bench.begin(timeouts=LEASE)
    await bench.say("status", await bench.action(), status="completed")
    await bench.until(first.id, lambda run: run.finished)
    run = await bench.scheduler.trigger_job(bench.job)
    await bench.silence(run, await bench.action())
    await bench.say("status", await bench.action(), status="completed")
    ended = await bench.until(run.id, lambda run: run.finished)
    assert (ended.state, ended.attempt) == (State.COMPLETED, 2)


@on_memory
async def test_what_is_said_under_two_attempts_counts(bench_of: Begin) -> None:
    bench = await bench_of()
    run, second = await _silent_once(bench)
    await bench.say("status", second, status="completed")
    await bench.until_counted("stale", 1)
    await bench.silence(run, second)
    third = await bench.action()
    assert third["attempt"] == 3
    await bench.say("status", third, status="completed")
    ended = await bench.until(run.id, lambda run: run.finished)
    assert (ended.state, ended.attempt) == (State.COMPLETED, 3)


@on_memory
@pytest.mark.parametrize("status", ["running", "completed", "failed", "cancelled"])
async def test_a_report_on_a_run_that_was_put_back_changes_nothing(bench_of: Begin, status: str) -> None:
    bench = await bench_of()
    run = await bench.begin(retry={"backoff_seconds": 3600, "attempts_max": 3})
    action = await bench.action()
    await bench.say("status", action, status="failed", error="no disk")
    put_back = await bench.until(run.id, lambda run: run.error is not None)
    await bench.say("status", action, status=status)
    await bench.until_counted("stale", 1)
    assert await bench.scheduler.get_run(run.id) == put_back


@on_memory
@pytest.mark.parametrize("status", ["running", "completed", "failed", "cancelled"])
async def test_a_report_on_a_run_that_has_ended_changes_nothing(bench_of: Begin, status: str) -> None:
    bench = await bench_of()
    run = await bench.begin()
    action = await bench.action()
    await bench.say("status", action, status="completed", result=1)
    ended = await bench.until(run.id, lambda run: run.finished)
    await bench.say("status", action, status=status)
    await until(lambda: bench.counted("stale") + bench.counted("duplicate") >= 1)
    assert await bench.scheduler.get_run(run.id) == ended
