"""Keys that share a queue, and how long one of them waits: beside runs of others, as many as there may be, one of its
own is claimed within two batches of claims, and as many turns as the weights of the others say.

Only first claims are counted against a key: a run that is given back keeps its turn. One that is tried again takes a
turn of its key. Runs that come in after one was given back begin at its turn, and so may pass a key that waits already:
by as many turns as were taken since.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random

from horarium.clock import Instant
from horarium.model import Run, State
from horarium.rules.fairness import STEP
from horarium.testing.simulate.trace import Trace

KEYS = ("a", "a", "a", "a", "b", "c")
WEIGHTS = {"b": 3}
BURST = 90

Line = tuple[str, int]
"""A queue, and a priority in it."""


def a_key(chance: Random) -> str:
    """Whose the runs are that come together."""
    return chance.choice(KEYS)


class Fair:
    """The books."""

    def __init__(self, trace: Trace) -> None:
        self.judged = 0
        self._trace = trace
        self._waiting: dict[Line, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._passed: Counter[tuple[Line, str]] = Counter()
        self._furthest: dict[Line, Instant] = {}
        self._back: dict[tuple[Line, str], int] = {}
        """By how many turns a run that was given back lay behind, while runs of the key waited."""
        self._batches: Counter[tuple[str | None, int]] = Counter()

    def written(self, old: Run | None, new: Run) -> None:
        """A run was added or changed."""
        if new.fair is None or new.job_id is not None:
            return
        line = new.queue, new.priority
        waiting = self._waiting[line]
        if new.state is State.PENDING and new.start_by is None and new.token == 0:
            waiting[new.fair].add(new.id)
            return
        waiting[new.fair].discard(new.id)
        if new.state is State.PENDING and new.start_by is None:
            self._given_back(line, new.due_at)
        if old is None or old.state is not State.PENDING or new.state is not State.RUNNING:
            return
        if new.token == 1:
            self._batches[new.worker, self._trace.elapsed] += 1
            self._furthest[line] = max(new.due_at, self._furthest.get(line, new.due_at))
            self._claimed(line, new.fair)
        else:
            self._passed[line, new.fair] = 0

    def forgotten(self, run: Run) -> None:
        """A run is gone."""
        self._waiting[run.queue, run.priority][run.fair or ""].discard(run.id)

    def _given_back(self, line: Line, turn: Instant) -> None:
        behind = max(0, self._furthest.get(line, turn) - turn) // STEP
        for key, runs in self._waiting[line].items():
            if runs:
                self._back[line, key] = max(behind, self._back.get((line, key), 0))

    def _claimed(self, line: Line, key: str) -> None:
        self._passed[line, key] = 0
        self._back.pop((line, key), None)
        for other, runs in self._waiting[line].items():
            if other == key or not runs:
                self._passed[line, other] = 0
                continue
            self.judged += 1
            self._passed[line, other] += 1
            turns = sum(WEIGHTS.get(name, 1) // WEIGHTS.get(other, 1) + 2 for name in {*KEYS} - {other})
            turns += self._back.get((line, other), 0) * len({*KEYS} - {other})
            most = 2 * max(self._batches.values()) + turns
            if self._passed[line, other] > most:
                self._trace.fail(
                    f"{len(runs)} runs of {other} in {line[0]} wait while {most + 1} of others are claimed"
                )
