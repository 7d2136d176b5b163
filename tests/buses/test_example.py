"""The example of a worker does what it says, against a scheduler and a RabbitMQ."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from horarium import Scheduler, every
from horarium.model import State
from tests.handlers.conftest import ended
from tests.servers.rabbitmq import RabbitMQ

EXAMPLE = Path(__file__).parents[2] / "examples" / "bus_worker.py"


@pytest.mark.slow
async def test_the_example_completes_a_run(rabbitmq: RabbitMQ, job: str) -> None:
    worker = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), rabbitmq.url, job, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with Scheduler("memory://", buses={"default": rabbitmq.url}) as scheduler:
            await scheduler.add_job(job, every(86_400), bus="default", payload={"rows": 3})
            await scheduler.start()
            run = await scheduler.trigger_job(job)
            run = await ended(scheduler, run)
        assert (run.state, run.result) == (State.COMPLETED, b'{"done":{"rows":3}}')
    finally:
        worker.terminate()
        await worker.communicate()
