"""One process of a bench of several: `python -m bench.worker URL NAMESPACE`.

It opens the store, says `ready`, waits for a line, performs the handlers `report` and `tick` until its input ends,
stops, and tells on one line of JSON what it did: how many runs, the CPU seconds since it began to perform, and for each
`tick` its job, its fire time and how late it started (seconds).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from horarium import RunContext, Scheduler


async def main(url: str, namespace: str) -> None:
    scheduler = Scheduler(url, namespace=namespace)
    count = 0
    starts: list[tuple[str | None, float, float]] = []

    @scheduler.handler("report")
    async def report(run: RunContext) -> None:
        nonlocal count
        count += 1

    @scheduler.handler("tick")
    async def tick(run: RunContext) -> None:
        starts.append((run.job, run.fire_at.timestamp(), time.time() - run.due_at.timestamp()))

    async with scheduler:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        cpu = time.process_time()
        await scheduler.start()
        await asyncio.to_thread(sys.stdin.read)
        await scheduler.stop()
        print(json.dumps({"count": count, "cpu": time.process_time() - cpu, "starts": starts}), flush=True)


asyncio.run(main(sys.argv[1], sys.argv[2]))
