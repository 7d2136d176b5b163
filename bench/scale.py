"""What size costs on each store: a million jobs, five million runs, a hundred thousand that wait.

    python -m bench.scale [fires] [lists] [jobs] [queues] [gates] [edits] [downtime] [planners] [pruning] [snapshot]
        [bytes] [--store sqlite,postgres,redis,mongo] [--scale 1.0] [--bars]

    fires     `bench.scale_fires`: idle, and 300 fires a second, beside 1,000,000 jobs (a fifth on Redis and MongoDB)
    lists     `bench.lists`: lists of 5,000,000 finished runs (1,000,000 on Redis and MongoDB)
    jobs      1,000,000 jobs (a fifth on Redis and MongoDB): lists by label, state and prefix, counts, sweeps, due jobs
    queues    50,000 queues with a waiting run each: counts, and claims from one queue
    gates     claims that get nothing, and what stands behind: a full key, a job whose turn is taken, 100,000 waiting
    edits     a job with 100,000 waiting runs: trigger, pause, resume, patch, delete; and the longest that one callback
              held the event loop, in CPU time
    downtime  100,000 jobs that are late, 10 on time: after how much planning the punctual ones are planned
    planners  four planners, 1,000 jobs that fire every second: the share of plans that lost
    pruning   200,000 runs of one instant: CPU and time of a batch, at the start and at the end
    snapshot  PostgreSQL: claims before and after 50,000 runs went by under a snapshot that is held open
    bytes     bytes of a finished run, its indexes included (not on MongoDB; in memory on Redis)

Without parts, all. Each large case stands beside a small one (a hundredth) in the same minute: the ratio counts on a
machine that is not quiet. Figures are milliseconds, medians. `--scale 0.1`: a tenth of the sizes. `--bars`: at the end
one line for each figure, with what it is to stay under (`bench.bars`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bench import disk, lists
from bench.bars import NOTED, table
from bench.longest import LongestCallback
from bench.scale_fires import fires
from bench.stores import a_store
from horarium.clock import DAY, HOUR, SECOND, SystemClock
from horarium.model import Job, Node, QueueTarget, Run, RunChange, State, run_id, uuid7
from horarium.model.records import RecordFilter
from horarium.node.backends import make_store
from horarium.operations.facade import Operations
from horarium.operations.settling.following import Following
from horarium.operations.settling.reconciling import Reconciler
from horarium.operations.writing.context import Context
from horarium.policies import Retention
from horarium.ports import JobFilter, RunFilter, Store
from horarium.rules.applying import PREFIX
from horarium.services.metrics.telemetry import Telemetry
from horarium.services.planning.planner import Planner
from horarium.services.upkeep.applier import Applier
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock

BATCH, TIMES = 1_000, 15
NOW = 1_800_000_000 * SECOND
SMALL = 100
"""The small case is this part of the large one."""
APART = ("redis", "valkey", "mongo")
EVERY_MINUTE = {"type": "interval", "every_seconds": 60, "anchor": "2027-01-15T08:00:00Z"}


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1000


async def median(work: Callable[[], Awaitable[object]], times: int = TIMES) -> float:
    return statistics.median([await timed(work) for _ in range(times)])


def say(name: str, small: float, large: float, unit: str = "ms") -> None:
    NOTED.note(name, small, large)
    print(f"  {name:<42} {small:10.2f} {large:10.2f} {unit}  x {large / max(small, 0.05):.1f}", flush=True)


async def opened(url: str) -> Store:
    """In a namespace of its own."""
    store = make_store(url, f"scale-{os.urandom(4).hex()}")
    await store.open()
    return store


def a_job(name: str, **changes: Any) -> Job:
    fields: dict[str, Any] = {
        "id": uuid7(NOW - DAY, name.encode().ljust(10, b".")[-10:]), "name": name, "trigger": EVERY_MINUTE,
        "target": QueueTarget(queue="q"), "anchor_at": NOW, "planned_until": NOW, "created_at": NOW, "updated_at": NOW,
        **changes,
    }  # fmt: skip
    return Job(**fields)


def a_run(number: int, of: Job | None = None, **changes: Any) -> Run:
    at = NOW - DAY + number * 1_000
    id = uuid7(at, os.urandom(10)) if of is None else run_id(of.id, at)
    run = Run(id=id, queue="pull/q", fire_at=at, due_at=at, created_at=at)
    if of is not None:
        run = replace(run, job_id=of.id, job=of.name)
    return replace(run, **changes)


async def add_all(add: Callable[[Sequence[Any]], Awaitable[object]], made: Callable[[int], Any], number: int) -> None:
    for start in range(0, number, BATCH):
        await add([made(n) for n in range(start, min(start + BATCH, number))])


# ---- many jobs --------------------------------------------------------------------------------------------------


async def jobs(url: str, name: str, scale: float) -> None:
    found: list[dict[str, float]] = []
    large = round(1_000_000 * scale / (5 if name in APART else 1))
    for size in (max(large // SMALL, 1_000), large):
        store = await opened(url)

        def made(n: int, size: int = size) -> Job:
            labels = {"env": "prod", "team": f"t{n % (size // 100)}"}
            return a_job(f"job-{n:07}", labels=labels, next_fire_at=NOW + DAY + n)

        took = await timed(lambda: add_all(store.add_jobs, made, size))  # noqa: B023
        print(f"  {size:,} jobs added in {took / 1000:.0f} s", flush=True)
        special = [
            a_job("off", enabled=False),
            a_job("trimmed", retention=Retention(runs_max=3)),
            a_job("ahead", planned_until=NOW + 400 * DAY),
        ]
        await store.add_jobs(special)
        found.append(await _jobs_of(store))
        await store.close()
    for key in found[0]:
        say(key, found[0][key], found[1][key])


async def _jobs_of(store: Store) -> dict[str, float]:
    where = {
        "first page": JobFilter(),
        "prefix=job-00009": JobFilter(name_prefix="job-00009"),
        "label=team=t3": JobFilter(labels={"team": "t3"}),
        "label=env=prod&label=team=t3": JobFilter(labels={"env": "prod", "team": "t3"}),
        "label=env=none": JobFilter(labels={"env": "none"}),
        "enabled=false": JobFilter(enabled=False),
        "finished=false": JobFilter(finished=False),
        "finished=true": JobFilter(finished=True),
        "label=team=t3&enabled=false": JobFilter(labels={"team": "t3"}, enabled=False),
    }
    figures = {key: await median(lambda: store.list_jobs(one, None, 50)) for key, one in where.items()}  # noqa: B023
    operations = _operations(store)
    await operations.stats()
    return {
        **figures,
        "stats of the store": await median(lambda: store.stats(NOW)),
        "stats as scraped": await median(operations.stats),
        "due_jobs": await median(lambda: store.due_jobs(NOW + DAY, 500)),
        "jobs_ahead, all": await timed(lambda: _all(lambda after: store.jobs_ahead(NOW + DAY, after, 200))),
        "jobs_trimmed, all": await timed(lambda: _all(lambda after: store.jobs_trimmed(after, 200))),
    }


async def _all(page: Callable[[str | None], Awaitable[Any]]) -> None:
    after: str | None = None
    while (after := (await page(after)).next_after) is not None:
        pass


def _operations(store: Store, clock: Any = None) -> Operations:
    return Operations(store, clock or SystemClock(), LocalSignal(), os.urandom, lambda target: None)


async def queues(url: str, name: str, scale: float) -> None:
    found = []
    for size in (max(round(50_000 * scale) // SMALL, 10), round(50_000 * scale)):
        store = await opened(url)
        found.append(await _queues_of(store, size))
        await store.close()
    for key in found[0]:
        say(key, found[0][key], found[1][key])


async def _queues_of(store: Store, size: int) -> dict[str, float]:
    adding = await timed(lambda: add_all(store.add_runs, lambda n: a_run(n, queue=f"pull/q{n}"), size))
    operations = _operations(store)
    await operations.stats()
    return {
        "adding a run on a new queue": adding / size,
        "claim of one queue, none there": await median(lambda: store.claim_runs(["pull/0"], 10, "w", NOW, NOW, NOW)),
        "stats of the store": await median(lambda: store.stats(NOW), 5),
        "stats as scraped": await median(operations.stats),
        "overdue_runs": await median(lambda: store.overdue_runs(NOW, 100, NOW)),
        "runs?queue=pull/q7": await median(lambda: store.list_runs(RunFilter(queue="pull/q7"), None, 50)),
    }


# ---- many that wait ---------------------------------------------------------------------------------------------


async def gates(url: str, name: str, scale: float) -> None:
    large = round(100_000 * scale)
    job = a_job("serial")
    kinds: dict[str, Callable[[int], Run]] = {
        "a full key": lambda n: a_run(n, concurrency_key="k", concurrency_max=1),
        "a job whose turn is taken": lambda n: a_run(n, job, serial=True),
    }
    for kind, made in kinds.items():
        found = []
        for size in (large // SMALL, large):
            store = await opened(url)
            await store.add_jobs([job])
            await add_all(store.add_runs, made, size)
            assert len((await store.claim_runs(["pull/q"], 10, "w", NOW, NOW, NOW)).runs) == 1

            async def nothing(store: Store = store) -> None:
                assert not (await store.claim_runs(["pull/q"], 10, "w", NOW, NOW, NOW)).runs

            async def behind(store: Store = store) -> None:
                run = a_run(10**7 + random.randrange(10**9))
                await store.add_runs([replace(run, due_at=NOW)])
                assert len((await store.claim_runs(["pull/q"], 10, "w", NOW, NOW, NOW)).runs) == 1

            found.append((await median(nothing), await median(behind)))
            await store.close()
        say(f"{kind}: a claim that gets nothing", found[0][0], found[1][0])
        say(f"{kind}: add one behind, claim it", found[0][1], found[1][1])


async def edits(url: str, name: str, scale: float) -> None:
    found: list[dict[str, tuple[float, float]]] = []
    for size in (round(100_000 * scale) // SMALL, round(100_000 * scale)):
        store = await opened(url)
        operations = _operations(store, ManualClock(NOW))
        job = a_job("busy", trigger={"type": "interval", "every_seconds": 86_400})
        await store.add_jobs([replace(job, next_fire_at=NOW + HOUR)])
        await add_all(store.add_runs, lambda n: a_run(n, job), size)  # noqa: B023
        asked: dict[str, Callable[[], Awaitable[object]]] = {
            "trigger": lambda: operations.jobs.trigger_job("busy"),  # noqa: B023
            "pause": lambda: operations.jobs.pause_job("busy"),  # noqa: B023
            "resume": lambda: operations.jobs.resume_job("busy"),  # noqa: B023
            "patch of a label": lambda: operations.jobs.patch_job("busy", {"labels": {"a": "b"}}),  # noqa: B023
            "delete": lambda: operations.jobs.delete_job("busy"),  # noqa: B023
        }
        figures = {}
        for key, work in asked.items():
            with LongestCallback() as longest:
                took = await timed(work)
                await asyncio.sleep(0)  # the callback that ended it counts too
            figures[key] = took, longest.milliseconds
        with LongestCallback() as longest:
            took = await timed(lambda: _apply(store, operations))  # noqa: B023
        figures["ended later, all"] = took, longest.milliseconds
        found.append(figures)
        await store.close()
    for key in found[0]:
        say(key, found[0][key][0], found[1][key][0])
        say(f"{key}: longest callback, CPU", found[0][key][1], found[1][key][1])


async def _apply(store: Store, operations: Operations) -> None:
    applier = Applier(store, SystemClock(), operations.reconciler, "bench")
    while (await store.list_records(RecordFilter(PREFIX), None, 1)).items:
        await applier.step(NOW)


# ---- planning ---------------------------------------------------------------------------------------------------


def _planner(store: Store, lead: float = 0.5, node: str | None = None) -> Planner:
    signal = LocalSignal()
    following = Following(store)
    reconciler = Reconciler(Context(store, SystemClock(), signal, os.urandom), following)
    return Planner(store, signal, reconciler, following, Telemetry(), lead=lead, node=node)


async def downtime(url: str, name: str, scale: float) -> None:
    found = []
    for size in (round(100_000 * scale) // SMALL, round(100_000 * scale)):
        store = await opened(url)
        await add_all(store.add_jobs, lambda n: a_job(f"late-{n:07}", next_fire_at=NOW - HOUR, planned_until=NOW - HOUR - 1), size)  # fmt: skip  # noqa: E501
        await store.add_jobs([a_job(f"punctual-{n}", planned_until=NOW - 1, next_fire_at=NOW) for n in range(10)])
        planner, began = _planner(store), time.perf_counter()
        steps = 0
        while not (await store.list_runs(RunFilter(job="punctual-9"), None, 1)).items:
            await planner.step(NOW)
            steps += 1
        found.append((steps, (time.perf_counter() - began) * 1000))
        await store.close()
    say("steps until what is on time is planned", found[0][0], found[1][0], "steps")
    say("and the time", found[0][1], found[1][1])


class CountedStore:
    """Of the plans of all planners on a store, how many were carried out."""

    def __init__(self, store: Store) -> None:
        self._store, self.plans, self.lost = store, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit_plans(self, plans: Sequence[Any], now: int) -> list[bool]:
        answers = await self._store.commit_plans(plans, now)
        self.plans += len(plans)
        self.lost += answers.count(False)
        return answers


async def planners(url: str, name: str, scale: float) -> None:
    """Each wakes at the instant that it asked for, as its loop would, and nothing else runs."""
    store = CountedStore(await opened(url))
    size = round(1_000 * scale)
    clock = SystemClock()
    start = clock.now()
    every = {"type": "interval", "every_seconds": 1}
    await add_all(
        store.add_jobs,
        lambda n: a_job(
            f"job-{n}",
            trigger=every,
            anchor_at=start + n * 500,
            planned_until=start,
            next_fire_at=start + SECOND + n * 500,
        ),
        size,
    )

    async def plan(number: int, lead: float) -> None:
        now, name = clock.now(), f"node-{number}"
        await store.beat_node(Node(name=name, roles=("planner",), started_at=now, beat_at=now))
        planner = _planner(store, lead, name)
        while clock.now() < start + 15 * SECOND:
            at = await planner.step(clock.now())
            await asyncio.sleep(1 if at is None else min(max((at - clock.now()) / SECOND, 0.0), 1.0))

    planning = asyncio.gather(*(plan(number, random.uniform(0.25, 0.75)) for number in range(4)))
    await asyncio.sleep(5)
    store.plans = store.lost = 0
    await planning
    lost = store.lost / max(store.plans, 1)
    print(f"  four planners: {store.plans:,} plans, {lost:.1%} lost", flush=True)
    NOTED.note("share of plans lost", lost, lost)
    await store.close()


# ---- history ----------------------------------------------------------------------------------------------------


async def pruning(url: str, name: str, scale: float) -> None:
    store = await opened(url)
    done: dict[str, Any] = {"state": State.COMPLETED, "attempt": 1, "token": 1, "finished_at": NOW, "prune_at": NOW}
    await add_all(store.add_runs, lambda n: a_run(n, **done), round(200_000 * scale))
    first = await median(lambda: store.prune_runs(NOW, 500))
    while await store.prune_runs(NOW, 1_000) == 1_000:
        if not (await store.list_runs(RunFilter(), None, 1)).items:
            break
    await add_all(store.add_runs, lambda n: a_run(n, **done), 10_000)
    say("a batch of 500 ties: of 10,000, of 200,000", await median(lambda: store.prune_runs(NOW, 500)), first)
    await store.close()


async def snapshot(url: str, name: str, scale: float) -> None:
    if not url.startswith("postgresql"):
        return
    import asyncpg  # type: ignore[import-untyped]

    store = await opened(url)
    connection = await asyncpg.connect(url)

    async def churned(number: int, first: int) -> float:
        took = []
        for start in range(first, first + number, BATCH):
            await store.add_runs([a_run(n) for n in range(start, start + BATCH)])
            for _ in range(BATCH // 100):
                began = time.perf_counter()
                runs = (await store.claim_runs(["pull/q"], 100, "w", NOW, NOW, NOW)).runs
                took.append((time.perf_counter() - began) * 1000)
                ends = [replace(run, state=State.COMPLETED, finished_at=NOW, lease_expires_at=None) for run in runs]
                await store.settle_runs([RunChange(e, e.token, State.RUNNING, True) for e in ends], NOW)
        return statistics.median(took[-50:])

    free = await churned(10_000, 0)
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    await connection.fetchval("SELECT count(*) FROM horarium.runs")
    held = await churned(round(50_000 * scale), 10_000)
    say("a claim of 100: free, under a held snapshot", free, held)
    with suppress(asyncpg.PostgresError):
        await transaction.rollback()
    await connection.close()
    await store.close()


async def size_of_a_run(url: str, name: str, scale: float) -> None:
    if name == "mongo":
        return
    store, number = await opened(url), round(200_000 * scale)
    jobs_ = [a_job(f"job-{n}") for n in range(200)]
    ended = {"attempt": 1, "token": 1, "finished_at": NOW, "prune_at": NOW + DAY}
    await store.add_jobs(jobs_)
    before = await disk.size(url)
    await add_all(store.add_runs, lambda n: a_run(n, jobs_[n % 200], state=State.COMPLETED, **ended), number)
    await store.close()
    size = (await disk.size(url) - before) / number
    print(f"  bytes a finished run: {size:.0f}", flush=True)
    await disk.account(url, number)
    NOTED.note("bytes a finished run" + " in memory" * (name in APART), size, size)


async def listed(url: str, name: str, scale: float) -> None:
    worst = await lists.compare(url, round((1_000_000 if name in APART else 5_000_000) * scale) // BATCH * BATCH)
    NOTED.note("worst median of all lists", worst, worst)


async def firing(url: str, name: str, scale: float) -> None:
    await fires(url, name, scale, name in APART, say)


PARTS = {
    "fires": firing, "lists": listed, "jobs": jobs, "queues": queues, "gates": gates, "edits": edits,
    "downtime": downtime, "planners": planners, "pruning": pruning, "snapshot": snapshot, "bytes": size_of_a_run,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--store", default="sqlite,postgres,redis,mongo", help="names, or a URL")
    parser.add_argument("--scale", type=float, default=1.0, help="1: the sizes above; 0.1: a tenth")
    parser.add_argument("--bars", action="store_true", help="one line for each figure at the end, with its bar")
    given = parser.parse_args()
    if unknown := set(given.what) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; one of {', '.join(PARTS)}")
    for name in given.store.split(","):
        with tempfile.TemporaryDirectory() as folder, a_store(name, Path(folder)) as url:
            for what in given.what or PARTS:
                print(f"== {what} on {name}: small, large", flush=True)
                NOTED.store, NOTED.part = name, what
                asyncio.run(PARTS[what](url, name, given.scale))
    if given.bars:
        print(table(NOTED.figures))


if __name__ == "__main__":
    main()
