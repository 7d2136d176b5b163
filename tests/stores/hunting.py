"""The machine of the contract on many broken stores at once: most of a sequence's cost is to make it up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from operator import eq
from typing import TypeVar

from hypothesis.errors import Flaky

from horarium.ports import Store
from horarium.stores.memory import MemoryDatabase, MemoryStore
from horarium.testing.contract.machine import StoreMachine, search

T = TypeVar("T")
Mutant = type[MemoryStore]


class AllCaught(Exception):
    """There is nothing more to look for."""


class Hunt(StoreMachine):
    """`at_large`: those that have answered as they should so far. One that has not is asked no more."""

    def __init__(self, at_large: set[Mutant]) -> None:
        if not at_large:
            raise AllCaught
        super().__init__(_sound)
        self._at_large = at_large
        self._hunted = {mutant: mutant("mutant", MemoryDatabase()) for mutant in at_large}

    def both(self, call: Callable[[Store], Awaitable[T]], alike: Callable[[T, T], bool] = eq) -> T:
        async def answer() -> T:
            expected = await call(self.model)
            for mutant, store in list(self._hunted.items()):
                if not await _answers(call, store, partial(alike, expected)):
                    del self._hunted[mutant]
                    self._at_large.discard(mutant)
            return expected

        return self.runner.run(answer())


async def _sound(namespace: str) -> Store:
    return MemoryStore(namespace)


async def _answers(call: Callable[[Store], Awaitable[T]], store: Store, as_it_should: Callable[[T], bool]) -> bool:
    try:
        return as_it_should(await call(store))
    except Exception:
        return False


def hunt(mutants: Iterable[Mutant], examples: int, steps: int) -> set[Mutant]:
    """Those in which the machine finds no difference within this many sequences of at most this many calls."""
    at_large = set(mutants)
    # That a machine ends before its first call, where others went on, is flaky to Hypothesis.
    with suppress(AllCaught, Flaky):
        search(partial(Hunt, at_large), examples, steps, shorten=False)
    return at_large
