"""What was copied is the same on the other side, however often the copy was interrupted."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from horarium.clock import HOUR, SECOND, SystemClock
from horarium.errors import NotFound, StateConflict
from horarium.model import Event, Health, Job, LastRun, Node, Run, State
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.node.backends import make_store
from horarium.node.copying import PAGE_BYTES, PROBLEMS_KEPT, QUIET_SECONDS, Copied, Progress, Side, copy
from horarium.ports import BATCH_MAX, NOTHING_ALONG, PAGE_MAX, Along, JobFilter, RunFilter, Store
from horarium.stores.memory import MemoryStore
from horarium.testing.clock import ManualClock
from horarium.testing.contract.claiming import FULL_RUN
from horarium.testing.contract.jobs import FULL_JOB
from horarium.testing.values import NOW, a_finished_run, a_job, a_run
from tests.blackbox.outside import environment, horarium
from tests.waiting import PATIENCE

T = TypeVar("T")

OLDEST = a_job("reborn", id="0190a0a0-0000-7000-8000-00000000a001", deleted_at=NOW, version=3)
OLDER = a_job("reborn", id="0190a0a0-0000-7000-8000-00000000a002", deleted_at=NOW + 1, labels={"größe": "ü"})
REBORN = a_job("reborn", id="0190a0a0-0000-7000-8000-00000000a003", version=12, next_fire_at=NOW, fires_count=7)
TOMBSTONES = (OLDEST, OLDER)
JOBS = (FULL_JOB, REBORN, a_job("paused", enabled=False, paused_at=NOW, pause_reason="por qué"), a_job("plain"))
HISTORY = (Event(NOW, State.RUNNING, "attempt 1"), Event(NOW + 1, State.PENDING, "ünlucky \U0001f570"))
RUNS = (
    FULL_RUN,
    *(
        replace(FULL_RUN, id=f"0190a0a0-0000-7000-8000-0000000000{n:02x}", state=state, unique_key=None, fire_at=n)
        for n, state in enumerate(State, start=0x20)
    ),
    *(a_run(n, state=state, history=HISTORY, job="one-off") for n, state in enumerate(State)),
    *(a_finished_run(20 + n, of=job, unique_key=f"key-{n}") for n, job in enumerate([*TOMBSTONES, *JOBS])),
    a_run(40, of=OLDER, state=State.RUNNING, token=3, attempt=2, worker="w", lease_expires_at=NOW, started_at=NOW - 1),
    a_run(
        41, of=REBORN, serial=True, concurrency_key="k", concurrency_max=2, payload=b'{"x": "' + b"y" * 9_000 + b'"}'
    ),
)


RECORDS = (
    Record(name="key/ci", body=b"\0\xff", labels={"größe": "ü"}, version=7),
    Record(name="audit/1", body=b"{}", labels={"actor": "ann"}),
)


def silent(progress: Progress) -> None:
    """Nobody looks."""


def side(store: Store, name: str = "store") -> Side:
    return Side(store, ManualClock(NOW), name)


async def copied(source: Store, target: Store, **how: Any) -> Copied:
    return await copy(side(source, "the source"), side(target, "the target"), silent, **how)


async def fill(store: Store, jobs: tuple[Job, ...] = JOBS, runs: tuple[Run, ...] = RUNS) -> None:
    assert all(await store.add_jobs(TOMBSTONES))
    assert all(await store.add_jobs(jobs))
    assert all(await store.add_runs(runs))
    assert all(await store.put_records([RecordChange(record) for record in RECORDS]))


async def everything(store: Store) -> tuple[list[Job], list[Run], list[Job | None], list[Record]]:
    jobs = await store.list_jobs(JobFilter(), None, BATCH_MAX)
    runs = await store.list_runs(RunFilter(), None, BATCH_MAX)
    records = await store.list_records(RecordFilter(), None, BATCH_MAX)
    tombstones = await store.get_jobs_by_id([job.id for job in TOMBSTONES])
    return list(jobs.items), list(runs.items), tombstones, list(records.items)


def within(url: str, namespace: str, use: Callable[[Store], Awaitable[T]]) -> T:
    """Open a store, use it, close it."""

    async def opened() -> T:
        store = make_store(url, namespace)
        await store.open()
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(opened())


@pytest.fixture
def namespace() -> str:
    return f"copy-{token_hex(6)}"


@pytest.fixture
def source() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def target() -> MemoryStore:
    return MemoryStore()


# ---- what is copied


async def test_everything_arrives_equal(source: MemoryStore, target: MemoryStore) -> None:
    await fill(source)
    report = await copied(source, target)
    assert (report.ok, report.problems) == (True, ())
    assert await everything(target) == await everything(source)
    counts = report.counts
    assert (counts.jobs_copied, counts.runs_copied) == (len(JOBS) + len(TOMBSTONES), len(RUNS))
    assert (counts.jobs_equal, counts.runs_equal) == (len(JOBS), len(RUNS))


async def test_the_health_of_jobs_is_copied_and_compared(source: MemoryStore, target: MemoryStore) -> None:
    job = a_job()
    await source.add_jobs([job])
    failing = Health(LastRun("1", State.FAILED, NOW, "e"), NOW - 1, 2, NOW)
    await source.add_health({job.id: failing})
    assert (await copied(source, target)).ok
    assert await target.job_health([job.id]) == {job.id: failing}
    another = MemoryStore()
    await another.add_jobs([job])
    await another.add_health({job.id: Health(LastRun("2", State.COMPLETED, NOW), NOW)})
    report = await copied(source, another)
    assert [(each.kind, each.detail) for each in report.problems] == [("different", f"{job.name}: different: health")]


async def test_a_second_copy_finds_everything_there(source: MemoryStore, target: MemoryStore) -> None:
    await fill(source)
    await copied(source, target)
    report = await copied(source, target)
    assert report.ok
    assert (report.counts.jobs_copied, report.counts.runs_copied) == (0, 0)
    assert (report.counts.jobs_present, report.counts.runs_present) == (len(JOBS) + len(TOMBSTONES), len(RUNS))


async def test_more_than_a_page_of_each_is_copied(source: MemoryStore, target: MemoryStore) -> None:
    jobs = [a_job(f"job-{number:05}") for number in range(BATCH_MAX + 1)]
    await source.add_jobs(jobs)
    await source.add_runs([a_run(number, of=job) for number, job in enumerate(jobs)])
    await source.add_runs([a_run(number) for number in range(BATCH_MAX)])
    await source.put_records([RecordChange(Record(name=f"audit/{n:05}", body=b"{}")) for n in range(PAGE_MAX + 1)])
    told: list[Progress] = []
    report = await copy(side(source), side(target), told.append)
    assert report.ok
    assert (report.counts.jobs_equal, report.counts.runs_equal) == (BATCH_MAX + 1, 2 * BATCH_MAX + 1)
    assert report.counts.records_copied == report.counts.records_equal == PAGE_MAX + 1
    assert told[0] == Progress("runs", PAGE_MAX, None)
    assert told[-1] == Progress("check", 2 * BATCH_MAX + 1, 2 * BATCH_MAX + 1)


class Watched(MemoryStore):
    """Remembers how much was added at once."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    async def add_runs(self, runs: Sequence[Run], along: Along = NOTHING_ALONG) -> list[bool]:
        self.batches.append(sum(len(run.payload or b"") for run in runs))
        return await super().add_runs(runs, along)


