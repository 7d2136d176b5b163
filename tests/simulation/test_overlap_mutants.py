"""Each rule about runs of one job beside each other is broken on purpose, and the simulator says which one it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import Job, QueueTarget, Run, RunChange, State
from horarium.operations.jobs.grouping import Group, Reach
from horarium.policies import Overlap
from horarium.rules import planning, reconciling
from horarium.stores.memory.store import _Claim
from horarium.testing.simulate import simulate
from horarium.testing.simulate.loop import Time
from horarium.testing.simulate.trace import Trace
from horarium.testing.simulate.watch import Books, WatchedSpace
from horarium.testing.simulate.workload import SHARES
from tests.simulation.naming import said_of

pytestmark = pytest.mark.slow

SEEDS_MAX = 200
RACES = {**SHARES, "races": 0.7}
Patch = Callable[[pytest.MonkeyPatch], None]


def has_room_for(policy: Overlap, runs: int, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planning, "_UNFINISHED_MAX", {**planning._UNFINISHED_MAX, policy: runs})


def takes_no_turns(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planning, "_SERIAL", frozenset())


def ends_all_but_one(patch: pytest.MonkeyPatch) -> None:
    honest = planning._end_others

    def forget(job: Job, unfinished: Sequence[Run], now: Instant) -> list[RunChange]:
        return honest(job, unfinished, now)[1:]

    patch.setattr(planning, "_end_others", forget)


def ends_the_newer(patch: pytest.MonkeyPatch) -> None:
    def superseded(job: Job, unfinished: Sequence[Run], now: Instant) -> set[str]:
        going_on = [run for run in unfinished if run.state is not State.CANCELLING]
        if job.overlap not in planning.ENDS_OTHERS or not going_on:
            return set()
        oldest = min(going_on, key=lambda run: (run.created_at, run.fire_at, run.id))
        return {run.id for run in unfinished if run is not oldest}

    patch.setattr("horarium.testing.simulate.workload.SHARES", RACES)
    patch.setattr(reconciling, "_superseded", superseded)


def ends_nothing_later(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("horarium.testing.simulate.workload.SHARES", RACES)
    patch.setattr(reconciling, "_superseded", lambda job, unfinished, now: frozenset())


def says_no_reason(patch: pytest.MonkeyPatch) -> None:
    honest = planning.dropped_run

    def silent(*given: Any) -> Run:
        return replace(honest(*given), error=None)

    patch.setattr(planning, "dropped_run", silent)


def forgets_the_buffer_max(patch: pytest.MonkeyPatch) -> None:
    honest = planning.apply_overlap

    def boundless(job: Job, *given: Any) -> Any:
        return honest(replace(job, buffer_max=None), *given)

    patch.setattr("horarium.testing.simulate.workload.SHARES", {**SHARES, "buffer_max": 0.5})
    patch.setattr(planning, "apply_overlap", boundless)


def does_not_see_its_group(patch: pytest.MonkeyPatch) -> None:
    def seen(self: Group, reach: Reach) -> list[Run]:
        return [] if reach is Reach.NONE else list(self.unfinished[reach])

    patch.setattr("horarium.testing.simulate.workload.SHARES", {**SHARES, "storms": 0.6})
    patch.setattr(Group, "seen", seen)


def lets_one_more_pass(patch: pytest.MonkeyPatch) -> None:
    honest = _Claim._held_back

    def held_back(self: _Claim, run: Run) -> bool:
        return honest(self, replace(run, concurrency_max=run.concurrency_max + 1))

    patch.setattr(_Claim, "_held_back", held_back)


MUTANTS: dict[str, tuple[Patch, int, str]] = {
    "skip makes a second run": (partial(has_room_for, Overlap.SKIP, 2), 8, "made under overlap skip beside"),
    "buffer_one makes a third": (
        partial(has_room_for, Overlap.BUFFER_ONE, 3),
        4,
        "made under overlap buffer_one beside",
    ),
    "buffer_one has no buffer": (partial(has_room_for, Overlap.BUFFER_ONE, 1), 8, "skipped .* though there was room"),
    "buffered runs take no turns": (takes_no_turns, 8, "buffer_one, was claimed while .* is running"),
    "not all of the others end": (ends_all_but_one, 2, "made under cancel_other while .* goes on"),
    "the newer one ends": (ends_the_newer, 12, "ended for a newer one, and there was none"),
    "what a claim changed goes on": (ends_nothing_later, 67, "goes on .* beside|and there was none"),
    "no reason is written": (says_no_reason, 0, "skipped .* without a reason"),
    "buffer_max does not count": (forgets_the_buffer_max, 19, "pending ones: buffer_max"),
    "triggers do not see each other": (does_not_see_its_group, 18, "made under cancel_other while .* goes on"),
    "a limit is exceeded by one": (lets_one_more_pass, 3, "more than . claimed under"),
}
"""How each breaks a rule, the first seed that is tried, and what is said of it."""


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 4), marks=pytest.mark.proof)])
def test_worlds_of_races_hold_every_invariant(monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    monkeypatch.setattr("horarium.testing.simulate.workload.SHARES", RACES)
    assert sum(simulate(seed).runs for seed in seeds) > 100


@pytest.mark.parametrize("was_made_since", [True, False])
def test_a_run_ends_others_where_it_was_written_since_its_job_says_so(was_made_since: bool) -> None:
    books = Books(Trace(Time(0)))
    space = WatchedSpace(books)
    job = Job(id="job", name="job", trigger={}, target=QueueTarget("q"))
    ends_others = replace(job, version=2, overlap=Overlap.CANCEL_OTHER, updated_at=400)
    older, newer = (
        Run(id=id, queue="pull/q", job_id="job", fire_at=at, due_at=at, created_at=500)
        for at, id in ((100, "older"), (200, "newer"))
    )
    space.put_job(job)
    space.add_run(older)
    if was_made_since:
        space.put_job(ends_others)
        space.add_run(newer)
    else:  # the clock went back before the edit
        space.add_run(newer)
        space.put_job(ends_others)
    assert [run.id for run in books.beside.not_asked_to_stop()] == (["older"] if was_made_since else [])


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    breaks, first, said = MUTANTS[name]
    breaks(monkeypatch)
    assert any(said_of(seed, said) for seed in range(first, SEEDS_MAX))
