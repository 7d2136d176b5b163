"""The example of a worker does what it says, against a scheduler and a RabbitMQ."""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aio_pika
import pytest

from horarium import Scheduler, every
from horarium.model import State
from tests.handlers.conftest import ended
from tests.servers.rabbitmq import RabbitMQ

EXAMPLE = Path(__file__).parents[2] / "examples" / "bus_worker.py"


@asynccontextmanager
async def example(url: str, job: str) -> AsyncIterator[None]:
    worker = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), url, job, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield
    finally:
        worker.terminate()
        await worker.communicate()


@pytest.mark.slow
async def test_the_example_completes_a_run(rabbitmq: RabbitMQ, job: str) -> None:
    async with example(rabbitmq.url, job), Scheduler("memory://", buses={"default": rabbitmq.url}) as scheduler:
        await scheduler.add_job(job, every(86_400), bus="default", payload={"rows": 3})
        await scheduler.start()
        run = await scheduler.trigger_job(job)
        run = await ended(scheduler, run)
    assert (run.state, run.result) == (State.COMPLETED, b'{"done":{"rows":3}}')


async def test_the_example_answers_a_cancel_that_comes_with_its_run() -> None:
    said: list[tuple[str, str | None]] = []

    class Exchange:
        async def publish(self, message: aio_pika.Message, routing_key: str) -> None:
            await asyncio.sleep(0)
            said.append((routing_key, json.loads(message.body).get("status")))

    worker = runpy.run_path(str(EXAMPLE))["Worker"](Exchange())
    action = {"jobName": "invoice", "runId": "R", "token": 1}
    await worker.take({**action, "action": "run", "payload": None})
    await worker.take({**action, "action": "cancel"})
    await asyncio.gather(*worker.under_way.values(), return_exceptions=True)
    assert said == [("status", "cancelled")]