async def test_pages_of_heavy_runs_are_small(source: MemoryStore) -> None:
    await source.add_runs([a_run(number, payload=b"x" * 200_000) for number in range(400)])
    target = Watched()
    assert (await copied(source, target)).ok
    assert target.batches[0] == PAGE_MAX * 200_000
    assert max(target.batches[1:]) <= PAGE_BYTES


async def test_an_empty_source_is_refused(source: MemoryStore, target: MemoryStore) -> None:
    with pytest.raises(NotFound, match="the source: there is nothing in this namespace"):
        await copied(source, target)


# ---- conflicts and differences


async def test_every_job_in_the_way_is_reported_and_nothing_is_written(
    source: MemoryStore, target: MemoryStore
) -> None:
    await fill(source)
    namesake = a_job("plain", id="0190a0a0-0000-7000-8000-00000000b001")
    await target.add_jobs([replace(REBORN, priority=9), namesake])
    report = await copied(source, target)
    assert report.stopped
    assert not report.ok
    assert [(problem.kind, problem.id) for problem in report.problems] == [
        ("different", a_job("plain").id),
        ("different", REBORN.id),
    ]
    assert report.problems[0].detail == f"plain: its name is taken by job {namesake.id}"
    assert report.problems[1].detail == "reborn: different: priority"
    assert (await target.list_runs(RunFilter(), None, 1)).items == ()


async def test_a_deleted_job_in_the_way_stops_the_copy(source: MemoryStore, target: MemoryStore) -> None:
    await fill(source)
    await target.add_jobs([replace(OLDER, version=99)])
    report = await copied(source, target)
    assert report.stopped
    assert [problem.id for problem in report.problems] == [OLDER.id]


