"""Worlds in which jobs follow from runs of others hold every invariant; each rule of that is broken on purpose, and the
simulator says which one it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from horarium.clock import Instant
from horarium.model import Job, Run, RunChange
from horarium.operations.settling.joining import Joining
from horarium.operations.settling.members import Members
from horarium.rules import joins, planning
from horarium.rules.overridden import Dropped
from horarium.testing.simulate import simulate
from horarium.testing.simulate.workload import SHARES
from tests.simulation.naming import said_of

pytestmark = pytest.mark.slow

SEEDS_MAX = 250
Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horarium.testing.simulate.workload.SHARES", {**SHARES, "joins": 0.5})


def ends_say_nothing(patch: pytest.MonkeyPatch) -> None:
    async def with_ends(self: Members, changes: Sequence[RunChange]) -> Sequence[RunChange]:
        return changes

    patch.setattr(Members, "with_ends", with_ends)


def one_is_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("horarium.rules.joins.missing", lambda job, window: [] if window.came else ["all"])


def forgets_what_it_reads(patch: pytest.MonkeyPatch) -> None:
    async def add(self: Joining, job: Any, ends: Any) -> bool:
        return True

    patch.setattr(Joining, "_add", add)


def misses_the_next_one_too(patch: pytest.MonkeyPatch) -> None:
    honest = planning.dropped_run

    def dropped_run(job: Job, dropped: Dropped, now: Instant) -> Run:
        following = joins.join_of(job).next_window(dropped.last)
        further = dropped if following is None else dropped._replace(last=following, fires=dropped.fires + 1)
        return honest(job, further, now)

    patch.setattr("horarium.rules.joins.dropped_run", dropped_run)


MUTANTS: dict[str, tuple[Patch, int, str]] = {
    "ends of members say nothing": (ends_say_nothing, 127, "all had come in its window .*, and nothing"),
    "ends that are read are forgotten": (forgets_what_it_reads, 55, "all had come in its window .*, and nothing"),
    "one of them is enough": (one_is_enough, 33, "in which not all had come"),
    "a missed window takes the next one with it": (misses_the_next_one_too, 149, "2 rows account for its window"),
}
"""How each breaks a rule, the first seed that is tried, and what is said of it."""


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 40), marks=pytest.mark.proof)])
def test_worlds_with_joins_hold_every_invariant(seeds: range) -> None:
    assert sum(simulate(seed).runs for seed in seeds) > 20 * len(seeds)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_join_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    breaks, first, said = MUTANTS[name]
    breaks(monkeypatch)
    assert any(said_of(seed, said) for seed in range(first, SEEDS_MAX))
