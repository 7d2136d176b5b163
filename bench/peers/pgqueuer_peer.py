"""PgQueuer: `python pgqueuer_peer.py URL COUNT`. No-op jobs, asyncpg, batches of 100."""

import asyncio
import json
import sys
import time

import asyncpg  # type: ignore[import-untyped]
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver
from pgqueuer.domain.types import QueueExecutionMode


async def main(url: str, count: int) -> None:
    connection = await asyncpg.connect(url)
    driver = AsyncpgDriver(connection)
    queries = Queries(driver)
    await queries.install()
    queuer = PgQueuer(driver)

    @queuer.entrypoint("noop")
    async def noop(job: object) -> None:
        """Nothing."""

    started = time.perf_counter()
    for start in range(0, count, 1000):
        some = min(1000, count - start)
        await queries.enqueue(["noop"] * some, [b'{"to": "somebody"}'] * some, [0] * some)
    added = time.perf_counter()
    await queuer.qm.run(batch_size=100, mode=QueueExecutionMode.drain)
    ended = time.perf_counter()
    print(json.dumps({"add": count / (added - started), "run": count / (ended - added)}))
    await connection.close()


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
