"""A worker on RabbitMQ that knows nothing of Horarium but the wire format (docs/bus.md). It needs aio-pika alone.

python examples/bus_worker.py amqp://guest:guest@127.0.0.1/ JOB
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import aio_pika
import aio_pika.abc

HEARTBEAT_SECONDS = 5.0


class Worker:
    """Performs the runs of one job, several at a time."""

    def __init__(self, exchange: aio_pika.abc.AbstractExchange) -> None:
        self.exchange = exchange
        self.under_way: dict[str, asyncio.Task[None]] = {}

    async def say(self, kind: str, action: dict[str, Any], **fields: Any) -> None:
        """Report on a run. The echoed token keeps us from speaking for a run that we have lost."""
        body = {"jobName": action["jobName"], "runId": action["runId"], "token": action["token"], **fields}
        message = aio_pika.Message(json.dumps(body).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await self.exchange.publish(message, routing_key=kind)

    async def take(self, action: dict[str, Any]) -> None:
        """Begin or end a run."""
        run_id = action["runId"]
        if action["action"] == "cancel":
            if run_id in self.under_way:
                self.under_way[run_id].cancel()
            return
        task = self.under_way[run_id] = asyncio.create_task(self.perform(action))
        task.add_done_callback(lambda done: self.under_way.pop(run_id, None))
        await asyncio.sleep(0)  # it begins: a cancel that comes with it is answered

    async def perform(self, action: dict[str, Any]) -> None:
        """One run, with heartbeats beside it."""
        beats = asyncio.create_task(self.beat(action))
        try:
            await self.say("status", action, status="running")
            result = await work(action.get("payload"))
        except asyncio.CancelledError:
            await self.say("status", action, status="cancelled")
        except Exception as error:
            await self.say("status", action, status="failed", error=f"{type(error).__name__}: {error}")
        else:
            await self.say("status", action, status="completed", result=result)
        finally:
            beats.cancel()

    async def beat(self, action: dict[str, Any]) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await self.say("heartbeat", action)


async def work(payload: Any) -> Any:
    """What is to be done."""
    print(f"working on {payload}", flush=True)
    return {"done": payload}


async def main(url: str, job: str) -> None:
    connection = await aio_pika.connect_robust(url)
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=10)
        exchange = await channel.declare_exchange(f"scheduler.job.{job}", aio_pika.ExchangeType.TOPIC, durable=True)
        for kind in ("action", "status", "heartbeat"):
            queue = await channel.declare_queue(f"scheduler.job.{job}.{kind}", durable=True)
            await queue.bind(exchange, routing_key=kind)
        actions = await channel.get_queue(f"scheduler.job.{job}.action")
        worker = Worker(exchange)
        print(f"waiting for runs of {job}", flush=True)
        async with actions.iterator() as messages:
            async for message in messages:
                await message.ack()
                await worker.take(json.loads(message.body))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
