"""What the benches of runs end to end note, and how Horarium does its part in each of them."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from horarium import Scheduler

Figures = dict[str, list[float]]
"""By name, one figure a round: runs a second; under `NAME cpu` microseconds of CPU a run."""


def note(figures: Figures, name: str, count: int, wall: float, cpu: float) -> None:
    """So many runs took so many seconds."""
    figures.setdefault(name, []).append(count / wall)
    figures.setdefault(f"{name} cpu", []).append(cpu / count * 1e6)


async def horarium_round(figures: Figures, url: str, count: int, **options: Any) -> None:
    """Runs are added in bulk, then claimed, performed by an async handler and settled, in one process with its planner
    and rescuer running."""
    scheduler = Scheduler(url, **{"roles": ("planner", "rescuer"), **options})
    left = count
    done = asyncio.Event()

    @scheduler.handler("report")
    async def report(run: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    async with scheduler:
        args = [{"to": "you", "number": index} for index in range(count)]
        wall, cpu = time.perf_counter(), time.process_time()
        await scheduler.enqueue_many("report", args)
        note(figures, "horarium add", count, time.perf_counter() - wall, time.process_time() - cpu)
        wall, cpu = time.perf_counter(), time.process_time()
        await scheduler.start()
        await asyncio.wait_for(done.wait(), 120)
        await scheduler.stop()
        note(figures, "horarium run", count, time.perf_counter() - wall, time.process_time() - cpu)
        while (await scheduler.stats()).queues:  # every run is settled; of many the counts come a moment later
            await asyncio.sleep(0.01)


def lines(figures: Figures) -> list[str]:
    """One for each name: the median, the range, the CPU."""
    return [
        f"{name:<18} {statistics.median(values):9,.0f}/s  ({min(values):,.0f} to {max(values):,.0f})"
        + _cpu(figures, name)
        for name, values in figures.items()
        if not name.endswith(" cpu")
    ]


def ratio(figures: Figures, ours: str, theirs: str) -> float:
    """The median of the rounds' ratios."""
    pairs = zip(figures[ours], figures[theirs], strict=True)
    return statistics.median(one / other for one, other in pairs)


def _cpu(figures: Figures, name: str) -> str:
    cpu = figures.get(f"{name} cpu")
    return f"  CPU {statistics.median(cpu):5.1f} us a run" if cpu else ""
