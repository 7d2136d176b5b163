"""The Redis store beside bare scripts, in the same run, on the same server, turn by turn.

    PYTHONPATH=src python -m bench.redis_store [--server valkey|redis] [--rounds N] [--runs N] [--history N]

Bare means what anybody would write by hand for a queue, with the same client: a sorted set by due time, one of leases,
one of what is done, a hash of payloads and one that says who has which run; a script that claims 100 and one that
completes them if they are still held, called by EVALSHA, each command once for the batch. "Barer" leaves out who has
what. Rows are added by one minimal script for a batch, and by a pipeline of plain commands. Every figure is the median
over the rounds; the spread says how quiet the machine was. CPU is that of this process alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial

from msgspec.structs import replace
from redis.asyncio import Redis as Client

from horarium.model import Cause, Disposition, HandlerTarget, Job, Run, RunChange, State, run_id, uuid7
from horarium.stores.redis import RedisStore
from tests.servers.redis import Redis

NOW = 1_800_000_000_000_000
QUEUE = "handler/report"
PAYLOAD = b'{"to": "somebody", "number": 1234567890}'
BATCH, ADD_BATCH = 100, 1_000
JOB_ID = "0198c0de-0000-7000-8000-000000000001"


class Meter:
    """Microseconds a run, by the wall and of CPU here and in the server, one entry a round."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.wall: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}
        self.server: dict[str, list[float]] = {}

    async def _server_cpu(self) -> float:
        used = await self._client.info("cpu")
        return float(used["used_cpu_user"] + used["used_cpu_sys"])

    async def measure(self, name: str, count: int, work: Callable[[], Awaitable[None]]) -> None:
        server = await self._server_cpu()
        wall, cpu = time.perf_counter(), time.process_time()
        await work()
        self.cpu.setdefault(name, []).append((time.process_time() - cpu) / count * 1e6)
        self.wall.setdefault(name, []).append((time.perf_counter() - wall) / count * 1e6)
        self.server.setdefault(name, []).append((await self._server_cpu() - server) / count * 1e6)

    def median(self, name: str) -> float:
        return statistics.median(self.wall[name])

    def line(self, name: str) -> str:
        wall, cpu, server = self.wall[name], statistics.median(self.cpu[name]), statistics.median(self.server[name])
        return (
            f"{name:<34} {self.median(name):7.2f} us  ({min(wall):.2f} - {max(wall):.2f})"
            f"  CPU here {cpu:6.2f} us, in the server {server:6.2f} us"
        )


def new_runs(count: int, start: int, *, of_job: bool = False) -> list[Run]:
    def one(index: int) -> Run:
        at = NOW - 3_600_000_000 + start + index
        run = Run(id=uuid7(at, os.urandom(10)), queue=QUEUE, fire_at=at, due_at=at, created_at=at, payload=PAYLOAD)
        if of_job:
            return replace(run, id=run_id(JOB_ID, at), job_id=JOB_ID, job="nightly", payload=None)
        return replace(run, cause=Cause.ENQUEUED)

    return [one(index) for index in range(count)]


# ---- bare scripts -----------------------------------------------------------------------------------------------

ADD = """
for i = 1, #ARGV, 3 do
  redis.call('HSET', 'raw:runs', ARGV[i], ARGV[i + 2])
  redis.call('ZADD', 'raw:due', ARGV[i + 1], ARGV[i])
end
return #ARGV / 3
"""

CLAIM = """
local ids = redis.call('ZRANGEBYSCORE', 'raw:due', '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #ids == 0 then return {} end
local leases, holders = {}, {}
for i, id in ipairs(ids) do
  leases[2 * i - 1], leases[2 * i] = ARGV[3], id
  holders[2 * i - 1], holders[2 * i] = id, ARGV[4]
end
redis.call('ZREM', 'raw:due', unpack(ids))
redis.call('ZADD', 'raw:leases', unpack(leases))
redis.call('HSET', 'raw:holders', unpack(holders))
return {ids, redis.call('HMGET', 'raw:runs', unpack(ids))}
"""

COMPLETE = """
local ids = {unpack(ARGV, 2)}
local done, left, states = {}, {}, {}
for i, holder in ipairs(redis.call('HMGET', 'raw:holders', unpack(ids))) do
  if holder == ARGV[1] then
    left[#left + 1] = ids[i]
    done[#done + 1] = 0
    done[#done + 1] = ids[i]
    states[#states + 1] = ids[i]
    states[#states + 1] = 'completed'
  end
end
redis.call('ZREM', 'raw:leases', unpack(left))
redis.call('ZADD', 'raw:done', unpack(done))
redis.call('HSET', 'raw:holders', unpack(states))
return #left
"""

