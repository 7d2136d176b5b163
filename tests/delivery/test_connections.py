"""Delivery over real sockets: which addresses are called, and how connections are used."""

import asyncio
from collections.abc import Sequence

import pytest

from horarium.delivery import http as adapter
from horarium.delivery.http import HttpDelivery
from horarium.model import (
    Deferred,
    Failed,
    Succeeded,
)
from tests.delivery.receiver import NOW, OK, StoppedClock, attempt, delivering, hang, receiving

# ---- addresses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "2130706433", "0x7f.1", "017700000001", "127.1", "localhost", "localhost.", "127。0。0。1", "0"],
)
async def test_a_private_address_gets_no_packet(host: str) -> None:
    async with receiving() as receiver, delivering(allow_private=False) as delivery:
        outcome = await attempt(receiver, delivery, url=receiver.url(host=host))
    assert isinstance(outcome, Failed)
    assert not outcome.retryable
    assert "127.0.0.1" in outcome.error or "0.0.0.0" in outcome.error
    assert receiver.connections == 0


@pytest.mark.parametrize(
    "answers", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::ffff:127.0.0.1"], ["127.0.0.1", "::1"]]
)
async def test_a_name_of_a_private_address_gets_no_packet(answers: list[str]) -> None:
    async def lookup(host: str, port: int) -> Sequence[str]:
        return answers

    async with receiving() as receiver, delivering(allow_private=False, lookup=lookup) as delivery:
        outcome = await attempt(receiver, delivery, url=receiver.url(host="rebound.example"))
    assert isinstance(outcome, Failed)
    assert not outcome.retryable
    assert "--allow-private-targets" in outcome.error
    assert receiver.connections == 0


async def test_a_name_is_resolved_once_for_a_connection_and_sent_as_host() -> None:
    asked: list[str] = []

    async def lookup(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

    close = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    async with receiving(close) as receiver, delivering(lookup=lookup) as delivery:
        url = receiver.url(host="changing.example")
        assert isinstance(await attempt(receiver, delivery, url=url), Succeeded)
        second = await attempt(receiver, delivery, url=url)
    assert asked == ["changing.example"] * 2
    assert receiver.requests[0].headers["host"] == f"changing.example:{receiver.port}"
    assert isinstance(second, Failed)
    assert "169.254.169.254" in second.error


async def test_a_proxy_in_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as proxy, receiving() as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url())
        assert isinstance(await attempt(receiver), Succeeded)
    assert (proxy.connections, receiver.connections) == (0, 1)


# ---- connections --------------------------------------------------------------------------------------------------


async def test_a_connection_is_used_again() -> None:
    async with receiving() as receiver, delivering() as delivery:
        for _ in range(3):
            await attempt(receiver, delivery)
    assert (len(receiver.requests), receiver.connections) == (3, 1)


async def test_a_host_that_hangs_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "PATIENCE_SECONDS", 0.01)
    async with receiving(hang) as bad, receiving() as good, delivering(per_host_max=2, total_max=3) as delivery:
        hanging = [asyncio.ensure_future(attempt(bad, delivery)) for _ in range(5)]
        outcomes = [await attempt(good, delivery) for _ in range(10)]
        done, waiting = await asyncio.wait(hanging, timeout=2, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 3:
            more, waiting = await asyncio.wait(waiting, timeout=2, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(outcome, Succeeded) for outcome in outcomes)
        assert bad.connections == 2
        put_off = [task.result() for task in done]
        assert all(isinstance(outcome, Deferred) and outcome.until > NOW for outcome in put_off)
        monkeypatch.setattr(bad, "reply", OK)
        assert isinstance(await attempt(bad, delivery), Succeeded)


async def test_close_may_come_first_and_twice() -> None:
    delivery = HttpDelivery(StoppedClock())
    await delivery.close()
    await delivery.close()