async def test_a_run_that_differs_is_reported_and_the_rest_is_copied(source: MemoryStore, target: MemoryStore) -> None:
    await fill(source)
    await target.add_runs([replace(RUNS[-1], attempt=5), a_run(99), a_run(98, unique_key="key-0")])
    report = await copied(source, target)
    assert not report.ok
    assert not report.stopped
    found = {(problem.kind, problem.id): problem.detail for problem in report.problems}
    refused = next(run for run in RUNS if run.unique_key == "key-0")
    assert found == {
        ("different", RUNS[-1].id): "different: attempt",
        ("extra", a_run(99).id): "is in the target only",
        ("extra", a_run(98).id): "is in the target only",
        ("missing", refused.id): f"its unique key is held by the run {a_run(98).id} of the target",
    }
    assert report.counts.runs_equal == len(RUNS) - 2


async def test_the_check_alone_writes_nothing_and_names_what_is_missing(
    source: MemoryStore, target: MemoryStore
) -> None:
    await fill(source)
    report = await copied(source, target, check_only=True)
    assert not report.ok
    assert {problem.kind for problem in report.problems} == {"missing"}
    assert report.counts.problems == len(JOBS) + len(TOMBSTONES) + len(RUNS) + len(RECORDS)
    assert await everything(target) == ([], [], [None, None], [])


async def test_all_differences_are_counted_and_the_first_are_described(
    source: MemoryStore, target: MemoryStore
) -> None:
    await source.add_runs([a_run(number) for number in range(PROBLEMS_KEPT + 5)])
    report = await copied(source, target, check_only=True)
    assert (report.counts.problems, len(report.problems)) == (PROBLEMS_KEPT + 5, PROBLEMS_KEPT)


async def test_a_deleted_job_that_differs_is_found_by_the_check(source: MemoryStore, target: MemoryStore) -> None:
    await fill(source)
    await copied(source, target)
    await target.prune_runs(NOW, 10)
    lost = MemoryStore()
    await lost.add_jobs(JOBS)
    await lost.add_runs(RUNS)
    await lost.put_records([RecordChange(record) for record in RECORDS])
    report = await copied(source, lost, check_only=True)
    assert [(problem.kind, problem.id, problem.detail) for problem in report.problems] == [
        ("missing", job.id, "reborn, deleted") for job in TOMBSTONES
    ]


# ---- nodes at work


def a_node(**changes: Any) -> Node:
    return replace(Node(name="node-1", roles=("api",), started_at=NOW - HOUR, beat_at=NOW), **changes)


@pytest.mark.parametrize("which", [0, 1])
async def test_a_node_at_work_on_either_side_is_refused_unless_forced(which: int) -> None:
    stores = MemoryStore(), MemoryStore()
    await fill(stores[0])
    await stores[which].beat_node(a_node(beat_at=NOW - QUIET_SECONDS * SECOND))
    with pytest.raises(StateConflict, match=r"the (source|target): a node is at work there.*node-1.*--force"):
        await copied(*stores)
    assert (await stores[1].list_runs(RunFilter(), None, 1)).items == ()
    assert (await copied(*stores, force=True)).ok


async def test_nodes_that_stopped_or_fell_silent_do_not_matter(source: MemoryStore, target: MemoryStore) -> None:
    await fill(source)
    await source.beat_node(a_node(beat_at=NOW - QUIET_SECONDS * SECOND - 1))
    await target.beat_node(a_node(beat_at=NOW - 1, stopped_at=NOW - 1))
    assert (await copied(source, target)).ok


async def test_a_node_that_starts_meanwhile_spoils_the_outcome(source: MemoryStore, target: MemoryStore) -> None:
    await fill(source)
    nodes = iter([a_node(), a_node()])

    def start_node(progress: Progress) -> None:
        if node := next(nodes, None):
            target._space.beside.nodes[node.name] = node

    report = await copy(side(source), side(target, "the target"), start_node)
    assert not report.ok
    assert [(problem.kind, problem.id) for problem in report.problems] == [("disturbed", "node-1")]


# ---- real stores, real processes


