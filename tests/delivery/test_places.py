"""Places for requests: how many there are, who gets the next, and that none is ever lost."""

from __future__ import annotations

import asyncio

import pytest

from horarium.delivery.places import HostPlaces

LONG = 60.0


async def take_free(places: HostPlaces, host: str) -> bool:
    """Take a place, if one is free."""
    return await places.take(host, 0)


async def free(places: HostPlaces, host: str) -> int:
    """How many more requests to this host could begin now."""
    taken = 0
    while await take_free(places, host):
        taken += 1
    for _ in range(taken):
        places.give(host)
    return taken


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_host_has_its_share_and_all_have_the_whole() -> None:
    places = HostPlaces(total=5, per_host=2)
    assert [await take_free(places, "a") for _ in range(3)] == [True, True, False]
    assert [await take_free(places, "b") for _ in range(3)] == [True, True, False]
    assert [await take_free(places, "c") for _ in range(2)] == [True, False]
    assert not await places.take("d", 0.001)
    for host in ("a", "a", "b", "b", "c"):
        places.give(host)
    assert (await free(places, "a"), await free(places, "d")) == (2, 2)


async def test_places_go_to_those_that_wait_in_the_order_they_came() -> None:
    places = HostPlaces(total=10, per_host=1)
    assert await places.take("a", LONG)
    got: list[int] = []

    async def want(number: int) -> None:
        assert await places.take("a", LONG)
        got.append(number)

    waiting = [asyncio.ensure_future(want(number)) for number in range(3)]
    await settled()
    for count in range(3):
        places.give("a")
        await settled()
        assert not await take_free(places, "a"), "those that wait come first"
        assert got == list(range(count + 1))
    places.give("a")
    await asyncio.gather(*waiting)
    assert await free(places, "a") == 1


@pytest.mark.parametrize("total", [1, 10])
@pytest.mark.parametrize("given_before", [False, True])
async def test_one_that_no_longer_waits_keeps_no_place(total: int, given_before: bool) -> None:
    """Cancelled while it waits, or in the turn in which it was given the place: for the host's, and for the whole."""
    places = HostPlaces(total=total, per_host=1)
    host = "a" if total == 10 else "b"
    assert await places.take("a", LONG)
    waiting = asyncio.ensure_future(places.take(host, LONG))
    await settled()
    if given_before:
        places.give("a")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    if not given_before:
        places.give("a")
    assert (await free(places, "a"), await free(places, "b")) == (1, 1)


async def test_one_that_ran_out_of_patience_keeps_no_place() -> None:
    places = HostPlaces(total=1, per_host=1)
    assert await places.take("a", LONG)
    assert not await places.take("a", 0.001)
    assert not await places.take("b", 0.001)
    places.give("a")
    assert (await free(places, "a"), await free(places, "b")) == (1, 1)
