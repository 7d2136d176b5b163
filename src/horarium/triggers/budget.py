"""The budget of an evaluation: a count of steps, not of time, so that the same question always gets the same answer.

A step is about one question to a plain trigger (2 to 5 microseconds). Triggers made of triggers spend steps as they
search; a plain trigger answers by arithmetic and spends one for each fire time that it lists. Where no budget is set,
nothing is counted. A budget is carried in the context, so foreign triggers that hold ours are bounded too.

    with limited(STEPS):
        trigger.next_fire(now)      # raises TooExpensive beyond STEPS

An inner budget never exceeds the rest of the outer one, and is spent from both. What a trigger works out once and keeps
(the days of a `CronSet`) is paid when it is worked out, so the first answer costs the most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Final

from horarium.errors import TooExpensive

FIRST_STEPS: Final = 300
"""For any question, on the event loop: about a millisecond. What needs more is evaluated elsewhere."""
FIRE_STEPS: Final = 2_000
"""For one fire time."""
PLAN_STEPS: Final = 5_000
"""For the definition of one job; or its plan, on the event loop."""
LIST_STEPS: Final = 50_000
"""For a whole list of fire times."""
QUESTION_STEPS: Final = 200_000
"""For all that one request asks: about a second of a processor."""
PLAN_STEPS_MAX: Final = 500_000
"""For the plan of one job, in a thread: a hundred times what a definition may cost. Halving asks for 40 fire times."""


class Budget:
    """Steps that are left. Not for several threads at once. `pace` is called whenever some are spent."""

    __slots__ = ("given", "left", "pace")

    def __init__(self, steps: int, pace: Callable[[], None] | None = None) -> None:
        self.given = steps
        self.left = steps
        self.pace = pace

    @property
    def spent(self) -> int:
        return self.given - self.left

    def spend(self, steps: int) -> None:
        """Raises TooExpensive where fewer than `steps` are left."""
        self.left -= steps
        if self.pace is not None:
            self.pace()
        if self.left < 0:
            raise TooExpensive(
                "the rule is too expensive to evaluate: too many of its fire times are excluded or coincide;"
                " hide long stretches with windows, dates or weekdays, or use fewer triggers",
                field="trigger",
            )


_current: ContextVar[Budget | None] = ContextVar("horarium_trigger_budget", default=None)


class limited:  # noqa: N801 - read as a word: `with limited(STEPS):`
    """Evaluations within raise TooExpensive once they have spent `steps`, or the rest of an outer budget, whose pace
    they keep."""

    __slots__ = ("_budget", "_outer", "_pace", "_steps", "_token")

    def __init__(self, steps: int, pace: Callable[[], None] | None = None) -> None:
        self._steps = steps
        self._pace = pace

    def __enter__(self) -> Budget:
        self._outer = outer = _current.get()
        if outer is None:
            self._budget = Budget(self._steps, self._pace)
        else:
            self._budget = Budget(max(0, min(self._steps, outer.left)), self._pace or outer.pace)
        self._token = _current.set(self._budget)
        return self._budget

    def __exit__(self, *raised: object) -> None:
        _current.reset(self._token)
        if self._outer is not None:
            self._outer.left -= self._budget.spent


def bounded(steps: int) -> AbstractContextManager[Budget]:
    """As `limited` where no budget is in force; else that one holds."""
    budget = _current.get()
    return limited(steps) if budget is None else nullcontext(budget)


def is_spent() -> bool:
    """True if the budget in force, if there is one, has nothing left."""
    budget = _current.get()
    return budget is not None and budget.left <= 0


def spend(steps: int = 1) -> None:
    """Count steps against the budget in force, if there is one."""
    budget = _current.get()
    if budget is not None:
        budget.spend(steps)


def spend_first(steps: int) -> None:
    """Count steps where only what costs next to nothing is wanted: of what there are few, however long they take.
    Elsewhere they are free, but the pace is kept."""
    budget = _current.get()
    if budget is None:
        return
    if budget.given <= FIRST_STEPS:
        budget.spend(steps)
    elif budget.pace is not None:
        budget.pace()


@contextmanager
def apart(steps: int) -> Iterator[Budget]:
    """A budget of its own, without regard to an outer one: where the edge limits the work by other means."""
    token = _current.set(budget := Budget(steps))
    try:
        yield budget
    finally:
        _current.reset(token)


__all__ = [
    "FIRE_STEPS",
    "FIRST_STEPS",
    "LIST_STEPS",
    "PLAN_STEPS",
    "PLAN_STEPS_MAX",
    "QUESTION_STEPS",
    "Budget",
    "apart",
    "bounded",
    "is_spent",
    "limited",
    "spend",
]
