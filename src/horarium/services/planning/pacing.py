"""The pace at which missed runs fall due after an absence: a few at a time, and each job in its turn.

A slot is given for good, so a job that missed a thousand fire times must not take all that there are: what another job
missed just once may be found only after it. Beyond the first slots every other one is therefore left to first runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from horarium.clock import SECOND, Instant
from horarium.model import Cause, Plan, Run, State, due_then
from horarium.rules.approving import is_waiting

DENSE = 10 * SECOND
"""So far ahead every slot is given to the next run."""


class Pacing:
    """Gives slots. `pace`: between two of them."""

    def __init__(self, pace: int) -> None:
        self._pace = pace
        self._first_at: Instant = 0
        self._rest_at: Instant = 0
        self._last: Instant = 0

    def look(self, now: Instant) -> None:
        """Notice a clock that went back."""
        if now < self._last:
            self._first_at, self._rest_at = min(self._first_at, now), min(self._rest_at, now)
        self._last = now

    def paced(self, plans: list[Plan], now: Instant) -> list[Plan]:
        """With missed runs at the measured pace: one run of each job in turn, so that a job which missed one fire time
        does not wait behind one that missed a thousand."""
        late = [(index, [run for run in planned.runs if _is_late(run)]) for index, planned in enumerate(plans)]
        turns = sorted((turn, index) for index, runs in late for turn in range(len(runs)))
        slots: dict[str, Run] = {}
        runs_of = dict(late)
        for turn, index in turns:
            run = runs_of[index][turn]
            slots[run.id] = self._slot(run, now) if turn else self._first_slot(run, now)
        return _with(plans, slots) if slots else plans

    @property
    def given(self) -> tuple[Instant, Instant]:
        """How far slots are given."""
        return self._first_at, self._rest_at

    def take_back(self, given: tuple[Instant, Instant]) -> None:
        """Plans with the slots since then were not written. (That of a costly job in between may be given twice.)"""
        self._first_at, self._rest_at = given

    def _first_slot(self, run: Run, now: Instant) -> Run:
        """For the first run that a job missed."""
        due_at = max(run.due_at, self._first_at)
        shared = due_at < self._rest_at
        self._first_at = max(now, due_at) + self._pace * (2 if shared else 1)
        if not shared:
            self._rest_at = self._first_at
        return due_then(run, due_at)

    def _slot(self, run: Run, now: Instant) -> Run:
        due_at = max(run.due_at, self._rest_at)
        dense = due_at < now + DENSE
        self._rest_at = max(now, due_at) + self._pace * (1 if dense else 2)
        if dense:
            self._first_at = max(self._first_at, self._rest_at)
        return due_then(run, due_at)


def _with(plans: Sequence[Plan], slots: dict[str, Run]) -> list[Plan]:
    return [replace(planned, runs=tuple(slots.get(run.id, run) for run in planned.runs)) for planned in plans]


def _is_late(run: Run) -> bool:
    return run.cause is Cause.CATCH_UP and run.state is State.PENDING and not is_waiting(run)