BARER_CLAIM = """
local ids = redis.call('ZRANGEBYSCORE', 'raw:due', '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
local leases = {}
for i, id in ipairs(ids) do leases[2 * i - 1], leases[2 * i] = ARGV[3], id end
redis.call('ZREM', 'raw:due', unpack(ids))
redis.call('ZADD', 'raw:leases', unpack(leases))
return {ids, redis.call('HMGET', 'raw:runs', unpack(ids))}
"""

BARER_COMPLETE = """
local done = {}
for i = 2, #ARGV do
  if redis.call('ZREM', 'raw:leases', ARGV[i]) == 1 then done[#done + 1] = 0; done[#done + 1] = ARGV[i] end
end
redis.call('ZADD', 'raw:done', unpack(done))
return #done / 2
"""


class Bare:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.digests: dict[str, str] = {}

    async def open(self) -> None:
        for text in (ADD, CLAIM, COMPLETE, BARER_CLAIM, BARER_COMPLETE):
            self.digests[text] = await self.client.script_load(text)

    async def add(self, runs: list[Run]) -> None:
        for first in range(0, len(runs), ADD_BATCH):
            part = runs[first : first + ADD_BATCH]
            arguments = [value for run in part for value in (run.id, run.due_at, PAYLOAD)]
            await self.client.evalsha(self.digests[ADD], 0, *arguments)

    async def add_by_pipeline(self, runs: list[Run]) -> None:
        for first in range(0, len(runs), ADD_BATCH):
            async with self.client.pipeline(transaction=True) as pipeline:
                for run in runs[first : first + ADD_BATCH]:
                    pipeline.hset("piped:runs", run.id, PAYLOAD)
                    pipeline.zadd("piped:due", {run.id: run.due_at})
                await pipeline.execute()

    async def drain(self, count: int, claim: str = CLAIM, complete: str = COMPLETE) -> None:
        done = 0
        while done < count:
            ids, _ = await self.client.evalsha(self.digests[claim], 0, NOW, BATCH, NOW + 30_000_000, "worker")
            done += int(await self.client.evalsha(self.digests[complete], 0, "worker", *ids))


# ---- the store --------------------------------------------------------------------------------------------------


def completed(run: Run) -> RunChange:
    done = replace(
        run,
        state=State.COMPLETED,
        lease_expires_at=None,
        finished_at=NOW + 1,
        disposition=Disposition.RAN,
        prune_at=NOW + 86_400_000_000,
    )
    return RunChange(done, run.token, State.RUNNING, held=True, as_claimed=True)


async def add(store: RedisStore, runs: list[Run]) -> None:
    for first in range(0, len(runs), ADD_BATCH):
        assert all(await store.add_runs(runs[first : first + ADD_BATCH]))


async def drain(store: RedisStore, count: int) -> None:
    done = 0
    while done < count:
        claimed = await store.claim_runs([QUEUE], BATCH, "worker", NOW, NOW, NOW)
        changes = [completed(run) for run in claimed.runs]
        assert all(await store.settle_runs(changes, NOW))
        done += len(changes)


# ---- the comparison ---------------------------------------------------------------------------------------------


async def rounds(store: RedisStore, bare: Bare, options: argparse.Namespace, meter: Meter) -> None:
    count = options.runs
    for number in range(options.rounds):
        runs = new_runs(count, number * count * 2)
        of_job = new_runs(count, (2 * number + 1) * count, of_job=True)
        await meter.measure("bare add, script, 1,000", count, partial(bare.add, runs))
        await meter.measure("bare add, pipeline, 1,000", count, partial(bare.add_by_pipeline, runs))
        await meter.measure("store add_runs 1,000", count, partial(add, store, runs))
        await meter.measure("bare claim + complete, 100", count, lambda: bare.drain(count))
        await meter.measure("store claim + settle, 100", count, lambda: drain(store, count))
        await bare.add(runs)
        await meter.measure(
            "barer claim + complete, 100", count, lambda: bare.drain(count, BARER_CLAIM, BARER_COMPLETE)
        )
        await meter.measure("store add_runs 1,000, of a job", count, partial(add, store, of_job))
        await meter.measure("store claim + settle, of a job", count, lambda: drain(store, count))


