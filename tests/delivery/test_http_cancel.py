"""A cancel aborts the request, and the endpoint is asked to stop."""

import asyncio
import json

import pytest

from horarium.model import (
    Cancelled,
    HttpTarget,
    run_id,
)
from tests.delivery.receiver import FIRE_AT, SECRET, Asked, answer, attempt, delivering, hang, of, receiving
from tests.waiting import PATIENCE


async def test_a_cancel_aborts_the_request_and_tells_the_endpoint() -> None:
    async with receiving(hang) as receiver, receiving() as told, delivering(signing_secret=SECRET) as delivery:
        control = Asked()
        target = HttpTarget(receiver.url(), cancel_url=told.url("/stop/{{run.attempt}}"))
        task = asyncio.ensure_future(delivery.deliver(of(target), control))
        await asyncio.wait_for(receiver.arrived.wait(), PATIENCE)
        control.cancel()
        assert isinstance(await asyncio.wait_for(task, PATIENCE), Cancelled)
        await asyncio.wait_for(receiver.left.wait(), PATIENCE)
    (request,) = told.requests
    identity = run_id("job", FIRE_AT)
    assert request.line == "POST /stop/2 HTTP/1.1"
    assert json.loads(request.body) == {"run_id": identity, "action": "cancel", "attempt": 2, "token": 7}
    assert request.headers["webhook-id"] == f"{identity}-cancel"
    assert request.headers["webhook-signature"].startswith("v1,")


async def test_a_cancel_that_can_t_be_told_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with receiving(hang) as receiver, delivering() as delivery:
        control = Asked()
        target = HttpTarget(receiver.url(), cancel_url="http://169.254.169.254/?canary")
        task = asyncio.ensure_future(delivery.deliver(of(target), control))
        await asyncio.wait_for(receiver.arrived.wait(), PATIENCE)
        control.cancel()
        assert isinstance(await asyncio.wait_for(task, PATIENCE), Cancelled)
    assert "did not take the cancel" in caplog.text
    assert "canary" not in caplog.text


@pytest.mark.parametrize(
    ("status", "taken"), [("204 No", True), ("404 No", True), ("429 No", False), ("500 No", False)]
)
async def test_a_cancel_request_is_taken_unless_the_endpoint_asks_for_another(status: str, taken: bool) -> None:
    async with receiving(answer(status)) as told, delivering() as delivery:
        target = HttpTarget("http://example.com", cancel_url=told.url("/stop"))
        run = of(target).run
        assert await delivery.notify_cancel(target, run) is taken
        assert await delivery.notify_cancel(HttpTarget("http://example.com"), run) is True


async def test_a_run_cancelled_beforehand_sends_nothing() -> None:
    async with receiving() as receiver, delivering() as delivery:
        control = Asked()
        control.cancel()
        assert isinstance(await delivery.deliver(of(HttpTarget(receiver.url())), control), Cancelled)
    assert receiver.connections == 0


async def test_the_dispatcher_s_cancel_passes_through() -> None:
    async with receiving(hang) as receiver, delivering() as delivery:
        task = asyncio.ensure_future(attempt(receiver, delivery))
        await asyncio.wait_for(receiver.arrived.wait(), PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(receiver.left.wait(), PATIENCE)
