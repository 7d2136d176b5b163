"""What handlers say by how they end, and while they run."""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import UTC, datetime, timedelta

import pytest

from horarium import Defer, Discard, Retry, RunContext, Scheduler
from horarium.model import State
from tests.handlers.conftest import ONCE, done, ended

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_handlers_of_both_kinds_say_the_same_things(scheduler: Scheduler, kind: str) -> None:
    deferred: list[str] = []

    def act(run: RunContext, what: str) -> object:
        match what:
            case "retry" if run.attempt == 1:
                raise Retry("not yet", after=timedelta(seconds=0))
            case "discard":
                raise Discard("never")
            case "defer" if run.id not in deferred:
                deferred.append(run.id)
                raise Defer(datetime.now(UTC) + timedelta(seconds=0.1))
            case "exit":
                sys.exit(3)
            case "stop":
                raise StopIteration
            case "wrong":
                return object()
        return {"attempt": run.attempt}

    if kind == "async":

        @scheduler.handler("act")
        async def perform(run: RunContext, what: str) -> object:
            return act(run, what)
    else:
        scheduler.add_handler("act", act)
    await scheduler.start()
    two = {"retry": {"attempts_max": 2}}
    runs = {
        what: await scheduler.enqueue("act", {"what": what}, **(two if what == "retry" else ONCE))
        for what in ("retry", "discard", "defer", "exit", "stop", "wrong", "nothing")
    }
    over = {what: await ended(scheduler, run) for what, run in runs.items()}
    assert (over["retry"].result, over["retry"].error) == (b'{"attempt":2}', None)
    assert (over["discard"].state, over["discard"].error) == (State.FAILED, "never")
    assert (over["defer"].result, over["defer"].attempt, deferred) == (b'{"attempt":1}', 1, [over["defer"].id])
    assert over["exit"].error == "it called exit(3)"
    assert "StopIteration" in (over["stop"].error or "")
    assert (over["wrong"].error or "").startswith("its result can't be written as JSON")
    assert over["nothing"].state is State.COMPLETED


async def test_a_plain_function_may_return_a_coroutine(scheduler: Scheduler) -> None:
    async def inner() -> int:
        await asyncio.sleep(0)
        return 5

    scheduler.add_handler("outer", lambda run: inner())
    await scheduler.start()
    assert (await done(scheduler, "outer")).result == b"5"


async def test_progress_and_log_name_the_run_in_both_worlds(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "horarium.handler")

    @scheduler.handler("async")
    async def one(run: RunContext) -> None:
        await run.progress({"done": 1})
        await run.heartbeat()
        run.log.info("half of %s", "it")

    @scheduler.handler("thread")
    def other(run: RunContext) -> None:
        run.progress({"done": 1})
        run.heartbeat()
        run.log.info("half of %s", "it")
        with pytest.raises(ValueError, match="progress: can't be written as JSON"):
            run.progress(object())
        with pytest.raises(ValueError, match="progress: 70,002 bytes; at most 65,536"):
            run.progress("x" * 70_000)

    await scheduler.start()
    for name in ("async", "thread"):
        run = await done(scheduler, name)
        assert (run.state, run.progress) == (State.COMPLETED, b'{"done":1}')
        assert f"{name} {run.id} attempt 1: half of it" in caplog.text
        record = caplog.records[-1]
        assert (record.__dict__["run"], record.__dict__["attempt"], record.__dict__["handler"]) == (run.id, 1, name)
