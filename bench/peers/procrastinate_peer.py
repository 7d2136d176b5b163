"""Procrastinate: `python procrastinate_peer.py URL COUNT`. No-op jobs, psycopg pool, concurrency 100."""

import asyncio
import json
import sys
import time

from procrastinate import App, PsycopgConnector


async def main(url: str, count: int) -> None:
    app = App(connector=PsycopgConnector(conninfo=url, max_size=10))

    @app.task(name="noop")
    async def noop(number: int) -> None:
        """Nothing."""

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        started = time.perf_counter()
        for start in range(0, count, 1000):
            numbers = range(start, min(start + 1000, count))
            await noop.batch_defer_async(*({"number": number} for number in numbers))
        added = time.perf_counter()
        await app.run_worker_async(concurrency=100, wait=False, listen_notify=False)
        ended = time.perf_counter()
        print(json.dumps({"add": count / (added - started), "run": count / (ended - added)}))


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
