"""The counts of a store, with the queues marked that no worker serves.

The counts alone tell nearly always. Only where runs have been due for a minute and none is claimed, a page of them is
read, to see whether they wait for other runs and not for a worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import CLAIMED, EXTERNAL, Run, State
from horarium.ports import PAGE_MAX, QueueStats, RunFilter, Stats, Store
from horarium.rules.serving import UNSERVED_AFTER, may_be_unserved, waits_for_a_worker

QUEUES_LOOKED_INTO_MAX = 20
"""How many queues are looked into for one answer. Of those beyond, the counts decide."""
PENDING = frozenset({State.PENDING})


async def with_unserved(store: Store, stats: Stats, now: Instant) -> Stats:
    """The same counts; `unserved` is set for each queue that no worker serves."""
    suspects = [
        one.queue
        for one in stats.queues
        if one.queue != EXTERNAL and may_be_unserved(one.running, one.oldest_due_at, now)
    ]
    if not suspects:
        return stats
    waiting = set(suspects[QUEUES_LOOKED_INTO_MAX:])
    for queue in suspects[:QUEUES_LOOKED_INTO_MAX]:
        if await _waits(store, queue, now):
            waiting.add(queue)
    return replace(stats, queues=tuple(_marked(queue, queue.queue in waiting) for queue in stats.queues))


def _marked(queue: QueueStats, unserved: bool) -> QueueStats:
    return replace(queue, unserved=True) if unserved else queue


async def _waits(store: Store, queue: str, now: Instant) -> bool:
    """Whether a run of this queue waits for nothing but a worker. Where no run is found, the counts are believed."""
    until = now - UNSERVED_AFTER
    page = await store.list_runs(RunFilter(states=PENDING, queue=queue, until=until + 1), None, PAGE_MAX)
    runs = [run for run in page.items if run.due_at <= until]
    if not runs or any(not run.serial and run.concurrency_key is None for run in runs):
        return True
    ids = list({run.job_id for run in runs if run.serial and run.job_id is not None})
    of_jobs = await store.unfinished_runs(ids) if ids else {}
    claimed = await _claimed(store, [*runs, *(run for of_job in of_jobs.values() for run in of_job)])
    return any(waits_for_a_worker(run, of_jobs.get(run.job_id or "", []), claimed, now) for run in runs)


async def _claimed(store: Store, runs: Sequence[Run]) -> Counter[str]:
    """How many runs are claimed under each concurrency key, of the newest ones; nothing is asked without a key."""
    if all(run.concurrency_key is None for run in runs):
        return Counter()
    page = await store.list_runs(RunFilter(states=CLAIMED), None, PAGE_MAX)
    return Counter(run.concurrency_key for run in page.items if run.concurrency_key is not None)
