"""Work on many things in a row rests for other tasks, not for threads that have the interpreter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from horarium.operations.bounds import listing
from horarium.operations.bounds.listing import REST_SECONDS, Slices


def works(seconds: float) -> None:
    """In time of the processor."""
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass


@pytest.mark.parametrize(("other", "rests"), [(works, True), (time.sleep, False)])
async def test_it_rests_where_another_task_worked(
    monkeypatch: pytest.MonkeyPatch, other: Callable[[float], None], rests: bool
) -> None:
    """`time.sleep` takes as long, and stands for the interpreter that a thread has."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    monkeypatch.setattr(listing, "SLICE_SECONDS", -1.0)  # its time is over at once
    slices = Slices()
    asyncio.get_running_loop().call_soon(other, 0.01)
    await slices.give_way()
    assert pauses == ([0, REST_SECONDS] if rests else [0])
