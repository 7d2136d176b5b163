"""A batch whose members end on several servers at once: it finishes once, and its last end costs no more than others.

    python -m bench.batches [--members 20000] [--servers 4] [postgres valkey ...]

Each server has a worker of its own, which claims and completes a hundred members a request. Printed: how long the
requests with the ends took (median, 99 of 100, and the last of each worker), the time from the last answer until a
caller that waits at another server hears that the batch has finished, and how often the job of `finished`, of
`completed` and of `failed` was triggered. Exit status 1 unless the first two were once each, and the last never.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.http_client import Connection, served
from bench.lateness import quantile
from bench.stores import NAMES, a_store

PAGE, EACH, SETTLES_SECONDS = 1_000, 100, 5.0
OCCASIONS = ("finished", "completed", "failed")


async def ask(connection: Connection, method: str, path: str, body: object = None) -> Any:
    status, answer = await connection.ask(method, f"/api/v1{path}", b"" if body is None else json.dumps(body).encode())
    assert status < 300, answer
    return json.loads(answer) if answer else None


async def work(url: str) -> list[float]:
    """Complete members until there are none. How long each request took that did, in seconds."""
    connection, took = await Connection.open(url), list[float]()
    while True:
        claimed = await ask(connection, "POST", "/runs/claim", {"queues": ["rows"], "limit": EACH, "worker": url})
        if claimed is None:
            return took
        ended = [{"id": run["id"], "token": run["lease"]["token"], "outcome": "completed"} for run in claimed["runs"]]
        began = time.monotonic()
        await ask(connection, "POST", "/runs/settle", ended)
        took.append(time.monotonic() - began)


async def measure(urls: Sequence[str], members: int) -> bool:
    first = await Connection.open(urls[0])
    for occasion in OCCASIONS:
        target = {"type": "queue", "queue": "reports"}
        job = {"name": occasion, "trigger": {"type": "cron", "expression": "0 4 29 2 *"}, "target": target}
        await ask(first, "POST", "/jobs", job)
    on = {occasion: [{"trigger": occasion}] for occasion in OCCASIONS}
    batch = (await ask(first, "POST", "/batches", {"name": "bench", "open": True, "on": on}))["id"]
    row = {"target": {"type": "queue", "queue": "rows"}}
    for start in range(0, members, PAGE):
        await ask(first, "POST", f"/batches/{batch}/runs", {"runs": [row] * min(PAGE, members - start)})
    await ask(first, "POST", f"/batches/{batch}/close")

    async def finished(url: str) -> tuple[float, Any]:
        connection, shown = await Connection.open(url), {"state": "closed"}
        while shown["state"] != "finished":
            shown = await ask(connection, "GET", f"/batches/{batch}?wait_seconds=60")
        return time.monotonic(), shown

    hearing = [asyncio.create_task(finished(url)) for url in urls]
    began = time.monotonic()
    took = await asyncio.gather(*map(work, urls))
    ended = time.monotonic()
    heard = await asyncio.gather(*hearing)
    each = sorted(one for some in took for one in some)
    late, last = [1000 * (at - ended) for at, _ in heard], [1000 * some[-1] for some in took if some]
    print(
        f"  {members:,} members on {len(urls)} servers in {ended - began:.1f} s: {EACH} ends take"
        f" p50 {1000 * quantile(each, 0.5):.0f}, p99 {1000 * quantile(each, 0.99):.0f} ms, the last {max(last):.0f} ms;"
        f" heard {min(late):.0f} to {max(late):.0f} ms after the last answer",
        flush=True,
    )
    await asyncio.sleep(SETTLES_SECONDS)
    first = await Connection.open(urls[0])  # the server has closed the other one meanwhile
    made = (await ask(first, "GET", "/runs?queue=reports&limit=200"))["items"]
    times, counts = Counter(run["job"] for run in made), heard[0][1]
    print(f"  completed {counts['completed']:,} of {counts['total']:,}; triggered: {dict(times)}", flush=True)
    return times == {"finished": 1, "completed": 1} and counts["completed"] == counts["total"] == members


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="*", metavar="STORE", help=f"of {', '.join(NAMES)}, or URLs")
    parser.add_argument("--members", type=int, default=20_000)
    parser.add_argument("--servers", type=int, default=4)
    given = parser.parse_args(arguments)
    once = True
    for name in given.stores or ("postgres", "valkey"):
        with ExitStack() as stack:
            url = stack.enter_context(a_store(name, Path(stack.enter_context(tempfile.TemporaryDirectory()))))
            print(name, flush=True)
            urls = [stack.enter_context(served(url)).url for _ in range(given.servers)]
            once &= asyncio.run(measure(urls, given.members))
    return 0 if once else 1


if __name__ == "__main__":
    sys.exit(main())
