"""A scheduler inside one's own program: a recurring job, one-off runs, a retry. Stops by itself after four seconds.

python examples/library.py
"""

from __future__ import annotations

import asyncio
import tempfile
from datetime import timedelta
from pathlib import Path

from horarium import Retry, RunContext, Scheduler, every


def build(store: str) -> Scheduler:
    """A scheduler with its handlers."""
    scheduler = Scheduler(store)

    @scheduler.handler("tick")
    async def tick(run: RunContext) -> None:
        print(f"tick for {run.fire_at:%H:%M:%S}", flush=True)

    @scheduler.handler("charge")
    async def charge(run: RunContext, customer: str, cents: int) -> dict[str, int]:
        if run.attempt == 1:
            raise Retry("the bank does not answer", after=0.5)
        print(f"charged {customer} {cents} cents, attempt {run.attempt}, key {run.idempotency_key[:8]}...", flush=True)
        return {"charged": cents}

    @scheduler.handler("compress", concurrency=2)
    def compress(run: RunContext, megabytes: int) -> None:
        # A plain function runs in a thread: the event loop is not blocked. Two of them at one time, no more.
        for done in range(megabytes):
            run.progress({"megabytes": done})
            if run.cancelled.wait(0.05):
                return
        print(f"compressed {megabytes} MB", flush=True)

    return scheduler


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        scheduler = build(f"sqlite:///{Path(folder)}/example.db")
        async with scheduler:
            await scheduler.add_job("ticking", every("1s"), handler="tick", labels={"team": "examples"})
            charged = await scheduler.enqueue("charge", {"customer": "c-42", "cents": 995})
            await scheduler.enqueue_many("compress", [{"megabytes": size} for size in (1, 2, 3)], delay=1)
            await scheduler.start()
            await asyncio.sleep(timedelta(seconds=4).total_seconds())
            await scheduler.stop()
            run = await scheduler.get_run(charged.id)
            print(f"the charge is {run.state} after {run.attempt} attempts")


if __name__ == "__main__":
    asyncio.run(main())
