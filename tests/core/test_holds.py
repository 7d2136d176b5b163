"""Holds as pure rules: what they lie over, when they are in force, and what becomes of runs and fire times."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from horarium.clock import DAY, HOUR, SECOND, Instant, to_text
from horarium.model import Disposition, EventKind, HttpTarget, Job, QueueTarget, Run, State
from horarium.model.holds import HeldMissed, Hold, HoldRepeat, HoldScope, Probing
from horarium.policies import CatchUp, CatchUpPolicy, Overlap
from horarium.rules.editing import edit, pause, withdraw_ahead
from horarium.rules.holds import (
    FOREVER,
    InForce,
    JobHold,
    Skipped,
    Stretch,
    brought_back,
    covers_job,
    covers_run,
    everything_until,
    held_queues,
    hold_on,
    job_hold,
    kept_back,
    next_begin,
    skipped_at_claim,
    stretch_at,
    stretches,
)
from horarium.rules.planning import next_fire, plan, timed
from horarium.rules.reconciling import reconcile
from horarium.rules.windows import next_in_window
from horarium.testing.values import NOW, a_job, a_run

EVERYTHING = HoldScope(all=True)


def a_hold(begins_at: Instant = NOW, ends_at: Instant | None = None, **fields: Any) -> Hold:
    given = {"id": "h", "scope": EVERYTHING, "reason": "moving", "created_at": NOW, **fields}
    return Hold(begins_at=begins_at, ends_at=ends_at, **given)


def each_second(**fields: Any) -> Job:
    trigger = {"type": "interval", "every_seconds": 1, "anchor": to_text(NOW)}
    job = a_job(trigger=trigger, planned_until=NOW, anchor_at=NOW, **fields)
    return replace(job, next_fire_at=next_fire(job, NOW))


# ---- when


def test_a_hold_is_in_force_from_its_first_to_its_last_instant() -> None:
    hold = a_hold(NOW, NOW + HOUR)
    assert stretch_at(hold, NOW - 1) is None
    assert stretch_at(hold, NOW) == stretch_at(hold, NOW + HOUR - 1) == Stretch(NOW, NOW + HOUR)
    assert stretch_at(hold, NOW + HOUR) is None


def test_a_lifted_hold_is_over_and_one_without_an_end_is_not() -> None:
    assert stretch_at(a_hold(), NOW + 400 * DAY) == Stretch(NOW, FOREVER)
    lifted = a_hold(lifted_at=NOW + HOUR)
    assert stretch_at(lifted, NOW + HOUR - 1) == Stretch(NOW, NOW + HOUR)
    assert stretch_at(lifted, NOW + HOUR) is None


DAILY = {"type": "interval", "every_seconds": 86_400, "anchor": to_text(NOW)}


@given(st.integers(0, 20 * DAY), st.integers(1, 3 * 86_400))
def test_a_repeated_hold_is_in_force_within_its_stretches(offset: int, seconds: int) -> None:
    hold = a_hold(NOW, NOW + 15 * DAY, repeat=HoldRepeat(DAILY, seconds))
    at = NOW + offset
    fires = [NOW + number * DAY for number in range(25)]
    expected = at < NOW + 15 * DAY and any(fire <= at < fire + seconds * SECOND for fire in fires)
    stretch = stretch_at(hold, at)
    assert (stretch is not None) is expected
    if stretch is not None:
        assert stretch.begins_at <= at < stretch.ends_at
        assert stretch.ends_at == NOW + 15 * DAY or stretch_at(hold, stretch.ends_at) is None
        assert any(each.begins_at <= at < each.ends_at for each in stretches(hold, at - 1, at))
    begin = next_begin(hold, at)
    assert begin is None or (begin > at and stretch_at(hold, begin) is not None)


# ---- over what


@pytest.mark.parametrize(
    ("scope", "covered"),
    [
        (HoldScope(all=True), True),
        (HoldScope(job="job"), True),
        (HoldScope(job="jo"), False),
        (HoldScope(labels={"a": "b"}), True),
        (HoldScope(labels={"a": "b", "c": "d"}), False),
        (HoldScope(queue="q"), True),
        (HoldScope(queue="pull/q"), True),
        (HoldScope(queue="p"), False),
        (HoldScope(host="q"), False),
    ],
)
def test_a_scope_covers_a_job_and_its_runs_alike(scope: HoldScope, covered: bool) -> None:
    job = a_job(name="job", target=QueueTarget(queue="q"), labels={"a": "b", "x": "y"})
    run = a_run(job="job", job_id=job.id, queue="pull/q")
    assert covers_job(scope, job) is covers_run(scope, run, job) is covered


@pytest.mark.parametrize(
    ("host", "covered"),
    [("api.example.com", True), ("api.example.com:443", True), ("api.example.com:8443", False), ("example.com", False)],
)
def test_a_host_is_meant_with_every_port_or_with_one(host: str, covered: bool) -> None:
    job = a_job(target=HttpTarget(url="https://API.example.com/x"))
    assert covers_job(HoldScope(host=host), job) is covered


def test_people_are_told_under_a_hold_on_everything() -> None:
    assert not covers_run(EVERYTHING, a_run(queue="notify"), None)
    free, until = held_queues([a_hold(ends_at=NOW + HOUR)], ["notify", "http", "pull/q"], NOW)
    assert (free, until) == (["notify"], NOW + HOUR)


def test_only_holds_over_whole_queues_leave_queues_out() -> None:
    holds = [a_hold(scope=HoldScope(job="j")), a_hold(scope=HoldScope(queue="q"))]
    assert held_queues(holds, ["pull/q", "pull/p"], NOW) == (["pull/p"], FOREVER)
    assert everything_until(holds, NOW) is None
    assert everything_until([*holds, a_hold(ends_at=NOW + SECOND)], NOW) == NOW + SECOND


# ---- runs


def claimed(**fields: Any) -> Run:
    return replace(a_run(due_at=NOW), state=State.RUNNING, attempt=1, token=3, worker="w", started_at=NOW, **fields)


def test_a_held_run_loses_no_attempt_and_no_time_to_start() -> None:
    run = claimed(start_by=NOW + 30 * SECOND)
    waiting = kept_back(run, InForce(a_hold(), Stretch(NOW, NOW + HOUR)), NOW)
    assert (waiting.state, waiting.attempt, waiting.token) == (State.PENDING, 0, 3)
    assert (waiting.due_at, waiting.start_by) == (NOW + HOUR, NOW + HOUR + 30 * SECOND)
    assert "moving" in waiting.history[-1].message


def test_the_history_of_a_run_that_waits_long_has_one_line_of_it() -> None:
    held = InForce(a_hold(), Stretch(NOW, FOREVER))
    waiting = kept_back(claimed(), held, NOW)
    again = kept_back(replace(waiting, state=State.RUNNING, attempt=1), held, NOW + DAY)
    assert waiting.due_at == NOW + DAY, "it is looked at again after a day"
    assert sum(event.kind is EventKind.HELD for event in again.history) == 1


def test_a_run_comes_back_once_its_hold_is_lifted() -> None:
    run = claimed(start_by=NOW + 30 * SECOND)
    waiting = kept_back(run, InForce(a_hold(), Stretch(NOW, NOW + HOUR)), NOW)
    back = brought_back(waiting, NOW + 60 * SECOND)
    assert back is not None
    assert (back.due_at, back.start_by) == (NOW, NOW + 90 * SECOND), "at its place, with all of its limit"
    assert brought_back(back, NOW + 61 * SECOND) is None
    assert brought_back(a_run(due_at=NOW + HOUR), NOW) is None, "it waits for no hold"


def test_a_run_that_was_claimed_ahead_of_a_hold_is_not_brought_back_before_that_begins() -> None:
    job, due_at = each_second(), NOW + SECOND
    hold = a_hold(NOW + SECOND // 2, NOW + HOUR)
    run = replace(claimed(fire_at=due_at), job=job.name, job_id=job.id, queue=job.queue, due_at=due_at)
    waiting = kept_back(run, InForce(hold, Stretch(NOW + SECOND // 2, NOW + HOUR)), due_at)
    assert reconcile(job, [waiting], NOW, holds=[hold]) is None
    assert reconcile(job, [waiting], NOW, holds=[]) is not None, "it was lifted"


def test_of_several_holds_the_one_that_ends_last_counts() -> None:
    holds = [a_hold(ends_at=NOW + HOUR), a_hold(ends_at=NOW + 2 * HOUR), a_hold(NOW + HOUR, NOW + 3 * HOUR)]
    held = hold_on(holds, a_run(), None, NOW)
    assert held is not None
    assert held.stretch.ends_at == NOW + 2 * HOUR


def test_a_run_planned_ahead_into_a_skipped_stretch_ends_as_held_also_after_it() -> None:
    job = each_second()
    run = replace(claimed(fire_at=NOW + SECOND), job=job.name, job_id=job.id)
    hold = a_hold(NOW, NOW + HOUR, missed=HeldMissed.SKIP)
    ended = skipped_at_claim(run, job, [hold], NOW + 2 * HOUR)
    assert ended is not None
    assert (ended.state, ended.disposition) == (State.CANCELLED, Disposition.HELD)
    assert skipped_at_claim(replace(run, fire_at=NOW - 1), job, [hold], NOW) is None, "its fire time came before"
    assert skipped_at_claim(replace(run, attempt=2), job, [hold], NOW) is None, "it has begun before"
    assert skipped_at_claim(run, job, [a_hold(NOW, NOW + HOUR)], NOW) is None, "the hold catches up"


def test_what_waits_for_a_breaker_waits_for_its_next_probe() -> None:
    hold = a_hold(scope=HoldScope(host="h"), probing=Probing(next_at=NOW + 60 * SECOND, seconds=60))
    held = InForce(hold, Stretch(NOW, FOREVER))
    assert kept_back(claimed(), held, NOW).due_at == NOW + 60 * SECOND
    assert kept_back(claimed(), held, NOW + 61 * SECOND).due_at == NOW + 121 * SECOND
    assert kept_back(claimed(), held, NOW, 2).due_at == NOW + 180 * SECOND
    assert kept_back(claimed(), held, NOW, 61).due_at == NOW + 120 * SECOND


# ---- plans


def planned_at(job: Job, now: Instant, *holds: Hold) -> tuple[Job, list[Run]]:
    planned = plan(job, [], now, held=job_hold(holds, job, now))
    return planned.job, list(planned.runs)


def test_under_a_hold_the_cursor_stays_and_nothing_is_planned() -> None:
    job, runs = planned_at(each_second(), NOW + 5 * SECOND, a_hold(NOW, NOW + 10 * SECOND))
    assert (runs, job.planned_until) == ([], NOW)
    assert job.held_until == job.next_fire_at == NOW + 10 * SECOND
    assert timed(job).next_fire_at == NOW + SECOND


@pytest.mark.parametrize(("policy", "ran"), [("all", 10), ("latest", 1), ("none", 2)])
def test_what_was_held_is_caught_up_by_the_policy_of_the_job(policy: str, ran: int) -> None:
    hold = a_hold(NOW, NOW + 10 * SECOND)
    held, _ = planned_at(each_second(catch_up=CatchUp(CatchUpPolicy(policy))), NOW + SECOND, hold)
    job, runs = planned_at(held, NOW + 10 * SECOND, hold)
    assert sum(run.state is State.PENDING for run in runs) == ran
    assert sum(run.fires for run in runs) == 10
    assert job.held_until is None


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(-9, 20), st.booleans()), max_size=4),
    st.integers(1, 80),
    st.sampled_from(list(CatchUpPolicy)),
    st.sampled_from([Overlap.ALLOW, Overlap.TERMINATE_OTHER]),
)
def test_each_fire_time_has_one_account_and_skipped_ones_are_held(
    spans: list[tuple[int, int, bool]], end: int, policy: CatchUpPolicy, overlap: Overlap
) -> None:
    """A hold of negative length was lifted before it began."""
    holds = [
        a_hold(
            NOW + begin * SECOND,
            NOW + (begin + abs(length)) * SECOND,
            lifted_at=NOW + (begin + length) * SECOND,
            missed=HeldMissed.SKIP if skip else HeldMissed.CATCH_UP,
        )
        for begin, length, skip in spans
    ]
    job, rows = each_second(catch_up=CatchUp(policy), overlap=overlap), list[Run]()
    for second in range(1, end + 1):
        job, runs = planned_at(job, NOW + second * SECOND, *holds)
        rows += runs
    job, runs = planned_at(job, NOW + 200 * SECOND, *holds)
    rows += runs
    asked = () if job.missed is None else job.missed.stretches
    covered = [fire for each in asked for fire in range(each.first, each.last + 1, SECOND)]
    for run in rows:
        last = run.fire_at if run.last_fire_at is None else run.last_fire_at
        fires = list(range(run.fire_at, last + 1, SECOND))
        assert len(fires) == run.fires
        covered += fires
        skipped = [any(hold.missed is HeldMissed.SKIP and stretch_at(hold, fire) for hold in holds) for fire in fires]
        assert all(skipped) if run.disposition is Disposition.HELD else not any(skipped)
    assert sorted(covered) == [NOW + second * SECOND for second in range(1, 201)]


def test_nothing_is_planned_ahead_into_a_hold_that_is_to_come() -> None:
    job = each_second()
    hold = a_hold(NOW + 5 * SECOND)
    planned = plan(job, [], NOW, 60 * SECOND, held=job_hold([hold], job, NOW))
    assert [run.fire_at for run in planned.runs] == [NOW + second * SECOND for second in range(1, 5)]


def test_what_was_planned_ahead_is_withdrawn_and_planned_again_later() -> None:
    planned = plan(each_second(fires_max=100), [], NOW, 10 * SECOND)
    back = withdraw_ahead(planned.job, planned.runs, NOW + 4 * SECOND, NOW)
    assert [run.fire_at for run in back.withdrawals] == [NOW + second * SECOND for second in range(5, 11)]
    assert (back.job.planned_until, back.job.fires_count) == (NOW + 4 * SECOND, 4)


def test_a_hold_takes_back_nothing_of_the_rule_before_an_edit_whose_clock_was_ahead() -> None:
    planned = plan(each_second(), [], NOW, 3 * SECOND)
    once = replace(planned.job, trigger={"type": "once", "at": "2199-01-01T00:00:00Z"})
    edited = edit(planned.job, once, planned.runs, NOW + 2 * SECOND)
    assert [run.fire_at for run in edited.withdrawals] == [NOW + 3 * SECOND]
    kept = [run for run in planned.runs if run not in edited.withdrawals]
    back = withdraw_ahead(edited.job, kept, NOW + SECOND, NOW + SECOND)
    assert (back.withdrawals, back.job.planned_until) == ((), NOW + 2 * SECOND)


def test_a_change_under_a_hold_loses_no_fire_time() -> None:
    held, _ = planned_at(each_second(), NOW + SECOND, a_hold())
    changed = edit(held, replace(held, priority=3), [], NOW + 5 * SECOND)
    assert (changed.job.planned_until, changed.job.next_fire_at, changed.job.held_until) == (NOW, NOW + SECOND, None)
    for ended in (
        pause(held, [], NOW + 5 * SECOND, None),
        edit(held, replace(held, trigger={"type": "once", "at": "2199-01-01T00:00:00Z"}), [], NOW + 5 * SECOND),
    ):
        (row,) = ended.runs
        assert (row.disposition, row.fires, ended.job.held_until) == (Disposition.HELD, 5, None)


def test_a_plan_that_makes_the_last_run_has_no_row_for_a_later_stretch() -> None:
    job = replace(a_job(fires_max=1), catch_up=CatchUp(CatchUpPolicy.ALL))
    first = next_in_window(job, NOW)
    assert first is not None
    end = first + 10 * HOUR
    skips = JobHold(skipped=(Skipped(first + 1, end, "moving"),))
    planned = plan(job, [], end, held=skips)
    assert [run.fire_at for run in planned.runs] == [first]
    assert planned.job.planned_until == first
    assert [run.fires for run in plan(job, [], end - 1, held=skips).runs] == [599, 1], "the cursor passes them"
