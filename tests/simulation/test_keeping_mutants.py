"""Nodes that start while the clock is ten years ahead: nothing is forgotten that the true time keeps. What goes by the
plain clock is found, by what it forgets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from horarium.clock import Instant
from horarium.services.loop.believed import BelievedClock
from horarium.services.metrics.tallies import Tallies
from horarium.services.upkeep.log_pruner import LogPruner
from horarium.services.upkeep.pruner import Pruner
from horarium.testing.simulate import simulate
from horarium.testing.simulate.workload import SHARES
from tests.simulation.naming import said_of

pytestmark = pytest.mark.slow

SEEDS_MAX = 40
Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def starting_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horarium.testing.simulate.workload.SHARES", {**SHARES, "ahead": 0.3, "says": 0.7})
    monkeypatch.setattr("horarium.testing.simulate.cluster.SHARES", {**SHARES, "ahead": 0.3, "says": 0.7})


def believes_where_it_starts(patch: pytest.MonkeyPatch) -> None:
    async def never(self: BelievedClock, now: Instant) -> float:
        return 0.0

    patch.setattr(BelievedClock, "_doubted_seconds", never)


def believes_what_it_sees(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BelievedClock, "stands", lambda self: True)


def keeps_the_audit(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Pruner, now: Instant) -> None:
        return None

    believes_where_it_starts(patch)
    patch.setattr(Pruner, "_prune_records", nothing)


def prunes_logs_by_the_plain_clock(patch: pytest.MonkeyPatch) -> None:
    honest = LogPruner.step

    class Plain:
        is_known = True

        def stands(self) -> bool:
            return True

    async def step(self: LogPruner, now: Instant) -> Instant | None:
        self._believed = Plain()  # type: ignore[assignment]
        return await honest(self, now)

    patch.setattr(LogPruner, "step", step)


def prunes_tallies_by_the_plain_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tallies, "_may_prune", lambda self, now: True)


MUTANTS: dict[str, tuple[Patch, int, str]] = {
    "a clock is believed at the start": (
        believes_where_it_starts,
        0,
        "record audit/.* was forgotten .* before its time",
    ),
    "a clock is always believed": (believes_what_it_sees, 8, "record audit/.* was forgotten .* before its time"),
    "runs go by the plain clock": (keeps_the_audit, 10, "run .* was forgotten .* before its time"),
    "logs go by the plain clock": (prunes_logs_by_the_plain_clock, 0, "record log/.* was forgotten .* before its time"),
    "figures go by the plain clock": (prunes_tallies_by_the_plain_clock, 0, "record tally/.* was forgotten .* before"),
}
"""How each breaks the rule, the first seed that is tried, and what is said of it."""


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 6), marks=pytest.mark.proof)])
def test_nodes_that_start_while_the_clock_is_ahead_forget_nothing(seeds: range) -> None:
    for seed in seeds:
        simulate(seed)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_plain_clock_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    breaks, first, said = MUTANTS[name]
    breaks(monkeypatch)
    assert any(said_of(seed, said) for seed in range(first, SEEDS_MAX))
