"""Random faults by a seed: which node, how, and when. The same seed gives the same sequence of choices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from random import Random

from tests.proof.harness import Node, World, let_pass
from tests.proof.jobs import SECOND, whole_second
from tests.proof.receiver import micros

PAUSE_SECONDS = 3.0
BUSY_SECONDS = 0.3


class Nemesis:
    """Kills and restarts nodes of a world, one fault after the other, at random. `pauses`: which share of the faults
    is a SIGSTOP instead."""

    def __init__(self, world: World, seed: int, *, pauses: float = 0.0) -> None:
        self._world = world
        self._random = Random(seed)
        self._pauses = pauses

    def strike(self) -> None:
        """One fault, and its end. It comes in the first part of a second, when there is most to cut off."""
        victim: Node = self._random.choice(self._world.nodes)
        pause = self._random.random() < self._pauses
        strike_at = whole_second(1) + round(self._random.uniform(0, BUSY_SECONDS) * SECOND)
        let_pass((strike_at - micros()) / SECOND)
        if pause:
            victim.pause()
            let_pass(PAUSE_SECONDS)
            victim.resume()
        else:
            victim.restart()

    def strike_until(self, over: Callable[[], bool]) -> int:
        """Fault after fault. How many."""
        strikes = 0
        while not over():
            self.strike()
            strikes += 1
        return strikes


def at_once(actions: Sequence[Callable[[], object]]) -> None:
    """Do all of these at the same time; raise what the first of them raised."""
    errors: list[BaseException] = []

    def act(action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=act, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
