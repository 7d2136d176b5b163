"""Rules that cost more than the event loop may spend: each delays no job but its own."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import DAY, MINUTE, SECOND, Instant
from horarium.model import Job, Run
from horarium.ports import RunFilter
from horarium.services.planning import costly
from horarium.services.planning.costly import RETRY_SECONDS_MIN, CostlyJobs
from horarium.services.planning.planner import Planner
from tests.services.conftest import START, Setting

pytestmark = pytest.mark.slow

EVERY_SECOND = {"type": "rrule", "rrule": "FREQ=SECONDLY"}
NEVER = {
    "type": "except",
    "trigger": EVERY_SECOND,
    "except": [{"type": "rrule", "rrule": "FREQ=SECONDLY;BYDAY=MO,TU,WE,TH,FR,SA,SU"}],
}
"""Takes without end to find that nothing is left."""
EVERY_TEN_MINUTES = {
    "type": "except",
    "trigger": EVERY_SECOND,
    "except": [
        *({"type": "rrule", "rrule": f"FREQ=MINUTELY;BYSECOND={n}"} for n in range(1, 60)),
        {"type": "rrule", "rrule": f"FREQ=HOURLY;BYSECOND=0;BYMINUTE={','.join(str(n) for n in range(60) if n % 10)}"},
    ],
}
"""Its fire times are found, at a cost that is too much for the event loop."""


async def add(setting: Setting, name: str, trigger: dict[str, Any]) -> Job:
    """A job that is due at the start, stored as if its rule had never been judged."""
    plain = await setting.add_job(f"plain-{name}", every=3_600)
    job = replace(plain, id=name, name=name, trigger=trigger, next_fire_at=START, planned_until=START - SECOND)
    assert await setting.store.add_jobs([job]) == [True]
    return job


def a_planner(setting: Setting) -> Planner:
    return Planner(
        setting.store, setting.signal, setting.operations.reconciler, setting.operations.following, setting.telemetry
    )


async def runs_of(setting: Setting, name: str) -> list[Run]:
    return list((await setting.store.list_runs(RunFilter(job=name), None, 200)).items)


async def test_jobs_beside_a_rule_without_end_are_planned_in_the_same_step(setting: Setting) -> None:
    await add(setting, "evil", NEVER)
    for number in range(100):
        await setting.add_job(f"healthy-{number}", every=1)
    planner = a_planner(setting)
    setting.clock.advance(1)
    await planner.step(setting.now)
    assert all([await runs_of(setting, f"healthy-{number}") for number in range(100)])
    assert await runs_of(setting, "evil") == []


async def test_a_costly_rule_is_planned_in_a_thread(setting: Setting) -> None:
    job = await add(setting, "costly", EVERY_TEN_MINUTES)
    planner = a_planner(setting)
    await planner.step(START)
    assert await runs_of(setting, "costly") == []
    assert planner.costly.wake.is_set
    await planner.costly.step(START)
    (run,) = await runs_of(setting, "costly")
    assert run.fire_at == START
    (stored,) = await setting.store.get_jobs_by_id([job.id])
    assert stored is not None
    assert stored.next_fire_at == START + 10 * MINUTE


async def test_a_clock_that_was_ahead_keeps_no_job_from_being_tried_again(setting: Setting) -> None:
    job = await add(setting, "costly", EVERY_TEN_MINUTES)
    planner = a_planner(setting)
    planner.costly.put_off(job, START + DAY, "as that clock had it")
    await planner.step(START)
    await planner.costly.step(START)
    assert [run.fire_at for run in await runs_of(setting, "costly")] == [START]


async def test_a_costly_job_stays_with_the_thread(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    await add(setting, "costly", EVERY_TEN_MINUTES)
    planner = a_planner(setting)
    await planner.step(START)
    await planner.costly.step(START)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("evaluated on the event loop")

    monkeypatch.setattr("horarium.services.planning.planner.plan_bounded", never)
    setting.clock.advance(600)
    await planner.step(setting.now)
    await planner.costly.step(setting.now)
    assert len(await runs_of(setting, "costly")) == 2


async def test_a_rule_without_end_is_reported_and_tried_ever_more_rarely(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    await add(setting, "evil", NEVER)
    planner = a_planner(setting)
    reported: list[Instant] = []
    for _ in range(int(RETRY_SECONDS_MIN) * 4):
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            await planner.step(setting.now)
            await planner.costly.step(setting.now)
        if "job evil can't be planned" in caplog.text:
            reported.append((setting.now - START) // SECOND)
        setting.clock.advance(1)
    assert reported == [0, 60, 180]


async def test_an_edited_job_is_looked_at_as_a_new_one(setting: Setting) -> None:
    job = await add(setting, "evil", NEVER)
    planner = a_planner(setting)
    await planner.step(START)
    assert planner.costly.holds(job, START)
    assert not planner.costly.holds(replace(job, updated_at=START + 1), START)


async def test_what_is_set_aside_is_bounded(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costly, "ASIDE_MAX", 2)

    async def commit(planned: object, now: Instant) -> None:
        """Not reached."""

    aside = CostlyJobs(setting.store, commit, 0, setting.operations.reconciler.holding)
    jobs = [await setting.add_job(f"job-{number}") for number in range(3)]
    for job in jobs:
        aside.set_aside(job)
    assert [aside.holds(job, START) for job in jobs] == [False, True, True]
