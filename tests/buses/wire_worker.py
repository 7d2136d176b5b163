"""A worker process that knows the wire as it is written down, and aio-pika: nothing of ours, no token.

    python -m tests.buses.wire_worker URL LOG JOB...

It takes an action off its queue, says `running`, sends heartbeats, and ends the run: at the first attempt of some
with `failed`, else with `completed`. What it takes is written to LOG, a line each. It begins anew when the broker
fails.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import aio_pika

PREFETCH = 20
WORK_SECONDS = 0.1
HEARTBEAT_SECONDS = 0.5
PAUSE_SECONDS = 0.2
SILENCE_SECONDS = 20.0


class WireWorker:
    """Works on several jobs over one connection at a time."""

    def __init__(self, url: str, log: TextIO, jobs: list[str]) -> None:
        self.url = url
        self.log = log
        self.jobs = jobs
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen: set[str] = set()

    async def run(self) -> None:
        """Connect and work, again and again."""
        while True:
            try:
                await self._connected()
            except (Exception, asyncio.CancelledError) as error:
                print(f"begins anew: {error!r}", file=sys.stderr, flush=True)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _connected(self) -> None:
        connection = await aio_pika.connect(f"{self.url}?heartbeat=5", timeout=SILENCE_SECONDS)
        try:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=PREFETCH)
            lines = [asyncio.create_task(self._consume(channel, job)) for job in self.jobs]
            closing = asyncio.ensure_future(asyncio.shield(connection.transport.connection.closing))  # type: ignore[union-attr]
            await asyncio.wait([*lines, closing], return_when=asyncio.FIRST_COMPLETED)
            for line in lines:
                line.cancel()
        finally:
            async with asyncio.timeout(2.0):
                await connection.close()

    async def _consume(self, channel: Any, job: str) -> None:
        exchange = await channel.declare_exchange(f"scheduler.job.{job}", aio_pika.ExchangeType.TOPIC, durable=True)
        for kind in ("action", "status", "heartbeat"):
            queue = await channel.declare_queue(f"scheduler.job.{job}.{kind}", durable=True)
            await queue.bind(exchange, routing_key=kind)
        actions = await channel.get_queue(f"scheduler.job.{job}.action")
        async with actions.iterator() as messages:
            async for message in messages:
                await message.ack()
                self._take(exchange, json.loads(message.body))

    def _take(self, exchange: Any, action: dict[str, Any]) -> None:
        line = {name: action.get(name) for name in ("jobName", "runId", "action", "token", "attempt")}
        print(json.dumps({"at": time.time(), **line}), file=self.log, flush=True)
        if action["action"] == "run":
            task = asyncio.create_task(self._work(exchange, action["jobName"], action["runId"]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, exchange: Any, job: str, run: str) -> None:
        async def say(kind: str, **more: str) -> None:
            body = json.dumps({"jobName": job, "runId": run, **more}).encode()
            await exchange.publish(aio_pika.Message(body, delivery_mode=2), kind)

        await say("status", status="running")
        left = WORK_SECONDS
        while left > HEARTBEAT_SECONDS:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await say("heartbeat")
            left -= HEARTBEAT_SECONDS
        await asyncio.sleep(left)
        fails = run.endswith(("0", "8")) and run not in self._seen
        self._seen.add(run)
        await say("status", status="failed" if fails else "completed")


if __name__ == "__main__":
    with Path(sys.argv[2]).open("a") as opened:
        asyncio.run(WireWorker(sys.argv[1], opened, sys.argv[3:]).run())
