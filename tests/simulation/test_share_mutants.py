"""Worlds with more of one thing each hold every invariant: workers who are away for minutes, a host that is dead at
times, keys that share a queue. Each rule of that is broken on purpose, and the simulator says which one it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import SECOND
from horarium.operations.settling import claiming
from horarium.policies import CatchUpPolicy
from horarium.rules import serving
from horarium.rules.fairness import take_turns
from horarium.rules.holds import kept_back
from horarium.testing.simulate import simulate
from horarium.testing.simulate.workload import SHARES
from tests.simulation.naming import said_of

pytestmark = pytest.mark.slow

SEEDS_MAX = 60
ABSENCES = "horarium.operations.settling.absences"
Patch = Callable[[pytest.MonkeyPatch], None]


def performs_all_that_waited(patch: pytest.MonkeyPatch) -> None:
    async def none(*given: Any) -> list[Any]:
        return []

    patch.setattr("horarium.operations.settling.claiming.missed_by_absence", none)


def calls_a_moment_an_absence(patch: pytest.MonkeyPatch) -> None:
    for module in (ABSENCES, "horarium.rules.serving", "horarium.services.alerts.troubles"):
        patch.setattr(f"{module}.UNSERVED_AFTER", 8 * SECOND)


def calls_what_is_late_missed(patch: pytest.MonkeyPatch) -> None:
    async def served(store: Any, queues: Any, now: int) -> dict[str, int]:
        return dict.fromkeys(queues, now)

    patch.setattr(f"{ABSENCES}._served", served)


def misses_the_newest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(f"{ABSENCES}.kept_from", lambda job, newest, served_at: served_at)


def wants_one_of_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(serving, "policy_of", lambda job: CatchUpPolicy.LATEST)


def lifts_nothing(patch: pytest.MonkeyPatch) -> None:
    async def answered(*given: Any) -> None:
        return None

    patch.setattr("horarium.services.alerts.breaker.Breaker._answered", answered)


def holds_every_host(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("horarium.rules.holds.is_at", lambda scope, host: host is not None)


def costs_an_attempt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claiming, "kept_back", lambda run, *given: replace(kept_back(run, *given), attempt=run.attempt))


def never_opens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("horarium.services.alerts.breaker.failures_in_a_row", lambda streaks, now: 0)


def no_turn_follows_another(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("horarium.rules.fairness.STEP", 0)


def comes_after_all_that_wait(patch: pytest.MonkeyPatch) -> None:
    def taken(runs: Any, firsts: Any, *given: Any) -> Any:
        return take_turns(runs, dict.fromkeys(firsts), *given)

    patch.setattr("horarium.operations.settling.turns.take_turns", taken)


MUTANTS: dict[str, tuple[str, Patch, int, str]] = {
    "what waited for a worker runs": ("away", performs_all_that_waited, 6, "begins beside"),
    "a worker away for seconds has missed": ("away", calls_a_moment_an_absence, 1, "though workers served"),
    "all that is late was missed": ("away", calls_what_is_late_missed, 10, "though workers served"),
    "the latest is missed too": ("away", misses_the_newest, 0, "wants the latest that it missed"),
    "one of all runs": ("away", wants_one_of_all, 5, "wants all that it missed"),
    "a probe that is answered lifts nothing": ("hosts", lifts_nothing, 0, "waits for a host that has answered"),
    "a hold of one host holds another": ("hosts", holds_every_host, 16, "asks a host that is well .* late"),
    "a run that is kept back loses an attempt": ("hosts", costs_an_attempt, 0, "attempt 3 of 2"),
    "a dead host is asked on and on": ("hosts", never_opens, 1, "asks a dead host"),
    "the turn is always that of the first": ("fair", no_turn_follows_another, 6, "of others are claimed"),
    "a key comes after all that wait": ("fair", comes_after_all_that_wait, 6, "of others are claimed"),
}
"""The share of a world, how each breaks a rule of it, the first seed that is tried, and what is said of it."""
WORLDS = {"away": (range(6, 8), 300), "hosts": (range(4, 7), 500), "fair": (range(6, 7), 600)}
"""The seeds of each, and how many runs they have at least."""


@pytest.mark.parametrize("share", WORLDS)
def test_worlds_hold_every_invariant(monkeypatch: pytest.MonkeyPatch, share: str) -> None:
    monkeypatch.setitem(SHARES, share, 0.9)
    seeds, runs = WORLDS[share]
    assert sum(simulate(seed).runs for seed in seeds) > runs


@pytest.mark.proof
@pytest.mark.parametrize("first", range(100, 200, 25))
@pytest.mark.parametrize("share", WORLDS)
def test_more_of_these_worlds_hold_every_invariant(monkeypatch: pytest.MonkeyPatch, share: str, first: int) -> None:
    monkeypatch.setitem(SHARES, share, 0.9)
    for seed in range(first, first + 25):
        simulate(seed)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    share, breaks, first, said = MUTANTS[name]
    monkeypatch.setitem(SHARES, share, 0.9)
    breaks(monkeypatch)
    assert any(said_of(seed, said) for seed in range(first, SEEDS_MAX))