@pytest.mark.slow
def test_rich_data_makes_the_round_through_every_store(
    tmp_path: Path, postgres_url: str, redis_url: str, mongo_url: str, namespace: str
) -> None:
    first, second, last = (f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "second", "last"))
    within(first, namespace, fill)
    expected = within(first, namespace, everything)
    assert (len(expected[0]), len(expected[1]), expected[2]) == (len(JOBS), len(RUNS), list(TOMBSTONES))
    stations = [first, second, postgres_url, redis_url, mongo_url, last]
    for here, there in pairwise(stations):
        done = horarium("store", "copy", here, there, "--namespace", namespace)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "All jobs, runs and records are equal."), (
            done.stderr
        )
        assert within(there, namespace, everything) == expected
    done = horarium("store", "copy", first, last, "--namespace", namespace, "--check-only", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["counts"]["runs_equal"] == len(RUNS)


KILLED = """
import asyncio, os, sys
from horarium.node.backends import make_store
from horarium.clock import SystemClock
from horarium.node.copying import Side, copy

async def main(source, target, namespace):
    here, there = make_store(source, namespace), make_store(target, namespace)
    await here.open()
    await there.open()
    def notify(progress):
        print(progress.stage, progress.done, flush=True)
        sys.stdin.readline()
    await copy(Side(here, SystemClock(), "source"), Side(there, SystemClock(), "target"), notify)

asyncio.run(main(*sys.argv[1:]))
"""
"""Copies a page for each line that it is sent."""


def copy_and_kill(source: str, target: str, namespace: str, pages: int) -> None:
    """A process that copies is killed once so many pages are written, while the next one may be under way."""
    arguments = [sys.executable, "-c", KILLED, source, target, namespace]
    process = subprocess.Popen(
        arguments, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for page in range(pages):
            assert process.stdout.readline() == f"runs {PAGE_MAX + page * BATCH_MAX}\n"
            process.stdin.write("\n")
    finally:
        process.kill()
        process.wait(PATIENCE)
        process.stdin.close()
        process.stdout.close()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source_kind", "target_kind"),
    [
        *[("sqlite", kind) for kind in ("sqlite", "postgresql", "redis", "mongodb")],
        ("postgresql", "sqlite"),
        ("redis", "mongodb"),
        ("mongodb", "postgresql"),
    ],
)
def test_a_copy_that_was_killed_is_made_whole_by_the_next(
    source_kind: str, target_kind: str, tmp_path: Path, request: pytest.FixtureRequest, namespace: str
) -> None:
    servers = {"postgresql": "postgres_url", "redis": "redis_url", "mongodb": "mongo_url"}
    source, target = (
        request.getfixturevalue(servers[kind]) if kind in servers else f"sqlite:///{tmp_path}/{side}.db"
        for side, kind in (("source", source_kind), ("target", target_kind))
    )
    jobs = tuple(a_job(f"job-{number:03}") for number in range(50))
    owners = (*TOMBSTONES, *jobs)
    runs = [a_finished_run(n, of=owners[n % len(owners)], history=HISTORY) for n in range(3_600)]

    async def fill_source(store: Store) -> None:
        await fill(store, jobs, ())
        for first in range(0, len(runs), BATCH_MAX):
            await store.add_runs(runs[first : first + BATCH_MAX])

    async def count(store: Store) -> int:
        found, after = 0, None
        while True:
            page = await store.list_runs(RunFilter(), after, BATCH_MAX)
            found, after = found + len(page.items), page.next_after
            if after is None:
                return found

    within(source, namespace, fill_source)
    copy_and_kill(source, target, namespace, pages=3)
    copy_and_kill(source, target, namespace, pages=4)
    assert 3_200 <= within(target, namespace, count) < 3_600
    done = horarium("store", "copy", source, target, "--namespace", namespace, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout)["counts"]
    assert (counts["runs_equal"], counts["jobs_equal"], counts["problems"]) == (3_600, 50, 0)
    assert counts["runs_present"] >= 3_200
    assert counts["runs_present"] + counts["runs_copied"] == 3_600
    assert within(target, namespace, count) == 3_600


@pytest.mark.slow
def test_the_command_refuses_what_it_cannot_copy(tmp_path: Path) -> None:
    file = f"sqlite:///{tmp_path}/one.db"
    for given, says in (
        (["memory://", file], "FROM: a memory:// store"),
        ([file, "memory://"], "TO: a memory:// store"),
        ([file, file], "the same store"),
    ):
        done = horarium("store", "copy", *given)
        assert (done.returncode, says in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_the_command_names_the_node_at_work_and_the_differences(tmp_path: Path) -> None:
    here, there = f"sqlite:///{tmp_path}/here.db", f"sqlite:///{tmp_path}/there.db"
    within(here, "default", fill)
    within(here, "default", lambda store: store.beat_node(a_node(beat_at=SystemClock().now())))
    within(there, "default", lambda store: store.check())
    done = horarium("store", "copy", here, there)
    assert (done.returncode, "node-1" in done.stderr, done.stderr.count("\n")) == (1, True, 1), done.stderr
    done = horarium("store", "copy", here, there, "--force", "--check-only")
    assert done.returncode == 1
    assert f"missing run {RUNS[-1].id}" in done.stderr
    within(there, "default", lambda store: store.add_jobs([replace(JOBS[-1], priority=3)]))
    done = horarium("store", "copy", here, there, "--force")
    assert done.returncode == 1
    assert f"different job {JOBS[-1].id}: plain: different: priority" in done.stderr
    assert "Stopped: jobs that differ: 1." in done.stderr
