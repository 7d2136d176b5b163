"""Many jobs at once: each put for itself, and those of an interval begun evenly over it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from horarium.clock import SECOND, to_text
from horarium.errors import AlreadyExists, HorariumError, InvalidJob, InvalidTrigger
from horarium.model import Job
from horarium.operations.jobs.importing import Put
from horarium.ports import BATCH_MAX, NOTHING_ALONG, Along, RunFilter
from horarium.rules.spreading import period_of
from horarium.services.metrics.telemetry import Telemetry
from horarium.services.planning.planner import Planner
from horarium.stores.memory import MemoryStore
from horarium.triggers import parse_trigger
from horarium.wire.definitions import JobDefinition, read_definition
from tests.core.test_operations import START, World

MINUTE_JOBS = 10_000
EVERY_MINUTE = {"type": "interval", "every_seconds": 60}


def definition(name: str, trigger: dict[str, Any] | None = None, **fields: Any) -> JobDefinition:
    target = {"type": "queue", "queue": "q"}
    return read_definition({"name": name, "trigger": trigger or EVERY_MINUTE, "target": target, **fields})


async def job_of(world: World, name: str) -> Job:
    (job,) = await world.store.get_jobs([name])
    assert job is not None
    return job


async def all_jobs(world: World, names: Sequence[str]) -> list[Job]:
    return [job for job in await world.store.get_jobs(names) if job is not None]


@pytest.mark.slow
async def test_ten_thousand_jobs_of_a_minute_run_evenly_over_its_seconds() -> None:
    """Imported in batches that come one after the other, and planned by the planner itself, for two rounds."""
    world = World()
    names = [f"job-{number}" for number in range(MINUTE_JOBS)]
    for start in range(0, MINUTE_JOBS, BATCH_MAX):
        done = await world.operations.importing.put_jobs(
            [definition(name) for name in names[start : start + BATCH_MAX]]
        )
        assert done == [Put.CREATED] * BATCH_MAX
        world.clock.advance(0.05)
    operations = world.operations
    planner = Planner(world.store, operations.context.signal, operations.reconciler, operations.following, Telemetry())
    begun = world.clock.now()
    for _ in range(122):
        world.clock.advance(1)
        await planner.step(world.clock.now())
    per_second: Counter[int] = Counter()
    after = None
    while True:
        page = await world.store.list_runs(RunFilter(since=begun, until=begun + 120 * SECOND), after, 200)
        per_second.update((run.fire_at - begun) // SECOND for run in page.items)
        if (after := page.next_after) is None:
            break
    assert sum(per_second.values()) == 2 * MINUTE_JOBS
    mean = MINUTE_JOBS / 60
    assert all(0.9 * mean < per_second[second] < 1.1 * mean for second in range(120)), per_second


@pytest.mark.parametrize("count", [2, 3, 7, 100, 1_000])
async def test_few_jobs_too_lie_apart(count: int) -> None:
    """No two of them are closer than a third of their even distance, and the first is due within an interval."""
    world = World()
    names = [f"n{number}" for number in range(count)]
    await world.operations.importing.put_jobs([definition(name) for name in names])
    fires = sorted(job.next_fire_at or 0 for job in await all_jobs(world, names))
    assert START < fires[0] <= fires[-1] <= START + 60 * SECOND
    circle = [*fires, fires[0] + 60 * SECOND]
    even = 60 * SECOND / count
    gaps = [later - earlier for earlier, later in pairwise(circle)]
    assert even / 3 < min(gaps)
    assert max(gaps) < 3 * even


async def test_jobs_of_other_intervals_between_them_change_nothing() -> None:
    world = World()
    await world.operations.importing.put_jobs(
        [definition(f"{kind}-{number}", {"type": "interval", "every_seconds": seconds})
         for number in range(100) for kind, seconds in (("a", 10), ("b", 60))]
    )  # fmt: skip
    for kind, seconds in (("a", 10), ("b", 60)):
        jobs = await all_jobs(world, [f"{kind}-{number}" for number in range(100)])
        tenths = Counter(((job.next_fire_at or 0) - START - 1) * 10 // (seconds * SECOND) for job in jobs)
        assert set(tenths) == set(range(10))
        assert max(tenths.values()) <= 13


async def test_putting_again_changes_nothing() -> None:
    world = World()
    given = [definition(f"n{number}") for number in range(50)]
    await world.operations.importing.put_jobs(given)
    before = await all_jobs(world, [each.name for each in given])
    world.clock.advance(1_000)
    assert await world.operations.importing.put_jobs(given) == [Put.UNCHANGED] * 50
    assert await all_jobs(world, [each.name for each in given]) == before
    assert await world.operations.importing.put_jobs(given[::-1]) == [Put.UNCHANGED] * 50


async def test_a_new_interval_for_jobs_that_exist_is_spread_too() -> None:
    world = World()
    names = [f"n{number}" for number in range(200)]
    await world.operations.importing.put_jobs(
        [definition(name, {"type": "interval", "every_seconds": 3600}) for name in names]
    )
    done = await world.operations.importing.put_jobs([definition(name) for name in names])
    assert done == [Put.UPDATED] * 200
    seconds = Counter(((job.next_fire_at or 0) - START - 1) // SECOND for job in await all_jobs(world, names))
    assert set(seconds) == set(range(60))
    assert max(seconds.values()) <= 5


async def test_a_change_of_something_else_moves_no_fire_time() -> None:
    world = World()
    await world.operations.importing.put_jobs([definition("a"), definition("b")])
    before = await all_jobs(world, ["a", "b"])
    world.clock.advance(0.001)
    await world.operations.importing.put_jobs([definition("a", priority=5), definition("b", labels={"x": "y"})])
    after = await all_jobs(world, ["a", "b"])
    assert [job.next_fire_at for job in after] == [job.next_fire_at for job in before]
    assert (after[0].priority, after[1].labels) == (5, {"x": "y"})


@pytest.mark.parametrize(
    ("trigger", "seconds"),
    [
        (EVERY_MINUTE, 60),
        ({"type": "phrase", "text": "every 5 minutes"}, 300),
        ({"type": "except", "trigger": EVERY_MINUTE, "except": [{"dates": ["01-01"]}]}, 60),
        ({"type": "between", "trigger": EVERY_MINUTE, "until": "2100-01-01T00:00:00Z"}, 60),
        ({**EVERY_MINUTE, "anchor": "2026-01-01T00:00:00Z"}, None),
        ({"type": "cron", "expression": "0 * * * *"}, None),
        ({"type": "rrule", "rrule": "FREQ=MINUTELY"}, None),
        ({"type": "phrase", "text": "every day at 9am"}, None),
        ({"type": "once", "at": "2100-01-01T00:00:00Z"}, None),
    ],
)
async def test_only_what_counts_from_its_definition_is_moved(trigger: dict[str, Any], seconds: int | None) -> None:
    period = period_of(parse_trigger(trigger), START)
    assert period == (None if seconds is None else seconds * SECOND)
    world = World()
    assert await world.operations.importing.put_jobs([definition("job", trigger)]) == [Put.CREATED]
    job = await job_of(world, "job")
    assert (job.anchor_at == START) == (seconds is None)
    assert job.next_fire_at is not None
    assert period is None or job.next_fire_at <= START + period


async def test_a_job_that_begins_paused_keeps_its_place_when_it_is_resumed() -> None:
    world = World()
    await world.operations.importing.put_jobs([definition("job", enabled=False)])
    paused = await job_of(world, "job")
    assert paused.next_fire_at is None
    assert paused.anchor_at < START
    resumed = await world.operations.jobs.resume_job("job")
    assert resumed.next_fire_at == paused.anchor_at + 60 * SECOND


async def test_a_window_that_is_shorter_than_the_interval_is_not_missed() -> None:
    world = World()
    ends = to_text(START + 61 * SECOND)
    done = await world.operations.importing.put_jobs([definition(f"n{number}", ends_at=ends) for number in range(20)])
    assert done == [Put.CREATED] * 20


async def test_each_is_put_for_itself() -> None:
    world = World()
    await world.operations.importing.put_jobs(
        [definition("same"), definition("other"), definition("paused", enabled=False)]
    )
    never = {"type": "once", "at": "2000-01-01T00:00:00Z"}
    done = await world.operations.importing.put_jobs(
        [
            definition("never", never), definition("new"), definition("same"), definition("other", priority=1),
            definition("new", priority=2), definition("other", never), definition("paused", priority=3),
            definition("same-again", enabled=False),
        ]
    )  # fmt: skip
    assert [type(each) if isinstance(each, HorariumError) else each for each in done] == [
        InvalidTrigger, Put.CREATED, Put.UNCHANGED, Put.UPDATED, InvalidJob, InvalidJob, Put.UPDATED, Put.CREATED
    ]  # fmt: skip
    assert ((await job_of(world, "new")).priority, (await job_of(world, "paused")).priority) == (0, 3)


async def test_a_pause_and_a_resume_are_carried_out() -> None:
    world = World()
    await world.operations.importing.put_jobs([definition("on"), definition("off", enabled=False)])
    done = await world.operations.importing.put_jobs([definition("on", enabled=False), definition("off", enabled=True)])
    assert done == [Put.UPDATED] * 2
    assert ((await job_of(world, "on")).enabled, (await job_of(world, "off")).enabled) == (False, True)


async def test_a_job_that_is_due_is_planned_under_its_old_rule_first() -> None:
    world = World()
    await world.operations.importing.put_jobs([definition("job", priority=1)])
    due = (await job_of(world, "job")).next_fire_at or 0
    world.clock.advance(61)
    assert await world.operations.importing.put_jobs([definition("job", priority=2)]) == [Put.UPDATED]
    runs = (await world.store.list_runs(RunFilter(), None, 10)).items
    assert [(run.fire_at, run.priority) for run in runs][-1:] == [(due, 1)]


async def test_a_dry_run_says_all_and_writes_nothing() -> None:
    world = World()
    await world.operations.importing.put_jobs([definition("same"), definition("other")])
    before = await all_jobs(world, ["same", "other"])
    given = [definition("same"), definition("other", priority=1), definition("new")]
    assert await world.operations.importing.put_jobs(given, dry_run=True) == [Put.UNCHANGED, Put.UPDATED, Put.CREATED]
    assert await world.store.get_jobs(["same", "other", "new"]) == [*before, None]


class Raced(MemoryStore):
    """Somebody else defines, or changes, the job between the look and the write."""

    rival: Any = None

    async def add_jobs(self, jobs: Sequence[Job], along: Along = NOTHING_ALONG) -> list[bool]:
        await self._strike()
        return await super().add_jobs(jobs, along)

    async def commit_plans(self, plans: Any, now: Any) -> list[bool]:
        await self._strike()
        return await super().commit_plans(plans, now)

    async def _strike(self) -> None:
        rival, self.rival = self.rival, None
        if rival is not None:
            await rival()


@pytest.mark.parametrize("exists", [False, True])
async def test_whoever_loses_a_race_looks_again(exists: bool) -> None:
    store = Raced()
    world = World(store)
    if exists:
        await world.operations.importing.put_jobs([definition("job"), definition("b")])

    async def rival() -> None:
        await world.operations.jobs.put_job(definition("job", priority=7))

    store.rival = rival
    done = await world.operations.importing.put_jobs([definition("job", priority=9), definition("b", priority=9)])
    assert done == [Put.UPDATED, Put.UPDATED if exists else Put.CREATED]
    assert [job.priority for job in await all_jobs(world, ["job", "b"])] == [9, 9]
    with pytest.raises(AlreadyExists):
        await world.operations.jobs.create_job(definition("job"))


async def test_what_counts_from_its_end_begins_when_its_definition_says() -> None:
    """Not at some multiple of its delay after that: the next run of another scheduler is taken over so."""
    world = World()
    trigger = {"type": "interval", "every_seconds": 600, "from": "end"}
    seconds = {"soon": 7, "later": 599, "beyond": 5_000}
    starts = {name: START + after * SECOND for name, after in seconds.items()}
    await world.operations.importing.put_jobs(
        [definition(name, trigger, starts_at=to_text(at)) for name, at in starts.items()]
    )
    assert {name: (await job_of(world, name)).next_fire_at for name in starts} == starts
