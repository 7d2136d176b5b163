"""The rescuer takes back what nobody holds; the loop calls a service, backs off and stops; the pruner forgets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.access.acting import acting
from horarium.access.audit import Origin, entry
from horarium.access.roles import LOCAL
from horarium.clock import DAY, SECOND, Instant
from horarium.errors import StoreUnavailable
from horarium.model import CommandTarget, Follow, Occasion, Run, RunChange, State
from horarium.model.logs import LogLine
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.operations.runs.logs import ENDS_AT_ONCE
from horarium.policies import Retention, Retry
from horarium.ports import JOBS, Page, RunFilter, Topic
from horarium.services.loop.believed import CALM_SECONDS, NOTED
from horarium.services.loop.service import (
    ANEW_SECONDS,
    BACKOFF_SECONDS_MAX,
    BACKOFF_SECONDS_MIN,
    STEADY_SECONDS_MAX,
    STEADY_SECONDS_MIN,
    Health,
    Loop,
    Service,
    Wake,
)
from horarium.services.upkeep.pruner import BEHIND_SECONDS, SWEEP, Pruner
from horarium.stores.memory import MemoryStore
from horarium.testing import ManualClock
from horarium.wire.definitions import read_definition
from tests.services.conftest import START, Setting, a_rescuer
from tests.waiting import until


async def claim(setting: Setting) -> None:
    await setting.store.claim_runs(["pull/q"], 10, "w", setting.now, setting.now, setting.steady)


async def test_an_expired_lease_loses_its_attempt(setting: Setting) -> None:
    await setting.add_run(lease_seconds=30)
    await claim(setting)
    rescuer = a_rescuer(setting)
    assert await rescuer.step(setting.now) == START + 30 * SECOND
    setting.clock.advance(30)
    await rescuer.step(setting.now)
    assert await setting.state() is State.PENDING


async def test_what_programs_said_until_their_time_was_over_is_read_together(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, asked = ENDS_AT_ONCE + 20, list[int]()
    await setting.add_job(target=CommandTarget(("backup",)))
    for number in range(count):
        of_job: dict[str, Any] = {"job_id": "job", "job": "job", "fire_at": setting.now - number}
        await setting.add_run(f"{number:03}", "pull/shell", **of_job, lease_seconds=30, execution_seconds=5)
    await setting.store.claim_runs(["pull/shell"], count, "w", setting.now, setting.now, setting.steady)
    for number in (0, 1, count - 1):
        full = "x" * (8_000 if number == 1 else 8)
        for text in (full, full, f"{'-' * 400} the end of {number}"):
            await setting.operations.logs.append(
                await setting.run(f"{number:03}"), [LogLine(setting.now, "stdout", text)]
            )
    read = setting.store.get_records

    async def counted(names: Sequence[str]) -> list[Record | None]:
        asked.append(len(names))
        return await read(names)

    monkeypatch.setattr(setting.operations.context.store, "get_records", counted)
    setting.clock.advance(31)
    await a_rescuer(setting, ends_of_logs=setting.operations.logs.ends_of).step(setting.now)
    assert asked == [ENDS_AT_ONCE, 1, 20]
    for number, end in (
        (0, "the end of 0"),
        (1, "the end of 1"),
        (2, "given up"),
        (count - 1, f"the end of {count - 1}"),
    ):
        assert (await setting.run(f"{number:03}")).history[-1].message.endswith(end)


class StepsBack(MemoryStore):
    """While it is asked for overdue runs, the clock is set back."""

    clock: ManualClock | None = None

    async def overdue_runs(self, now: Instant, limit: int, steady: Instant) -> tuple[list[Run], Instant | None]:
        answer = await super().overdue_runs(now, limit, steady)
        if self.clock is not None:
            self.clock.step(-300)
        return answer


async def test_no_run_fails_as_late_by_a_time_from_before_the_clock_went_back(setting: Setting) -> None:
    setting.store = store = StepsBack()
    await setting.add_run(start_by=START + SECOND)
    setting.clock.step(300)
    store.clock = setting.clock
    assert await a_rescuer(setting).step(setting.now) == START
    assert await setting.state() is State.PENDING


class Quicker(MemoryStore):
    """Another node ends the overdue runs that a node has just read. Lists are counted."""

    lists = 0

    async def overdue_runs(self, now: Instant, limit: int, steady: Instant) -> tuple[list[Run], Instant | None]:
        found = await super().overdue_runs(now, limit, steady)
        ended = [replace(run, state=State.CANCELLED, finished_at=now) for run in found[0]]
        await self.settle_runs([RunChange(run, run.token, State.PENDING) for run in ended], steady)
        return found

    async def list_runs(self, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        self.lists += 1
        return await super().list_runs(where, after, limit)


async def test_late_runs_that_another_node_ended_first_are_each_looked_back_from_a_few_times(setting: Setting) -> None:
    setting.store = store = Quicker()
    many = 100
    job = await setting.add_job(on={Occasion.FAILED: (Follow(notify="ops", after=2),)})
    for n in range(many):
        await setting.add_run(f"run-{n:03}", job_id=job.id, job=job.name, fire_at=START + n, start_by=START + SECOND)
    setting.clock.advance(300)
    await a_rescuer(setting).step(setting.now)
    assert await setting.state("run-099") is State.CANCELLED
    assert store.lists < 5 * many


async def test_a_run_is_rescued_by_the_policy_of_its_job(setting: Setting) -> None:
    await setting.add_job(retry=Retry(attempts_max=1))
    await setting.add_run(job_id="job", job="job")
    await claim(setting)
    setting.clock.advance(30)
    await a_rescuer(setting).step(setting.now)
    assert await setting.state() is State.FAILED


async def test_a_run_that_nobody_started_in_time_fails(setting: Setting) -> None:
    await setting.add_run(start_by=START + SECOND)
    setting.clock.advance(1)
    await a_rescuer(setting).step(setting.now)
    assert await setting.state() is State.FAILED


async def test_the_pruner_forgets_what_has_been_kept_long_enough(setting: Setting) -> None:
    await setting.add_run()
    await claim(setting)
    run = await setting.run()
    done = replace(run, state=State.COMPLETED, finished_at=START, lease_expires_at=None, prune_at=START + DAY)
    await setting.store.settle_runs([RunChange(done, run.token, run.state)], START)
    pruner = Pruner(setting.store, setting.telemetry, setting.clock)
    await pruner.step(START)
    assert (await setting.store.get_runs(["run"]))[0] is not None
    setting.clock.advance(DAY / SECOND)
    await pruner.step(setting.now)
    assert await setting.store.get_runs(["run"]) == [None]


async def test_the_pruner_keeps_as_many_runs_as_the_job_says(setting: Setting) -> None:
    job = await setting.add_job(retention=Retention(runs_max=1))
    for index in range(3):
        await setting.add_run(f"run-{index}", job_id="job", job="job", fire_at=START + index, state=State.SKIPPED)
    pruner = Pruner(setting.store, setting.telemetry, setting.clock)
    pruner.note(job)
    await pruner.step(START)
    assert [run is None for run in await setting.store.get_runs(["run-0", "run-1", "run-2"])] == [True, True, False]


async def test_no_run_that_the_planner_has_not_come_to_is_pruned(setting: Setting) -> None:
    job = await setting.add_job(retention=Retention(runs_max=0))
    for index, fire_at in enumerate((START + 5 * SECOND, START + 20 * SECOND)):
        done: dict[str, Any] = {
            "fire_at": fire_at,
            "state": State.COMPLETED,
            "finished_at": fire_at,
            "prune_at": fire_at + SECOND,
        }
        await setting.add_run(f"run-{index}", job_id="job", job="job", **done)
    pruner = Pruner(setting.store, setting.telemetry, setting.clock)
    setting.clock.advance(30)
    pruner.note(job)
    await pruner.step(setting.now)
    assert [run is None for run in await setting.store.get_runs(["run-0", "run-1"])] == [True, False]
    setting.clock.advance(BEHIND_SECONDS)
    await pruner.step(setting.now)
    assert await setting.store.get_runs(["run-1"]) == [None], "a job that can't be planned keeps nothing for ever"


async def test_the_pruner_finds_by_itself_what_another_process_settled(setting: Setting) -> None:
    await setting.add_job(every=DAY // SECOND, retention=Retention(runs_max=1))
    pruner = Pruner(setting.store, setting.telemetry, setting.clock)
    for round_ in range(2):
        now = START + round_ * SWEEP
        for index in range(3):
            name = f"run-{round_}-{index}"
            await setting.add_run(name, job_id="job", job="job", fire_at=now + index, state=State.SKIPPED)
        await pruner.step(now)
        setting.clock.advance(SWEEP / SECOND)
        kept = await setting.store.get_runs([f"run-{round_}-{index}" for index in range(3)])
        assert [run is None for run in kept] == [True, True, False]


async def test_the_pruner_forgets_old_audit_entries_and_versions_of_jobs_that_are_gone(setting: Setting) -> None:
    operations = setting.operations
    with acting(Origin(principal=LOCAL, request_id="r")):
        for name in ("stays", "goes"):
            trigger = {"type": "interval", "every_seconds": 60}
            await operations.jobs.create_job(
                read_definition({"name": name, "trigger": trigger, "target": {"type": "queue", "queue": "q"}})
            )
        await operations.jobs.delete_job("goes")
    pruner = Pruner(setting.store, setting.telemetry, setting.clock, DAY / SECOND)

    async def names() -> list[str]:
        records = (await setting.store.list_records(RecordFilter(), None, 100)).items
        return sorted(record.name.partition("/")[0] for record in records if record.name != NOTED)

    await pruner.step(setting.now)
    assert await names() == ["audit"] * 3 + ["deleted-job", "ended-job"] + ["version"] * 2
    setting.clock.advance(DAY / SECOND + 1)
    await pruner.step(setting.now)
    assert await names() == ["version"]


async def test_without_a_time_to_keep_it_the_audit_stays(setting: Setting) -> None:
    line = entry(Origin(principal=LOCAL, request_id="r"), "job.update", "job/x", START)
    await setting.store.put_records([RecordChange(line)])
    setting.clock.advance(10_000 * DAY / SECOND)
    await Pruner(setting.store, setting.telemetry, setting.clock).step(setting.now)
    assert (await setting.store.list_records(RecordFilter("audit/"), None, 9)).items == (line,)


async def test_the_pruner_goes_on_after_a_clock_that_was_ahead(setting: Setting) -> None:
    pruner = Pruner(setting.store, setting.telemetry, setting.clock)
    setting.clock.step(3_650 * DAY / SECOND)
    await pruner.step(setting.now)
    setting.clock.step(-3_650 * DAY / SECOND)
    await setting.add_run(state=State.COMPLETED, finished_at=START, prune_at=START)
    await pruner.step(setting.now)
    assert await setting.store.get_runs(["run"]) != [None]
    setting.clock.advance(CALM_SECONDS)
    assert (await pruner.step(setting.now) or 0) <= setting.now + 60 * SECOND
    assert await setting.store.get_runs(["run"]) == [None]


# ---- the loop ---------------------------------------------------------------------------------------------------


class Scripted(Service):
    """A service that does what its script says, then nothing."""

    name = "scripted"
    topics: tuple[Topic, ...] = (JOBS,)

    def __init__(self, *script: Callable[[], Instant | None]) -> None:
        self.wake = Wake()
        self.script = list(script)
        self.steps = 0

    async def step(self, now: Instant) -> Instant | None:
        self.steps += 1
        return self.script.pop(0)() if self.script else None


def outage() -> None:
    raise StoreUnavailable("down")


def bug() -> None:
    raise ValueError("a bug")


def a_loop(setting: Setting, service: Scripted, health: Health) -> Loop:
    return Loop(service, setting.clock, setting.signal, health)


async def test_the_loop_waits_for_the_wish_of_the_service(setting: Setting) -> None:
    wishes = [START + SECOND // 4, START - SECOND, START + DAY, None]
    loop = a_loop(setting, Scripted(*(lambda wish=wish: wish for wish in wishes)), Health())
    pauses = [await loop._step() for _ in wishes]
    assert pauses == [0.25, 0.0, DAY / SECOND, None]


async def test_the_loop_backs_off_and_says_so_once(setting: Setting) -> None:
    health = Health()
    loop = a_loop(setting, Scripted(*[outage] * 8, bug), health)
    pauses = [await loop._step() for _ in range(9)]
    assert pauses[:3] == [BACKOFF_SECONDS_MIN, 2 * BACKOFF_SECONDS_MIN, 4 * BACKOFF_SECONDS_MIN]
    assert pauses[-1] == BACKOFF_SECONDS_MAX
    assert health.problems() == {"scripted": "ValueError: a bug"}
    assert await loop._step() is None
    assert health.problems() == {}


def test_a_part_that_fails_again_and_again_is_well_only_once_it_works_for_a_while() -> None:
    now = [0.0]
    health = Health(lambda: now[0])
    assert health.ill("planner", "the disk is full")
    assert health.well("planner"), "one outage ends with the first work that is done"
    answers = []
    for second in range(1, 40):
        now[0] = float(second)
        if second % 3:
            health.well("planner")
        else:
            health.ill("planner", "the disk is full")
        answers.append(not health.problems())
    assert answers == [True, True] + [False] * 37
    for second in range(40, 60):
        now[0] = float(second)
        health.well("planner")
    assert health.problems() == {}
    now[0] += ANEW_SECONDS + 1
    assert health.ill("planner", "no connection")
    assert health.well("planner"), "an outage much later is another one"


def test_an_outage_is_news_once_however_many_parts_meet_it() -> None:
    health = Health()
    assert [health.ill(part, "no connection") for part in ("planner", "rescuer", "planner")] == [True, False, False]
    assert health.ill("bus", "no broker"), "another reason is another outage"
    assert health.ill("applier", "no connection", alone=True), "a fault of its own, whoever else says the same"
    assert not health.well("planner"), "it goes on for the rescuer"
    assert health.well("rescuer") == ["planner", "rescuer"]
    assert health.well("applier") == ["applier"]
    assert not health.well("planner"), "it was well"
    assert health.well("bus") == ["bus"]
    assert health.ill("rescuer", "no connection"), "the next one is news"


def test_a_part_that_swings_has_to_work_longer_each_time() -> None:
    now = [0.0]
    health = Health(lambda: now[0])
    took = []
    for _ in range(6):
        health.ill("planner", "the disk is full")
        failed = now[0]
        while not health.well("planner"):
            now[0] += 1.0
        took.append(now[0] - failed)
    assert took == [0.0, STEADY_SECONDS_MIN, 2 * STEADY_SECONDS_MIN, STEADY_SECONDS_MAX, 20.0, 20.0]


async def test_a_signal_wakes_the_loop(setting: Setting) -> None:
    service = Scripted()
    loop = a_loop(setting, service, Health())
    running = asyncio.create_task(loop.run())
    await until(lambda: service.steps == 1)
    setting.signal.publish(Topic("jobs"))
    await until(lambda: service.steps == 2)
    loop.stop()
    await running


async def test_signals_that_come_soon_after_a_step_are_gathered(setting: Setting) -> None:
    class Resting(Scripted):
        rest_seconds = 3_600.0

    service = Resting()
    loop = a_loop(setting, service, Health())
    running = asyncio.create_task(loop.run())
    await until(lambda: service.steps == 1)
    for _ in range(100):
        setting.signal.publish(Topic("jobs"))
    assert (service.steps, service.wake.is_set) == (1, False)
    service.wake()  # what is no signal wakes it at once
    await until(lambda: service.steps == 2)
    loop.stop()
    await running


async def test_signals_that_were_gathered_wake_the_loop_once_it_has_rested(setting: Setting) -> None:
    class Resting(Scripted):
        rest_seconds = 0.01

    service = Resting()
    loop = a_loop(setting, service, Health())
    running = asyncio.create_task(loop.run())
    await until(lambda: service.steps == 1)
    for _ in range(100):
        setting.signal.publish(Topic("jobs"))
    await until(lambda: service.steps == 2)
    loop.stop()
    await running


async def test_a_service_is_told_of_signals_while_its_loop_runs(setting: Setting) -> None:
    class Told(Scripted):
        signals = 0

        def signalled(self) -> None:
            self.signals += 1

    service = Told()
    loop = a_loop(setting, service, Health())
    running = asyncio.create_task(loop.run())
    await until(lambda: service.steps == 1)
    setting.signal.publish(Topic("jobs"))
    await until(lambda: service.steps == 2)
    loop.stop()
    await running
    setting.signal.publish(Topic("jobs"))
    assert service.signals == 1


async def test_the_loop_stops_in_the_middle_of_a_pause(setting: Setting) -> None:
    service = Scripted(outage)
    loop = a_loop(setting, service, Health())
    running = asyncio.create_task(loop.run())
    await until(lambda: service.steps == 1)
    setting.signal.publish(Topic("jobs"))
    loop.stop()
    await running
    assert service.steps == 1
