"""What /metrics says of each job, and that it stays bounded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import SECOND
from horarium.model import Disposition, Health, LastRun, Run, State
from horarium.operations.facade import Operations
from horarium.policies import Overlap
from horarium.ports import RunFilter
from horarium.rules.editing import delete
from horarium.services.metrics.ends import ends_of
from horarium.services.metrics.job_meters import JobMeters
from horarium.services.metrics.job_recall import LOOK, JobRecall
from horarium.services.metrics.telemetry import Telemetry
from horarium.services.planning.planner import Planner
from horarium.stores.memory import MemoryStore
from horarium.testing.values import NOW, a_job, a_run
from tests.services.conftest import Setting


def ended(job: str | None, state: State = State.COMPLETED, number: int = 1, seconds: float = 2, **fields: Any) -> Run:
    finished_at = NOW + int(seconds * SECOND)
    return a_run(number, job=job, state=state, started_at=NOW, finished_at=finished_at, **fields)


def lines(meters: JobMeters) -> list[str]:
    return [line for line in meters.render().decode().splitlines() if not line.startswith("#")]


def test_ends_are_counted_by_outcome_and_measured() -> None:
    meters = JobMeters()
    meters.ended(ends_of([ended("a"), ended("a", State.FAILED, 2, 0.3), ended("a", State.PENDING, 3), ended(None)]))
    found = lines(meters)
    assert f'horarium_job_last_success_timestamp_seconds{{job="a"}} {(NOW / SECOND) + 2:.3f}' in found
    assert 'horarium_job_runs_total{job="a",outcome="completed"} 1' in found
    assert 'horarium_job_runs_total{job="a",outcome="failed"} 1' in found
    assert 'horarium_job_duration_seconds_bucket{job="a",le="0.5"} 1' in found
    assert 'horarium_job_duration_seconds_bucket{job="a",le="5.0"} 2' in found
    assert 'horarium_job_duration_seconds_count{job="a"} 2' in found
    assert 'horarium_job_duration_seconds_sum{job="a"} 2.300000' in found
    assert not [line for line in found if "pending" in line or "None" in line]


def test_fire_times_that_were_missed_count_one_by_one() -> None:
    meters = JobMeters()
    meters.ended(
        ends_of([a_run(1, job="a", state=State.SKIPPED, disposition=Disposition.MISSED, fires=7, finished_at=NOW)])
    )
    meters.ended(
        ends_of([a_run(2, job="a", state=State.SKIPPED, disposition=Disposition.SKIPPED_OVERLAP, finished_at=NOW)])
    )
    assert lines(meters) == [
        'horarium_job_runs_total{job="a",outcome="completed"} 0',
        'horarium_job_runs_total{job="a",outcome="failed"} 0',
        'horarium_job_runs_total{job="a",outcome="missed"} 7',
        'horarium_job_runs_total{job="a",outcome="skipped"} 1',
    ]


def test_only_so_many_jobs_are_shown_by_name() -> None:
    meters = JobMeters(2)
    meters.ended(ends_of([ended(name) for name in "abcd"]))
    assert 'horarium_job_runs_total{job="_other",outcome="completed"} 2' in lines(meters)
    assert meters.full
    assert meters.names == ["a", "b"]
    assert not [line for line in lines(meters) if "last_success" in line and "_other" in line]
    meters.forget(["a"])
    meters.ended(ends_of([ended("d")]))
    assert 'horarium_job_runs_total{job="d",outcome="completed"} 1' in lines(meters)


async def test_jobs_are_shown_from_their_definition_on_and_their_health_after_a_restart() -> None:
    store = MemoryStore()
    await store.open()
    jobs = [a_job(name=f"job-{number:03}", id=f"id-{number}") for number in range(260)]
    await store.add_jobs(jobs)
    failed = Health(LastRun("1", State.FAILED, NOW), None, 2, NOW)
    await store.add_health({"id-7": Health(LastRun("2", State.COMPLETED, NOW), NOW), "id-255": failed})
    telemetry = Telemetry()
    recall = JobRecall(store, telemetry)
    assert await recall.step(NOW) is None
    assert not telemetry.jobs.names, "nothing is read before the first scrape"
    telemetry.render()
    assert await recall.step(NOW) == NOW + LOOK
    found = lines(telemetry.jobs)
    assert [line for line in found if "last_success" in line] == [
        f'horarium_job_last_success_timestamp_seconds{{job="job-007"}} {NOW / SECOND:.3f}'
    ]
    assert [line for line in found if "in_a_row" in line and not line.endswith(" 0")] == [
        'horarium_job_failures_in_a_row{job="job-255"} 2'
    ]
    assert sum(line.endswith('outcome="failed"} 0') for line in found) == 260


async def test_no_more_jobs_are_looked_at_than_are_shown() -> None:
    store = MemoryStore()
    await store.open()
    await store.add_jobs([a_job(name=f"job-{number:03}", id=f"id-{number}") for number in range(260)])
    telemetry = Telemetry(jobs_max=3)
    telemetry.settled([ended("job-255")])
    telemetry.render()
    await JobRecall(store, telemetry).step(NOW)
    assert telemetry.jobs.names == ["job-255", "job-000", "job-001"]
    assert 'horarium_job_failures_in_a_row{job="job-255"} 0' in lines(telemetry.jobs)


async def test_a_deleted_job_gives_way_to_a_new_one() -> None:
    store = MemoryStore()
    await store.open()
    await store.add_jobs([a_job(name="kept", id="1")])
    telemetry = Telemetry(jobs_max=2)
    recall = JobRecall(store, telemetry)
    telemetry.settled([ended("kept"), ended("gone")])
    telemetry.render()
    await recall.step(NOW)
    await recall.step(NOW + LOOK)
    assert telemetry.jobs.names == ["kept"]


async def test_a_deleted_job_is_shown_for_a_while_and_then_forgotten() -> None:
    store = MemoryStore()
    await store.open()
    kept, gone = a_job(name="kept", id="1"), a_job(name="gone", id="2")
    await store.add_jobs([kept, gone])
    telemetry = Telemetry()
    recall = JobRecall(store, telemetry)
    assert not recall.looks()
    telemetry.render()
    telemetry.settled([ended("kept"), ended("gone")])
    assert recall.looks()
    assert await recall.step(NOW) == NOW + LOOK
    assert not recall.looks()
    (planned,) = await store.commit_plans([delete(gone, NOW)], NOW)
    assert planned
    assert await recall.step(NOW + LOOK - 1) == NOW + LOOK
    assert await recall.step(NOW + LOOK) == NOW + 2 * LOOK
    assert telemetry.jobs.names == ["kept", "gone"], "its last figures can be scraped"
    assert await recall.step(NOW + 2 * LOOK) == NOW + 3 * LOOK
    assert telemetry.jobs.names == ["kept"]
    await store.add_jobs([replace(gone, id="3")])
    telemetry.settled([ended("gone")])
    for number in (3, 4):
        await recall.step(NOW + number * LOOK)
    assert telemetry.jobs.names == ["kept", "gone"], "there is one of that name again"


@pytest.mark.parametrize("overlap", [Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER])
async def test_runs_that_a_newer_one_or_the_end_of_their_job_cancels_are_counted(
    setting: Setting, overlap: Overlap
) -> None:
    def settled(runs: Sequence[Run], _: object) -> None:
        setting.telemetry.settled(runs)

    setting.operations = Operations(
        setting.store, setting.clock, setting.signal, os.urandom, lambda target: None, settled
    )
    job, operations = await setting.add_job(overlap=overlap), setting.operations
    planner = Planner(setting.store, setting.signal, operations.reconciler, operations.following, setting.telemetry)
    for _ in range(3):
        setting.clock.advance(10)
        await planner.step(setting.now)
    cancelled = 'horarium_job_runs_total{job="job",outcome="cancelled"}'
    assert f"{cancelled} 2" in lines(setting.telemetry.jobs)
    await operations.jobs.pause_job("job")
    assert f"{cancelled} 2" in lines(setting.telemetry.jobs)
    await operations.jobs.delete_job("job")
    await setting.add_job(id="another")
    assert f"{cancelled} 3" in lines(setting.telemetry.jobs)
    page = await setting.store.list_runs(RunFilter(states=frozenset({State.CANCELLED})), None, 10)
    assert [run.job_id for run in page.items] == [job.id] * 3
