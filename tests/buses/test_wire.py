"""Workers that know the wire alone as it is written down: three fields out, three back, no token, nothing of ours."""

from __future__ import annotations

import json
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


NEARLY_JSON = {
    "a number that is none": (b'"status": "completed", "result": {"mean": NaN, "most": -Infinity}', "COMPLETED"),
    "half a character": (b'"status": "failed", "error": "no file \\udce4.txt", "retryable": false', "FAILED"),
    "half a character in a result": (b'"status": "completed", "result": "\\ud83d"', "COMPLETED"),
    "optional fields that are null": (
        b'"status": "failed", "error": "x", "retryable": null, "token": null, "result": null', "PENDING"
    ),
}  # fmt: skip


@on_memory
@pytest.mark.parametrize(("fields", "state"), NEARLY_JSON.values(), ids=NEARLY_JSON)
async def test_an_end_counts_whose_content_json_does_not_have(bench_of: Begin, fields: bytes, state: str) -> None:
    bench = await bench_of()
    run = await bench.begin(retry={"backoff_seconds": 600})
    action = await bench.action()
    await bench.say("status", action, status="running")
    await bench.until(run.id, lambda run: run.state is State.RUNNING)
    head = f'{{"jobName": "{action["jobName"]}", "runId": "{run.id}", '.encode()
    await bench.workers.send(bench.job, "status", [head + fields + b"}"])
    ended = await bench.until(run.id, lambda run: run.state is State[state])
    assert bench.counted("malformed") == 0
    if b"NaN" in fields:
        assert json.loads(ended.result or b"") == {"mean": None, "most": None}


@on_memory
async def test_a_report_counts_with_a_byte_order_mark_and_names_in_capitals(bench_of: Begin) -> None:
    bench = await bench_of()
    run = await bench.begin()
    action = await bench.action()
    body = {"JobName": action["jobName"], "RunID": run.id, "Status": "completed", "Token": action["token"]}
    await bench.workers.send(bench.job, "status", [json.dumps(body).encode("utf-8-sig")])
    assert (await bench.until(run.id, lambda run: run.finished)).state is State.COMPLETED
