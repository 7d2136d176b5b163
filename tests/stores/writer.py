"""A process that writes ends with what follows, changes with their records, and whole plans, until it is killed.

python -m tests.stores.writer URL NAMESPACE ROUND
"""

from __future__ import annotations

import asyncio
import sys
from itertools import count

from msgspec.structs import replace

from horarium.model import Plan, Whole
from horarium.model.records import Record, RecordChange
from horarium.node.backends import make_store
from horarium.testing.values import NOW, a_job, a_run, completed

QUEUE = "work"
BATCH = 8
TOGETHER = 60
"""Jobs that one plan changes."""


async def write(url: str, namespace: str, round_: int) -> None:
    store = make_store(url, namespace)
    await store.open()
    first = a_job(f"job-{round_}")
    await store.add_jobs([first], {first.id: [audit(f"job/{round_}/1")]})
    together = [a_job(f"set-{round_}-{n}") for n in range(TOGETHER)]
    print("writing", flush=True)
    for step in count(1):
        place = (round_ * 10_000 + step) * BATCH
        await store.add_runs([a_run(place + n, queue=QUEUE) for n in range(BATCH)])
        runs = (await store.claim_runs([QUEUE], BATCH, "writer", NOW, NOW, NOW)).runs
        await store.settle_runs(
            [
                replace(
                    completed(run),
                    follow_ups=(a_run(place + n, queue="notify", id=f"{run.id}!", unique_key=f"{run.id}/completed/0"),),
                    records=(audit(f"run/{run.id}"),),
                )
                for n, run in enumerate(runs)
            ],
            NOW,
        )
        plan = Plan(replace(first, version=step, priority=step), records=(audit(f"job/{round_}/{step + 1}"),))
        await store.commit_plans([plan], NOW)
        key = Record(name=f"key/{round_}", body=b"x" * 2_000, version=step)
        await store.put_records([RecordChange(key, step - 1, records=(audit(f"key/{round_}/{step}"),))])
        plans = tuple(Plan(replace(job, version=step - 1, priority=step)) for job in together if step > 1)
        line = RecordChange(Record(name=f"set/{round_}", body=b"x", version=step), step - 1)
        assert await store.write_whole(Whole(jobs=() if plans else tuple(together), plans=plans, records=(line,)), NOW)


def audit(of: str) -> Record:
    return Record(name=f"audit/{of}", body=b"{}", labels={"object": of, "all": "yes"})


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], sys.argv[2], int(sys.argv[3])))
