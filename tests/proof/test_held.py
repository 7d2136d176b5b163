"""A hundred thousand that wait: under a hold on everything, behind a rate limit that is shut; a thousand callers that
wait for results."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from horarium import Scheduler
from horarium.clock import SystemClock
from horarium.wire.definitions import read_definition
from tests.proof.backends import start_backend
from tests.waiting import let_pass, until

pytestmark = [pytest.mark.slow, pytest.mark.proof]

MANY, PAGE, AN_HOUR = 100_000, 1_000, 3_600
IN_FORCE = 2.0
"""Seconds from the commit of a hold on."""
USUAL_PACE = 100
"""Fire times a second that are caught up on, where nothing else is said."""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a store that nothing else uses."""
    with ExitStack() as stack:
        yield start_backend(request.param, tmp_path, stack).url


async def passed(seconds: float) -> None:
    """Real time goes by, and the event loop goes on."""
    await asyncio.to_thread(let_pass, seconds)


async def share(seconds: float) -> float:
    """How much of a core this process takes."""
    before = time.process_time()
    await passed(seconds)
    return (time.process_time() - before) / seconds


def hourly(number: int, began: float) -> dict[str, Any]:
    """One of many jobs, spread evenly over the hour."""
    anchor = datetime.fromtimestamp(int(began) - AN_HOUR + number * AN_HOUR // MANY, UTC)
    trigger = {"type": "interval", "every_seconds": AN_HOUR, "anchor": anchor.isoformat()}
    return {"name": f"job-{number:06}", "trigger": trigger, "target": {"type": "handler", "name": "work"}}


async def test_a_hold_on_everything_over_a_hundred_thousand_jobs(url: str) -> None:
    scheduler = Scheduler(url)
    begun: list[tuple[float, str, float]] = []

    @scheduler.handler("work")
    async def work(run: Any) -> None:
        begun.append((time.time(), run.job, run.fire_at.timestamp()))

    async with scheduler:
        await scheduler.start()
        idle = await share(8)
        began = time.time()
        for first in range(0, MANY, PAGE):
            page = [read_definition(hourly(number, began)) for number in range(first, first + PAGE)]
            await scheduler._operations.jobs.create_jobs(page)
        there = len(begun)
        await until(lambda: len(begun) > there + 100, what="jobs to fire")
        firing = await share(8)
        held = await scheduler.add_hold({"scope": {"all": True}, "reason": "moving"})
        since = time.time()
        await passed(IN_FORCE)
        there = len(begun)
        waiting = await share(15)
        assert len(begun) == there, "nothing begins two seconds after the commit"
        await scheduler.lift_hold(held["id"])
        lifted = time.time()
        fires = MANY * (lifted - since) / AN_HOUR

        def owed() -> set[tuple[str, float]]:
            return {(job, fire) for _, job, fire in begun if since < fire <= lifted}

        await until(lambda: len(owed()) > fires - MANY / AN_HOUR, what="all to be caught up on")
        took = time.time() - lifted
    assert len({(job, fire) for _, job, fire in begun}) == len(begun), "each fire time once"
    said = f"{idle:.2%} of a core without jobs, {firing:.1%} while all fire, {waiting:.2%} held"
    print(f"{said}; {len(owed())} caught up within {took:.1f} s")
    assert waiting - idle < 0.03
    assert took < 2 * fires / USUAL_PACE


async def test_claims_beside_a_hundred_thousand_that_wait_for_a_rate_limit(tmp_path: Path) -> None:
    async def a_claim_beside(waiting: int) -> float:
        """CPU seconds of a claim of a hundred."""
        scheduler = Scheduler(f"sqlite:///{tmp_path / str(waiting)}.db")
        scheduler.handler("work")(lambda run, number: None)
        now = SystemClock().now
        async with scheduler:
            claim = scheduler._operations.claiming.claim
            await scheduler.set_rate("shut", "1/1h")
            for first in range(0, waiting, PAGE):
                args = [{"number": number} for number in range(first, first + PAGE)]
                await scheduler.enqueue_many("work", args, rate="shut=1/1h")
            while waiting and (await claim(["handler/work"], 100, "w", now(), now())).runs:
                pass
            for _ in range(20):
                await scheduler.enqueue_many("work", [{"number": number} for number in range(PAGE)])
            took = []
            for _ in range(150):
                began = time.process_time()
                claimed = await claim(["handler/work"], 100, "w", now(), now())
                took.append(time.process_time() - began)
                assert len(claimed.runs) == 100
        return statistics.median(took)

    alone, beside = await a_claim_beside(0), await a_claim_beside(MANY)
    print(f"a claim of 100: {alone * 1e3:.2f} ms of CPU alone, {beside * 1e3:.2f} beside {MANY:,} that wait")
    assert beside <= 1.5 * alone


async def test_a_thousand_callers_wait_for_results_at_next_to_no_cost(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path / 'h.db'}")

    @scheduler.handler("work")
    async def work(run: Any) -> float:
        return time.time()

    async with scheduler:
        await scheduler.start()
        later = [await scheduler.enqueue("work", delay=timedelta(hours=1)) for _ in range(1_000)]
        idle = await share(8)
        callers = [asyncio.create_task(scheduler.wait_for(run, timeout=AN_HOUR)) for run in later]
        await until(lambda: scheduler._operations.waiting._waiting == len(callers), what="all to wait")
        waiting = await share(8)
        late = []
        for _ in range(100):
            done = await scheduler.wait_for(await scheduler.enqueue("work"), timeout=30)
            late.append(time.time() - done.to_dict()["result"])
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
    print(f"{idle:.2%} of a core, {waiting:.2%} with 1,000 callers; answered {statistics.median(late) * 1e3:.1f} ms on")
    assert waiting - idle < 0.03
    assert statistics.median(late) < 0.02
