"""The simulator finds nothing in Horarium, and finds what is wrong with mutants of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import SECOND, Instant
from horarium.model import Job, Plan, Run, RunChange, State
from horarium.operations.jobs.grouping import Group
from horarium.operations.settling.following import Following
from horarium.ports import Store
from horarium.rules import following as rules
from horarium.services.loop.steady import SteadyScale
from horarium.services.performing.dispatcher import Dispatcher
from horarium.stores.memory import MemoryDatabase, MemoryStore
from horarium.testing.simulate import Violation, simulate
from horarium.testing.simulate.loop import NodeClock
from horarium.testing.simulate.workload import SHARES
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

SEEDS_TWICE = (0, 1, 7)
SEEDS = range(1_000, 1_010)
MORE_SEEDS = range(1_010, 1_410)
AT_ONE_TIME = 50
A_FEW = 10
"""Worlds of one test: several processes share the tests."""
SEEDS_FOR_A_MUTANT = range(200)
KEPT = Path(__file__).with_name("seeds.txt")


def kept_seeds() -> list[int]:
    return [int(line.split("#")[0]) for line in KEPT.read_text().splitlines() if line.split("#")[0].strip()]


def test_the_same_seed_gives_the_same_trace_whatever_the_order_of_hashes() -> None:
    """In another process they are simulated in the reverse order: what one world leaves behind moves no other."""
    traces = {seed: simulate(seed).trace for seed in SEEDS_TWICE}
    script = f"from horarium.testing.simulate import simulate; print([simulate(s).trace for s in {SEEDS_TWICE[::-1]}])"
    other = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    ).stdout
    assert other == f"{[traces[seed] for seed in SEEDS_TWICE[::-1]]}\n"


@pytest.mark.parametrize("first", SEEDS[::A_FEW])
def test_many_worlds_hold_every_invariant_and_no_two_are_the_same(first: int) -> None:
    reports = [simulate(seed) for seed in range(first, first + A_FEW)]
    assert len({report.trace for report in reports}) == len(reports)
    assert sum(report.runs for report in reports) > 100
    assert sum(report.fires for report in reports) > 100


@pytest.mark.proof
@pytest.mark.parametrize("first", MORE_SEEDS[::AT_ONE_TIME])
def test_more_worlds_hold_every_invariant(first: int) -> None:
    for seed in range(first, first + AT_ONE_TIME):
        simulate(seed)


def test_seeds_that_once_found_something_find_nothing_any_more() -> None:
    for seed in kept_seeds():
        simulate(seed)


def test_worlds_with_a_broker_hold_every_invariant() -> None:
    reports = [simulate(seed, on_bus=0.6) for seed in range(6)]
    assert sum(report.runs for report in reports) > 100


def test_a_run_that_is_handed_over_after_its_worker_began_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unconditional(run: Run, token: int, state: State, held: bool | None = None) -> RunChange:
        return RunChange(run, token, state)

    monkeypatch.setattr("horarium.services.buses.handing_over.RunChange", unconditional)
    with pytest.raises(Violation, match="it was forgotten that its worker had begun"):
        _ = [simulate(seed, on_bus=0.9) for seed in SEEDS_FOR_A_MUTANT]


class IgnoresTokens(MemoryStore):
    """Writes whatever a worker says, whoever holds the run by now."""

    async def settle_runs(self, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
        return await super().settle_runs([self._as_stored(change) for change in changes], steady)

    def _as_stored(self, change: RunChange) -> RunChange:
        stored = self._space.runs.get(change.run.id)
        return change if stored is None else replace(change, token=stored.token, state=stored.state, held=None)


class IgnoresVersions(MemoryStore):
    """Plans without compare-and-set."""

    async def commit_plans(self, plans: Sequence[Plan], steady: Instant) -> list[bool]:
        return await super().commit_plans([self._as_stored(plan) for plan in plans], steady)

    def _as_stored(self, plan: Plan) -> Plan:
        stored = self._space.jobs.get(plan.job.id)
        return plan if stored is None else replace(plan, job=replace(plan.job, version=stored.version))


class LosesRuns(MemoryStore):
    """Moves the cursor, and forgets the last run of each plan."""

    async def commit_plans(self, plans: Sequence[Plan], steady: Instant) -> list[bool]:
        return await super().commit_plans([replace(plan, runs=plan.runs[:-1]) for plan in plans], steady)


class ForgetsRecords(MemoryStore):
    """A store that carries plans out without the audit entries that they bring along."""

    async def commit_plans(self, plans: Sequence[Plan], steady: Instant) -> list[bool]:
        return await super().commit_plans([replace(plan, records=()) for plan in plans], steady)


class WritesRecordsFirst(MemoryStore):
    """A store that writes audit entries before it knows whether the change holds."""

    async def settle_runs(self, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
        for change in changes:
            self._space.beside.add(change.records)
        return await super().settle_runs(changes, steady)


class NeverRescues(MemoryStore):
    """Nothing is ever overdue."""

    async def overdue_runs(self, now: Instant, limit: int, steady: Instant) -> Any:
        return [], None


@pytest.mark.parametrize(
    ("mutant", "likely"),
    [
        (IgnoresTokens, 0), (IgnoresVersions, 2), (LosesRuns, 0), (ForgetsRecords, 1), (WritesRecordsFirst, 0),
        (NeverRescues, 5),
    ],
)  # fmt: skip
def test_a_mutant_is_caught(mutant: Callable[..., MemoryStore], likely: int) -> None:
    assert_caught(mutant, likely)


def test_a_claim_that_knows_no_turn_and_no_limit_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horarium.stores.memory.store._Claim._held_back", lambda claim, run: False)
    assert_caught(MemoryStore)


def test_a_dispatcher_that_does_not_wait_for_the_instant_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Dispatcher.take

    def ahead(self: Dispatcher, runs: Any, jobs: Any, now: Instant, *more: Any) -> None:
        take(self, runs, jobs, now + 2 * SECOND, *more)

    monkeypatch.setattr(Dispatcher, "take", ahead)
    monkeypatch.setattr("horarium.services.performing.performing._may_begin", lambda *_: True)
    assert_caught(MemoryStore)


def test_a_dispatcher_that_forgets_claims_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(dispatcher: Dispatcher, now: Instant) -> None:
        waiting = dispatcher._performing.waiting
        for ready in waiting.due(now):
            waiting.release(ready.claim)

    monkeypatch.setattr(Dispatcher, "_ask_about_held", forget)
    assert_caught(MemoryStore)


def test_worlds_of_fixed_delays_hold_every_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horarium.testing.simulate.workload.SHARES", {**SHARES, "from_end": 0.7, "buffer_max": 0.3})
    assert sum(simulate(seed).runs for seed in range(A_FEW)) > 100


STORMS = {**SHARES, "storms": 0.6}


def test_worlds_of_storms_hold_every_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horarium.testing.simulate.workload.SHARES", STORMS)
    assert sum(simulate(seed).runs for seed in range(4)) > 200


TWICE = {**SHARES, "twice": 0.4}


@pytest.mark.parametrize(
    ("seeds", "on_bus"),
    [
        pytest.param(range(5), 0.0, id="a-few"),
        pytest.param(range(2), 0.6, id="a-few-on-a-bus"),
        pytest.param(range(5, 20), 0.0, id="more", marks=pytest.mark.proof),
        pytest.param(range(2, 6), 0.6, id="more-on-a-bus", marks=pytest.mark.proof),
    ],
)
def test_worlds_whose_clock_steps_twice_within_a_moment_hold_every_invariant(
    monkeypatch: pytest.MonkeyPatch, seeds: range, on_bus: float
) -> None:
    monkeypatch.setattr("horarium.testing.simulate.cluster.SHARES", TWICE)
    runs = [simulate(seed, on_bus=on_bus).runs for seed in seeds]
    assert sum(runs) > 10 * len(seeds)


def test_leases_by_the_wall_clock_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horarium.testing.simulate.cluster.SHARES", TWICE)
    monkeypatch.setattr(NodeClock, "steady", NodeClock.now)
    assert_caught(MemoryStore, 29)


def test_nodes_that_do_not_follow_the_steady_scale_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stay(self: SteadyScale) -> None:
        self.is_known = True

    monkeypatch.setattr("horarium.testing.simulate.cluster.SHARES", TWICE)
    monkeypatch.setattr(SteadyScale, "follow", stay)
    assert_caught(MemoryStore, 2)


def test_ends_of_runs_made_together_that_nothing_follows_from_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Group.fit

    def forget(self: Group, planned: Plan) -> Plan | None:
        fit = honest(self, planned)
        return fit and replace(fit, runs=tuple(run for run in fit.runs if run.job_id is not None))

    monkeypatch.setattr("horarium.testing.simulate.workload.SHARES", STORMS)
    monkeypatch.setattr(Group, "fit", forget)
    assert_caught(MemoryStore, 3)


def test_a_planner_that_knows_no_end_of_the_last_run_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horarium.testing.simulate.workload.SHARES", {**SHARES, "from_end": 0.7, "buffer_max": 0.3})

    async def nothing(store: Store, jobs: Sequence[Job]) -> dict[str, Run]:
        return {}

    monkeypatch.setattr("horarium.services.planning.planner.last_runs", nothing)
    monkeypatch.setattr("horarium.operations.jobs.changes.last_runs", nothing)
    assert_caught(MemoryStore, 6)


def assert_caught(make_store: Callable[..., MemoryStore], *likely: int) -> None:
    """`likely`: seeds that saw it before, which are tried first. A mutant that only raises errors is none."""

    def make(database: MemoryDatabase) -> MemoryStore:
        return make_store(database=database)

    def caught(seed: int) -> bool:
        try:
            simulate(seed, make_store=make)
        except Violation as violation:
            said = str(violation).partition("\n")[0]
            return f"seed {seed}, step" in said and ": logged: " not in said
        return False

    assert any(caught(seed) for seed in (*likely, *SEEDS_FOR_A_MUTANT))


class LosesFollowUps(MemoryStore):
    """Writes an end without what follows from it."""

    async def settle_runs(self, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
        return await super().settle_runs([replace(change, follow_ups=()) for change in changes], steady)


def test_an_end_without_what_follows_is_caught() -> None:
    assert_caught(LosesFollowUps)


@pytest.mark.parametrize("forgetful", ["ready", "plans"])
def test_a_way_of_writing_that_forgets_what_follows_is_caught(monkeypatch: pytest.MonkeyPatch, forgetful: str) -> None:
    async def as_it_is(self: Any, given: Any, *rest: Any) -> Any:
        return given

    monkeypatch.setattr(Following, forgetful, as_it_is)
    assert_caught(MemoryStore)


def test_a_follow_up_that_forgets_its_key_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    follow = rules.follow

    def keyless(job: Any, change: RunChange, now: Instant, earlier: Any = ()) -> RunChange:
        after = follow(job, change, now, earlier)
        again = tuple(
            replace(run, id=run.id[:-4] + "0000", unique_key=f"{run.unique_key}?") for run in after.follow_ups
        )
        return replace(after, follow_ups=(*after.follow_ups, *again))

    monkeypatch.setattr("horarium.operations.settling.following.follow", keyless)
    assert_caught(MemoryStore)
