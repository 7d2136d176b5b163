"""Random faults by a seed: which node, how, and when. The same seed gives the same sequence of choices."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.proof.harness import Node, World
from tests.proof.jobs import SECOND, whole_second
from tests.proof.receiver import micros
from tests.waiting import let_pass

PAUSE_SECONDS = 3.0
"""Longer than the leases of the experiments: who wakes up from it has lost all it had."""
BUSY_SECONDS = 0.3
KILL, PAUSE, TERMINATE = "kill", "pause", "terminate"


class Nemesis:
    """One fault after the other on nodes of a world. `kinds`: what it chooses from, repeated for more weight."""

    def __init__(self, world: World, seed: int, kinds: tuple[str, ...] = (KILL,)) -> None:
        self._world = world
        self._random = Random(seed)
        self._kinds = kinds

    def strike(self) -> None:
        """One fault, and its end. It comes in the first part of a second, when there is most to cut off."""
        victim: Node = self._random.choice(self._world.nodes)
        kind = self._random.choice(self._kinds)
        strike_at = whole_second(1) + round(self._random.uniform(0, BUSY_SECONDS) * SECOND)
        let_pass((strike_at - micros()) / SECOND)
        if kind == PAUSE:
            victim.pause()
            let_pass(PAUSE_SECONDS)
            victim.resume()
            return
        if kind == TERMINATE:
            victim.terminate()
        else:
            victim.kill()
        victim.start()

    def strike_until(self, over: Callable[[], bool]) -> int:
        """Fault after fault. How many."""
        strikes = 0
        while not over():
            self.strike()
            strikes += 1
        return strikes
