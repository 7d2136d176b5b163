"""A worker that was away: what waited for it is caught up on as the jobs say, as though the planner had been away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from horarium.clock import MINUTE, SECOND, to_text
from horarium.model import Disposition, HandlerTarget, Run, State, Succeeded
from horarium.model.records import RecordFilter
from horarium.operations.settling.absences import PREFIX
from horarium.operations.settling.settling import Settlement
from horarium.policies import CatchUp, CatchUpPolicy, Overlap
from horarium.ports import RunFilter
from horarium.services.alerts.troubles import Troubles
from horarium.services.planning.planner import Planner
from tests.services.conftest import START, Setting

Passing = Callable[[int], Awaitable[None]]


@pytest.fixture
def passing(setting: Setting) -> Passing:
    """Time goes by on a node that plans and watches, in steps of fifteen seconds."""
    of = setting.operations
    planner = Planner(setting.store, setting.signal, of.reconciler, of.following, setting.telemetry)
    troubles = Troubles(of.context, of.channels, of.stats)

    async def passed(seconds: int) -> None:
        for _ in range(seconds // 15):
            setting.clock.advance(15)
            await planner.step(setting.now)
            await troubles.step(setting.now)

    return passed


async def claim(setting: Setting, limit: int = 100, queue: str = "pull/q") -> list[Run]:
    claimed = await setting.operations.claiming.claim([queue], limit, "w", setting.now, setting.now)
    return list(claimed.runs)


async def end(setting: Setting, run: Run) -> None:
    await setting.operations.settling.settle([Settlement(run.id, run.token, Succeeded())])


async def missed(setting: Setting, job: str = "job") -> list[Run]:
    items = (await setting.store.list_runs(RunFilter(job=job), None, 200)).items
    return [run for run in reversed(items) if run.disposition is Disposition.MISSED]


def minutes(runs: list[Run]) -> list[int]:
    return [(run.fire_at - START) // MINUTE for run in runs]


def catch_up(policy: str, window: float | None = None) -> dict[str, Any]:
    return {"catch_up": CatchUp(CatchUpPolicy(policy), window)}


CASES: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [25]),
    (catch_up("none"), [25]),
    (catch_up("all"), list(range(1, 26))),
    (catch_up("all", 300), list(range(20, 26))),
    (catch_up("latest", 300), [25]),
    (catch_up("ask"), [25]),
    ({"overlap": Overlap.BUFFER_ALL}, [25]),
    ({"overlap": Overlap.SKIP}, [1]),
]


@pytest.mark.parametrize("limit", [1, 100])
@pytest.mark.parametrize(("fields", "expected"), CASES)
async def test_what_waited_for_a_worker_follows_the_jobs_catch_up(
    setting: Setting, passing: Passing, fields: dict[str, Any], expected: list[int], limit: int
) -> None:
    await setting.add_job(every=60, **fields)
    await passing(25 * 60)
    began: list[Run] = []
    while taken := await claim(setting, limit):
        began += taken
        for run in taken:
            await end(setting, run)
    assert minutes(began) == expected
    gone = await missed(setting)
    if fields.get("overlap") is not Overlap.SKIP:
        assert sorted(minutes(began) + minutes(gone)) == list(range(1, 26)), "each fire time is accounted for"
    (job,) = await setting.store.get_jobs(["job"])
    assert job is not None
    came = f"catch_up: {job.catch_up.policy}; no worker served the queue pull/q until {to_text(setting.now)}"
    assert {run.error for run in gone} <= {came}
    assert {run.state for run in gone} <= {State.SKIPPED}


async def test_none_of_them_runs_under_none_where_the_newest_is_late_too(setting: Setting, passing: Passing) -> None:
    await setting.add_job(every=60, **catch_up("none"))
    await passing(25 * 60 + 30)
    assert await claim(setting) == []
    assert minutes(await missed(setting)) == list(range(1, 26))


async def test_a_handler_that_no_node_had_follows_the_same_rule(setting: Setting, passing: Passing) -> None:
    await setting.add_job(every=60, target=HandlerTarget(name="report"))
    await passing(25 * 60)
    assert minutes(await claim(setting, queue="handler/report")) == [25]


async def test_a_queue_that_is_busy_loses_nothing(setting: Setting, passing: Passing) -> None:
    await setting.add_job(every=60)
    await passing(60)
    for minute in range(1, 26):
        (run,) = await claim(setting, 1)
        assert minutes([run]) == [minute]
        await passing(300)
        await end(setting, run)
    assert await missed(setting) == []


async def test_what_falls_due_after_the_worker_came_runs_however_late(setting: Setting, passing: Passing) -> None:
    await setting.add_job(every=60)
    await passing(10 * 60)
    (run,) = await claim(setting, 1)
    assert minutes([run]) == [10]
    for minute in (11, 12, 13):
        await passing(5 * 60)
        await end(setting, run)
        (run,) = await claim(setting, 1)
        assert minutes([run]) == [minute]


async def test_jobs_whose_turn_comes_late_are_judged_as_of_when_the_worker_came(
    setting: Setting, passing: Passing
) -> None:
    await setting.add_job("first", every=60, priority=1)
    await setting.add_job("then", every=60)
    await passing(10 * 60)
    (run,) = await claim(setting, 1)
    assert run.job == "first"
    await setting.operations.jobs.delete_job("first")
    for minute in (10, 11, 12):
        await passing(5 * 60)
        await end(setting, run)
        (run,) = await claim(setting, 1)
        assert (run.job, *minutes([run])) == ("then", minute)
    assert minutes(await missed(setting, "then")) == list(range(1, 10))


async def test_only_planned_runs_that_were_not_begun_are_missed(setting: Setting, passing: Passing) -> None:
    await setting.add_job(every=3600)
    await setting.add_run("one-off")
    byhand = (await setting.operations.jobs.trigger_job("job")).id
    await passing(3 * 3600)
    assert {run.id for run in await claim(setting)} >= {"one-off", byhand}
    assert minutes(await missed(setting)) == [60, 120]


async def test_an_absence_is_forgotten_once_none_waits_that_it_is_about(setting: Setting, passing: Passing) -> None:
    await setting.add_job(every=60)
    for absence in range(2):
        await passing(10 * 60)
        assert len((await setting.store.list_records(RecordFilter(PREFIX), None, 10)).items) == 1
        (run,) = await claim(setting)
        assert minutes([run]) == [10 + absence * 12]
        await end(setting, run)
        for _ in range(2):
            await passing(60)
            for run in await claim(setting):
                await end(setting, run)
        assert (await setting.store.list_records(RecordFilter(PREFIX), None, 10)).items == ()


async def test_a_worker_that_leaves_again_before_all_was_claimed_begins_another_absence(
    setting: Setting, passing: Passing
) -> None:
    await setting.add_job("first", every=60, priority=1)
    await setting.add_job("then", every=60)
    await passing(10 * 60)
    (run,) = await claim(setting, 1)
    await end(setting, run)
    await passing(10 * 60)
    both = await claim(setting)
    assert [(run.job, *minutes([run])) for run in both] == [("first", 20), ("then", 20)]
    assert minutes(await missed(setting, "then")) == list(range(1, 20))


async def test_a_run_within_a_minute_costs_no_question(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    await setting.add_job(every=60)
    of = setting.operations
    planner = Planner(setting.store, setting.signal, of.reconciler, of.following, setting.telemetry)
    setting.clock.advance(60)
    await planner.step(setting.now)
    setting.clock.advance(59)

    async def asked(*args: object) -> None:
        raise AssertionError("nothing is to be asked")

    monkeypatch.setattr(setting.store, "get_records", asked)
    monkeypatch.setattr(setting.store, "last_runs", asked)
    assert len(await claim(setting)) == 1
    assert setting.now == START + 119 * SECOND
