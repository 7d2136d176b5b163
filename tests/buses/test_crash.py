"""kill -9 of a scheduler between claim and confirmation: the action is neither lost nor doubled.

A real `horarium serve` speaks to the broker through a proxy that holds back what is to be caught in the middle. A
second one, on the same store, goes on. The worker is a client that knows the wire alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.buses.brokers import RabbitWorkers
from tests.buses.proxy import FROM_BROKER, TO_BROKER, Proxy
from tests.proof.harness import Node
from tests.servers.rabbitmq import RabbitMQ
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

SECONDS = PATIENCE
SHORT, LONG = 3.0, 30.0
"""Leases: one that ends during the test, and one that outlasts a start of a node on a busy machine."""


class Scene:
    """Two nodes on one store. The first speaks to the broker through the proxy; the second is not started yet."""

    def __init__(self, rabbitmq: RabbitMQ, proxy: Proxy, folder: Path, job: str) -> None:
        store = f"sqlite:///{folder / 'store.db'}"
        self.job = job
        self.proxy = proxy
        self.workers = RabbitWorkers(rabbitmq)
        self.first = Node("first", store, "--bus-url", rabbitmq.url.replace(str(rabbitmq.port), str(proxy.port)))
        self.second = Node("second", store, "--bus-url", rabbitmq.url)
        self.at = self.first

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        return await asyncio.to_thread(self.at.api.must, method, path, body)

    async def begin(self, lease_seconds: float) -> str:
        """The first node, its job's queues made, and one more run that is due: its id."""
        await asyncio.to_thread(self.first.start)
        definition = {
            "trigger": {"type": "interval", "every_seconds": 86_400},
            "target": {"type": "bus"},
            "timeouts": {"heartbeat_seconds": lease_seconds},
        }
        await self.call("PUT", f"/jobs/{self.job}", definition)
        before: str = (await self.call("POST", f"/jobs/{self.job}/trigger"))["id"]
        await self.say("completed", await self.action())
        await self.until(before, "completed")
        return before

    async def trigger(self) -> str:
        return str((await self.call("POST", f"/jobs/{self.job}/trigger"))["id"])

    async def crash(self) -> None:
        """kill -9 of the first; what the proxy holds is lost with it; the second begins."""
        await asyncio.to_thread(self.first.kill)
        self.proxy.cut()
        self.proxy.release()
        await asyncio.to_thread(self.second.start)
        self.at = self.second

    async def action(self) -> dict[str, Any]:
        async with asyncio.timeout(SECONDS):
            action: dict[str, Any] = json.loads(await self.workers.receive(self.job))
        return action

    async def say(self, status: str, action: dict[str, Any], **more: Any) -> None:
        body = {"jobName": self.job, "runId": action["runId"], "status": status, **more}
        await self.workers.send(self.job, "status", [json.dumps(body).encode()])

    async def until(self, run_id: str, state: str, attempt: int = 1) -> dict[str, Any]:

        async def arrived() -> dict[str, Any] | None:
            run = await self.call("GET", f"/runs/{run_id}")
            return dict(run) if run["state"] == state and run["attempt"] >= attempt else None

        run: dict[str, Any] = await until(arrived)
        return run

    async def must_be_all(self) -> None:
        """No action more than were taken."""
        assert await self.workers.waiting(self.job, "action") == 0


@pytest_asyncio.fixture
async def scene(rabbitmq: RabbitMQ, tmp_path: Path, job: str) -> AsyncIterator[Scene]:
    async with Proxy(rabbitmq.port).serving() as proxy:
        made = Scene(rabbitmq, proxy, tmp_path, job)
        yield made
        made.first.close()
        made.second.close()
        await made.workers.hang_up()


async def test_a_crash_between_claim_and_publish_loses_nothing_and_doubles_nothing(scene: Scene) -> None:
    await scene.begin(SHORT)
    scene.proxy.hold(TO_BROKER)
    run_id = await scene.trigger()
    claimed = await scene.until(run_id, "pending")
    assert await scene.workers.waiting(scene.job, "action") == 0
    await scene.crash()
    action = await scene.action()
    assert (action["runId"], claimed["attempt"], action["attempt"], action["token"] > 1) == (run_id, 1, 1, True)
    await scene.say("running", action)
    await scene.say("completed", action)
    ended = await scene.until(run_id, "completed")
    assert ended["attempt"] == 1
    await scene.must_be_all()


async def test_a_crash_between_publish_and_confirmation_doubles_nothing_where_a_worker_has_it(scene: Scene) -> None:
    await scene.begin(LONG)
    scene.proxy.hold(FROM_BROKER)
    run_id = await scene.trigger()
    action = await scene.action()
    assert (action["runId"], action["token"]) == (run_id, 1)
    await scene.crash()
    await scene.say("running", action)
    await scene.say("completed", action)
    ended = await scene.until(run_id, "completed")
    assert ended["attempt"] == 1
    await scene.must_be_all()


async def test_a_crash_after_publish_is_seen_by_its_token_where_the_worker_died_too(scene: Scene) -> None:
    await scene.begin(SHORT)
    scene.proxy.hold(FROM_BROKER)
    run_id = await scene.trigger()
    first = await scene.action()
    await scene.crash()
    again = await scene.action()
    assert (first["runId"], again["runId"], again["idempotencyKey"]) == (run_id, run_id, first["idempotencyKey"])
    assert again["token"] > first["token"]
    await scene.say("completed", again, token=again["token"], result="second")
    await scene.say("completed", first, token=first["token"], result="first")
    ended = await scene.until(run_id, "completed")
    assert ended["result"] == "second"
    await scene.must_be_all()


async def test_a_connection_that_is_cut_before_the_confirmation_doubles_nothing(scene: Scene) -> None:
    await scene.begin(LONG)
    scene.proxy.hold(FROM_BROKER)
    run_id = await scene.trigger()
    action = await scene.action()
    scene.proxy.cut()
    scene.proxy.release()
    await scene.say("running", action)
    await scene.say("completed", action)
    ended = await scene.until(run_id, "completed")
    assert ended["attempt"] == 1
    await scene.must_be_all()


@pytest.mark.parametrize("after", [1, 500, 4_000])
async def test_a_connection_that_is_cut_within_a_message_loses_nothing(scene: Scene, after: int) -> None:
    await scene.begin(SHORT)
    scene.proxy.cut_after = after
    run_ids = [await scene.trigger() for _ in range(20)]

    async def work() -> None:
        while True:  # an action may come twice, of which the second counts
            action = await scene.action()
            await scene.say("completed", action, token=action["token"])

    working = asyncio.create_task(work())
    for run_id in run_ids:
        await scene.until(run_id, "completed")
    working.cancel()
    await asyncio.wait([working])
    assert scene.proxy.cuts == 1
