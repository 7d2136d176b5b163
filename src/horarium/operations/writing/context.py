"""The collaborators of every operation, and how one that lost a race tries again: it reads once more after a short
pause, up to a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from horarium.clock import Clock
from horarium.errors import Conflict
from horarium.ports import Signal, Store

RACES_MAX = 50
"""How often an operation that lost a race reads again before it gives up."""
PAUSE_SECONDS_MAX = 0.1
"""The longest pause after a lost race; the first one is at most a millisecond."""

Entropy = Callable[[int], bytes]
"""That many random bytes."""


async def pause_after(race: int, entropy: Entropy) -> None:
    """Wait for a random moment, longer the more races were lost: the winner is likely to be another process."""
    share = int.from_bytes(entropy(2), "big") / 65_536
    await asyncio.sleep(share * min(0.001 * 2 ** min(race, 10), PAUSE_SECONDS_MAX))


def contended(what: str) -> Conflict:
    """The answer to a caller whose operation lost every race."""
    return Conflict(f"{what} changes faster than this request could be carried out; try again")


class Context(NamedTuple):
    """One namespace, as operations reach it. `entropy`: that many random bytes."""

    store: Store
    clock: Clock
    signal: Signal
    entropy: Entropy