async def memory(client: Client, store: RedisStore, runs: list[Run]) -> tuple[float, float]:
    """Bytes a run that these take while they are pending, and once they are completed."""

    async def used() -> int:
        return int((await client.info("memory"))["used_memory"])

    before = await used()
    await add(store, runs)
    pending = await used()
    await drain(store, len(runs))
    return (pending - before) / len(runs), (await used() - before) / len(runs)


HOLDS: dict[str, Callable[[Run, int], Run]] = {
    "nothing": lambda run, number: run,
    "its order": lambda run, number: replace(run, serial=True),
    "a key each": lambda run, number: replace(run, concurrency_key=str(number), concurrency_max=1),
    "a key for two": lambda run, number: replace(run, concurrency_key=str(number // 2), concurrency_max=1),
}
"""What may hold a run back."""


def of_jobs(count: int, hold: Callable[[Run, int], Run]) -> list[Run]:
    """A run each of so many jobs, all due at one instant."""

    def one(number: int) -> Run:
        job_id = f"0198c0de-0000-7000-8000-{number:012x}"
        run = Run(id=run_id(job_id, NOW), queue=QUEUE, fire_at=NOW, due_at=NOW, created_at=NOW)
        return hold(replace(run, job_id=job_id, job=f"job-{number}"), number)

    return [one(number) for number in range(count)]


async def at_one_instant(url: str, client: Client, counts: tuple[int, int]) -> None:
    """Of many jobs that fall due together, claims of 100 must not look at all."""
    print("\nclaim + settle, 100, of jobs that are due at one instant; CPU of the server, us a run")
    for name, hold in HOLDS.items():
        spent = []
        for count in counts:
            store, meter = RedisStore(url, namespace=f"{name}-{count}"), Meter(client)
            await store.open()
            await add(store, of_jobs(count, hold))
            await meter.measure(name, count, partial(drain, store, count))
            spent.append(meter.server[name][0])
            await store.close()
        few, many = spent
        shown = f"{few:6.1f} of {counts[0]:,}, {many:6.1f} of {counts[1]:,}: {many / few:.2f}"
        print(f"held back by {name:<14} {shown}")


def report(meter: Meter) -> str:
    lines = [meter.line(name) for name in meter.wall]
    for ours, raw in (
        ("store claim + settle, 100", "bare claim + complete, 100"),
        ("store claim + settle, of a job", "bare claim + complete, 100"),
        ("store claim + settle, 100", "barer claim + complete, 100"),
        ("store add_runs 1,000", "bare add, script, 1,000"),
        ("store add_runs 1,000", "bare add, pipeline, 1,000"),
        ("store add_runs 1,000, of a job", "bare add, script, 1,000"),
        ("store add_runs 1,000, of a job", "bare add, pipeline, 1,000"),
    ):
        median, best = meter.median(raw) / meter.median(ours), min(meter.wall[raw]) / min(meter.wall[ours])
        lines.append(f"{ours:<32} at {median:6.1%} of {raw} (best rounds: {best:.1%})")
    return "\n".join(lines)


async def main(options: argparse.Namespace, server: Redis) -> None:
    client = Client.from_url(server.url, protocol=2)
    bare, store, meter = Bare(client), RedisStore(server.url, namespace="bench"), Meter(client)
    await bare.open()
    await store.open()
    await store.add_jobs([Job(name="nightly", trigger={}, target=HandlerTarget("report"), id=JOB_ID)])
    await add(store, [replace(completed(run).run, prune_at=NOW) for run in new_runs(options.history, -options.history)])
    await rounds(store, bare, options, meter)
    print(report(meter))
    plain = await memory(client, store, new_runs(20_000, 10**9))
    of_job = await memory(client, store, new_runs(20_000, 2 * 10**9, of_job=True))
    for name, (pending, finished) in (("one-off", plain), ("of a job", of_job)):
        print(
            f"memory: a run {name} takes {pending:.0f} bytes while it is pending, {finished:.0f} when it is completed"
        )
    await at_one_instant(server.url, client, (1_000, 10_000))
    await store.close()
    await client.aclose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=("valkey", "redis"), default="valkey")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--runs", type=int, default=5_000, help="runs in each round, a multiple of 1,000")
    parser.add_argument("--history", type=int, default=20_000, help="finished runs that are there beforehand")
    chosen = parser.parse_args()
    process = Redis(chosen.server)
    process.start()
    try:
        asyncio.run(main(chosen, process))
    finally:
        process.stop()
    sys.exit(0)
