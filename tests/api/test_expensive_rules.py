"""Rules made to stop the scheduler: none holds the event loop for long, and what is too much is refused as such."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from horarium.api import questions
from horarium.model import Job
from horarium.rules.planning import plan
from horarium.triggers.budget import PLAN_STEPS, QUESTION_STEPS

from .conftest import Api, a_definition

pytestmark = pytest.mark.slow

LOOP_HELD_SECONDS = 0.25
"""How long a request may hold the event loop on a busy machine. Before there was a budget it was 1 to 48 seconds."""


def times(expression: str) -> dict[str, Any]:
    return {"type": "cron", "expression": expression}


SECONDS = times("* * * * * *")
HOURLY = {"type": "except", "trigger": SECONDS, "except": [times("1-59 * * * * *"), times("0 1-59 * * * *")]}
SIXTY = {
    "type": "except", "trigger": SECONDS,
    "except": [*(times(f"{n} * * * * *") for n in range(59)), times("59 1-59 * * * *")],
}  # fmt: skip
RULES = {
    "type": "except",
    "trigger": {"type": "rrule", "rrule": "FREQ=SECONDLY"},
    "except": [{"type": "rrule", "rrule": f"FREQ=MINUTELY;BYSECOND={n}"} for n in range(59)],
}
NOTHING = {"type": "except", "trigger": SECONDS, "except": [times("0-29 * * * * *"), times("30-59 * * * * *")]}
NOTHING_BY_RULES = {
    "type": "except",
    "trigger": {"type": "rrule", "rrule": "FREQ=SECONDLY"},
    "except": [{"type": "rrule", "rrule": "FREQ=SECONDLY;INTERVAL=1;BYDAY=MO,TU,WE,TH,FR,SA,SU"}],
}
UNION = {
    "type": "any_of",
    "triggers": [
        {"type": "any_of", "triggers": [times(f"{n} * * * * *"), times(f"{n} {n} * * * *"), times(f"* {n} 3 * * *")]}
        for n in range(60)
    ],
}


@asynccontextmanager
async def loop_held(most: float) -> AsyncIterator[None]:
    """Asserts that nothing held the event loop for longer than `most` seconds of this process."""
    longest, going = 0.0, True

    async def watch() -> None:
        nonlocal longest
        before = time.process_time()
        while going:
            await asyncio.sleep(0)
            now = time.process_time()
            longest, before = max(longest, now - before), now

    watching = asyncio.ensure_future(watch())
    await asyncio.sleep(0)
    yield
    going = False
    await watching
    assert longest < most


@pytest.mark.parametrize("trigger", [HOURLY, SIXTY, UNION], ids=["two", "sixty", "union"])
async def test_a_preview_of_a_thousand_is_answered_without_holding_the_loop(api: Api, trigger: Any) -> None:
    async with loop_held(LOOP_HELD_SECONDS):
        reply = await api.post("/preview", {"trigger": trigger, "count": 1000})
    assert reply.status == 200
    assert len(reply.json["fires"]) == 1000


async def test_a_preview_that_takes_too_much_is_refused(api: Api) -> None:
    async with loop_held(LOOP_HELD_SECONDS):
        few = await api.post("/preview", {"trigger": RULES, "count": 1})
        reply = await api.post("/preview", {"trigger": RULES, "count": 1000})
    assert few.status == 200
    assert (reply.status, reply.code) == (422, "too_expensive")
    assert "windows" in reply.json["detail"]


async def test_many_jobs_of_which_nothing_is_left_are_each_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "QUESTION_SECONDS", 300.0)  # how long it takes depends on the machine
    count = QUESTION_STEPS // PLAN_STEPS + 4
    jobs = [a_definition(f"j{n}", trigger=NOTHING if n % 2 else NOTHING_BY_RULES) for n in range(count)]
    async with loop_held(LOOP_HELD_SECONDS):
        reply = await api.post("/import", {"jobs": jobs, "dry_run": True})
    assert reply.status == 200
    assert {each["outcome"] for each in reply.json} == {"failed"}


async def test_a_job_that_is_too_expensive_is_not_defined(api: Api) -> None:
    reply = await api.post("/jobs", a_definition("evil", trigger=NOTHING_BY_RULES))
    assert (reply.status, reply.code) == (422, "too_expensive")
    assert reply.json["field"].startswith("trigger")
    assert (await api.get("/jobs/evil")).status == 404


async def test_the_fires_of_a_stored_job_are_bounded_and_its_plan_too(api: Api) -> None:
    reply = await api.post("/jobs", a_definition("evil", trigger=SIXTY))
    assert reply.status == 201
    async with loop_held(LOOP_HELD_SECONDS):
        assert len((await api.get("/jobs/evil/fires?count=1000")).json["fires"]) == 1000
    job = (await api.store.get_jobs(["evil"]))[0]
    assert isinstance(job, Job)
    began = time.process_time()
    planned = plan(job, [], job.next_fire_at or 0, steps=PLAN_STEPS)
    assert time.process_time() - began < LOOP_HELD_SECONDS
    assert len(planned.runs) == 1
