"""Overrides as rules: whatever is skipped and moved, each fire time comes to exactly one end, at the right instant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from horarium.clock import SECOND, Instant, to_text
from horarium.model import Cause, Disposition, Job, Run, State
from horarium.model.overrides import Override
from horarium.policies import CatchUp, CatchUpPolicy, Overlap
from horarium.rules.editing import edit, free_instant, pause, withdraw_ahead
from horarium.rules.explaining import explain
from horarium.rules.holds import JobHold
from horarium.rules.overridden import of_fire, run_moved_to
from horarium.rules.overriding import has_begun, lift, override
from horarium.rules.planning import job_fires, next_run_at, plan, resume
from tests.core.planned import EACH, NOW, a_job, a_run, skipped
from tests.searching import tries

FIRES = [NOW + (number + 1) * EACH for number in range(12)]
END = FIRES[-1] + 20 * EACH


def test_a_skipped_fire_time_runs_not_and_says_why() -> None:
    job = override(a_job(), Override(fire_at=FIRES[1], by="ann", reason="closed", at=NOW), None, NOW).job
    assert job_fires(job, NOW, 3) == [FIRES[0], FIRES[2], FIRES[3]]
    job = plan(job, [], FIRES[0]).job
    assert next_run_at(job) == FIRES[2], "what is shown as the next one runs"
    planned = plan(job, [], FIRES[1])
    (row,) = planned.runs
    assert (row.fire_at, row.state, row.disposition) == (FIRES[1], State.SKIPPED, Disposition.SKIPPED_OVERRIDE)
    assert row.error == "skipped by ann, because: closed"
    assert planned.job.overrides == ()


def test_the_row_of_a_skipped_fire_time_keeps_claims_of_before_void() -> None:
    job = override(a_job(), Override(fire_at=FIRES[0]), a_run(a_job(), FIRES[0], token=3), NOW).job
    assert [row.token for row in plan(job, [], FIRES[0]).runs] == [3]


def test_a_run_is_due_where_its_fire_time_was_moved_to_and_keeps_it() -> None:
    job = override(a_job(), Override(fire_at=FIRES[0], to=FIRES[2] + 1), None, NOW).job
    assert [run.fire_at for run in plan(job, [], FIRES[1]).runs] == [FIRES[1]]
    job = plan(job, [], FIRES[2]).job
    (run,) = plan(job, [], FIRES[2] + 1).runs
    assert (run.fire_at, run.due_at, run_moved_to(run)) == (FIRES[0], FIRES[2] + 1, FIRES[2] + 1)


def test_fire_times_that_are_moved_to_one_instant_are_told_as_the_runs_that_they_are() -> None:
    job = a_job()
    for fire_at in FIRES[0], FIRES[1]:
        job = override(job, Override(fire_at=fire_at, to=FIRES[2], by="ann"), None, NOW).job
    assert job_fires(job, NOW, 4) == [FIRES[2]] * 3 + [FIRES[3]]
    told = explain(job, FIRES[2], NOW, None)
    assert told.fires
    assert [told.reason.count(to_text(each)) for each in FIRES[:3]] == [1, 1, 2]
    assert told.reason.endswith("by ann, beside the fire time of its rule: it will run then")
    assert "beside" not in explain(job, FIRES[1], NOW, None).reason
    made = plan(plan(job, [], FIRES[1]).job, [], FIRES[2]).runs
    assert sorted((run.fire_at, run.due_at) for run in made) == [(fire_at, FIRES[2]) for fire_at in FIRES[:3]]


def test_a_run_may_be_moved_to_an_earlier_instant_and_is_made_once() -> None:
    job = override(a_job(), Override(fire_at=FIRES[3], to=NOW + 5), None, NOW).job
    assert job.next_fire_at == NOW + 5
    planned = plan(job, [], NOW + 5)
    assert [(run.fire_at, run.due_at) for run in planned.runs] == [(FIRES[3], NOW + 5)]
    (kept,) = planned.job.overrides
    assert kept.done
    assert has_begun(None, kept)
    later = planned.job
    for fire in FIRES[:4]:
        made = plan(later, [], fire)
        later = made.job
        assert [run.fire_at for run in made.runs] == ([] if fire == FIRES[3] else [fire])
    assert later.overrides == ()


def test_a_run_that_was_moved_ahead_is_not_withdrawn_once_it_is_due() -> None:
    job = override(a_job(), Override(fire_at=FIRES[3], to=NOW + 5), None, NOW).job
    planned = plan(job, [], NOW + 5)
    assert pause(planned.job, planned.runs, NOW + 6, None).withdrawals == ()


def test_a_moved_fire_time_that_is_skipped_with_later_ones_has_its_row() -> None:
    job = override(a_job(overlap=Overlap.SKIP), Override(fire_at=FIRES[0], to=FIRES[1] + 1), None, NOW).job
    late = replace(job, catch_up=CatchUp(CatchUpPolicy.ALL))
    rows = plan(late, [a_run(late, NOW, State.RUNNING)], FIRES[2] + 1).runs
    covered = [fire for fire in FIRES for row in rows if row.fire_at <= fire <= (row.last_fire_at or row.fire_at)]
    assert covered == FIRES[:3]


def test_a_move_to_an_instant_that_has_come_meanwhile_is_left_to_a_plan_that_knows_what_runs() -> None:
    planned = override(a_job(overlap=Overlap.SKIP), Override(fire_at=FIRES[3], to=NOW + 5), None, NOW + 6)
    assert planned.runs == ()
    assert planned.job.next_fire_at == NOW + 5
    assert skipped(plan(planned.job, [a_run(planned.job, NOW, State.RUNNING)], NOW + 6))


def test_the_row_of_a_moved_fire_time_that_overlaps_says_that_it_was_moved() -> None:
    job = override(a_job(overlap=Overlap.SKIP), Override(fire_at=FIRES[3], to=NOW + 5, by="ann"), None, NOW).job
    (row,) = plan(job, [a_run(job, NOW, State.RUNNING)], NOW + 5).runs
    assert (row.error or "").startswith("overlap: skip; 1 unfinished; moved from ")
    assert (row.error or "").endswith(" by ann")


def test_an_edit_drops_what_its_rule_yields_no_longer_and_names_it() -> None:
    job = override(a_job(), Override(fire_at=FIRES[0]), None, NOW).job
    job = override(job, Override(fire_at=FIRES[1], to=END), None, NOW).job
    wanted = replace(
        job, trigger={"type": "interval", "every_seconds": 2 * EACH // SECOND, "anchor": job.trigger["anchor"]}
    )
    edited = edit(job, wanted, [], NOW + 1).job
    assert {*edited.overrides_dropped, *(each.fire_at for each in edited.overrides)} == {FIRES[0], FIRES[1]}
    assert len(edited.overrides_dropped) == 1
    assert edit(edited, replace(edited, priority=3), [], NOW + 2).job.overrides_dropped == ()


@st.composite
def stories(draw: st.DrawFn) -> tuple[Job, list[tuple[Instant, int, int | None]]]:
    """A job, and at some instants a word about one of its fire times: skip (None), move to, or lift (-1)."""
    job = a_job(
        overlap=draw(st.sampled_from([Overlap.ALLOW, Overlap.BUFFER_ALL, Overlap.BUFFER_ONE, Overlap.SKIP])),
        catch_up=CatchUp(draw(st.sampled_from([CatchUpPolicy.ALL, CatchUpPolicy.LATEST]))),
    )
    at = st.integers(NOW, END)
    word = st.one_of(st.none(), st.just(-1), st.integers(NOW, END))
    told = draw(st.lists(st.tuples(at, st.integers(0, len(FIRES) - 1), word), max_size=8))
    steps = draw(st.lists(at, max_size=12))
    return job, sorted([*told, *((step, -1, None) for step in steps)], key=lambda each: each[0])


@given(stories())
@tries(300)
def test_each_fire_time_comes_to_one_end(story: tuple[Job, list[tuple[Instant, int, int | None]]]) -> None:
    job, told = story
    ends: dict[Instant, Run] = {}
    covered: list[Instant] = []
    expected: dict[Instant, Instant | None] = {fire: fire for fire in FIRES}
    endless = [a_run(job, NOW, State.RUNNING)] if job.overlap is not Overlap.ALLOW else []

    def take(runs: tuple[Run, ...]) -> None:
        for run in runs:
            assert run.fire_at not in ends, "no fire time has two rows"
            ends[run.fire_at] = run
            covered.extend(f for f in FIRES if run.fire_at <= f <= (run.last_fire_at or run.fire_at))

    for now, number, word in [*told, (END, -1, None)]:
        unfinished = [*endless, *(run for run in ends.values() if run.state is State.PENDING)] if endless else []
        planned = plan(job, unfinished, now)
        take(planned.runs)
        job = planned.job
        if number < 0:
            continue
        fire, before = FIRES[number], of_fire(job, FIRES[number])
        if fire in covered or (before is None and fire <= now) or has_begun(None, before):
            continue
        if word == -1:
            if before is not None:
                planned = lift(job, fire, None, [], now)
                take(planned.runs)
                job, expected[fire] = planned.job, fire
        elif word is None or word > now:
            planned = override(job, Override(fire_at=fire, to=word), None, now)
            take(planned.runs)
            job, expected[fire] = planned.job, word
    assert sorted(covered) == FIRES, "each has one end, and no range covers another's row"
    assert not [each for each in job.overrides if each.fire_at <= END]
    for fire in FIRES:
        run = ends.get(fire)
        due = expected[fire]
        if due is None:
            assert run is not None
            assert run.disposition is Disposition.SKIPPED_OVERRIDE
        elif run is not None and run.state is State.PENDING:
            assert run.due_at == due or (run.cause is Cause.CATCH_UP and run.due_at > due)


def test_a_run_that_was_withdrawn_goes_on_from_its_token() -> None:
    held = a_run(a_job(), FIRES[0], token=7)
    planned = override(a_job(), Override(fire_at=FIRES[0], to=FIRES[0] + 1), held, NOW)
    assert planned.withdrawals == (held,)
    (run,) = plan(planned.job, [], FIRES[0] + 1).runs
    assert run.token == 7


def test_what_was_moved_into_a_pause_does_not_run() -> None:
    job = override(a_job(), Override(fire_at=FIRES[0], to=FIRES[1] + 1), None, NOW).job
    job = override(job, Override(fire_at=FIRES[2], to=FIRES[4] + 1), None, NOW).job
    job = pause(job, [], NOW + 1, "moving", FIRES[3]).job
    planned = plan(job, [], FIRES[3])
    assert skipped(planned) == [
        (Disposition.SKIPPED_PAUSED, FIRES[1], 1),
        (Disposition.SKIPPED_PAUSED, FIRES[0], 1),
    ]
    assert [each.fire_at for each in planned.job.overrides] == [FIRES[2]], "it was moved behind the pause"


def test_what_goes_back_to_its_rule_after_a_pause_has_passed_it_was_skipped_for_the_pause() -> None:
    """A change of the rule carries the cursor of a paused job over it."""
    for to in (None, FIRES[5] + 1):
        job = override(a_job(), Override(fire_at=FIRES[1], to=to), None, NOW).job
        job = pause(job, [], FIRES[0], "moving").job
        edited = edit(job, replace(job, trigger={**job.trigger, "every_seconds": 7}), [], FIRES[2])
        assert skipped(edited) == [(Disposition.SKIPPED_PAUSED, FIRES[2], 1)]
        planned = lift(edited.job, FIRES[1], None, [], FIRES[2] + 1)
        assert skipped(planned) == [(Disposition.SKIPPED_PAUSED, FIRES[1], 1)]
        assert planned.job.overrides == ()


def test_what_goes_back_to_its_rule_in_a_pause_has_a_row_where_the_cursor_lies_behind_a_claim() -> None:
    planned = plan(a_job(), [], NOW, FIRES[2] - NOW)
    job = override(planned.job, Override(fire_at=FIRES[1]), planned.runs[1], NOW).job
    paused = pause(job, [planned.runs[0], replace(planned.runs[2], token=1)], NOW, "moving").job
    assert paused.planned_until == FIRES[2]
    assert skipped(lift(paused, FIRES[1], None, [], NOW + 1)) == [(Disposition.SKIPPED_PAUSED, FIRES[1], 1)]


def test_a_late_run_that_was_moved_and_waits_for_its_place_is_owed_again_when_it_is_withdrawn() -> None:
    """The planner spreads what is late: its place may lie a moment ahead, as its fire time does."""
    job = override(a_job(), Override(fire_at=FIRES[1], to=NOW + 1), None, NOW).job
    now = NOW + 3 * SECOND
    (run,) = (planned := plan(job, [], now)).runs
    late = replace(run, due_at=now + 1)
    for gone in (
        edit(planned.job, replace(planned.job, labels={"a": "b"}), [late], now),
        pause(planned.job, [late], now, "moving"),
        withdraw_ahead(planned.job, [late], now, now),
    ):
        assert gone.withdrawals == (late,)
        assert [(each.fire_at, each.done) for each in gone.job.overrides] == [(FIRES[1], False)]
        assert gone.job.next_fire_at == (NOW + 1 if gone.job.enabled else None)


def test_a_job_past_its_last_run_owes_none_for_what_goes_back_to_its_rule() -> None:
    job = override(a_job(fires_max=1), Override(fire_at=FIRES[0], to=FIRES[3]), None, NOW).job
    job = plan(job, [], FIRES[1]).job
    assert job.fires_count == 1
    assert lift(job, FIRES[0], None, [], FIRES[1] + 1).runs == ()


def test_the_cursor_stops_before_what_a_moved_run_leaves_no_room_for() -> None:
    job = override(a_job(fires_max=2), Override(fire_at=FIRES[0], to=FIRES[2] - 1), None, NOW).job
    (run,) = (first := plan(job, [], FIRES[1])).runs
    made = plan(first.job, [], FIRES[2] - 1, 2)
    assert [each.fire_at for each in made.runs] == [FIRES[0]]
    freed = override(made.job, Override(fire_at=run.fire_at), run, FIRES[2] - 1)
    assert [each.fire_at for each in plan(freed.job, [], FIRES[2]).runs if each.state is State.PENDING] == [FIRES[2]]


def test_a_moved_run_that_overlaps_takes_no_room_from_a_fire_time() -> None:
    job = override(a_job(fires_max=1, overlap=Overlap.SKIP), Override(FIRES[0], FIRES[1]), None, NOW).job
    planned = plan(job, [a_run(job, NOW, State.RUNNING)], FIRES[1])
    assert skipped(planned) == [(Disposition.SKIPPED_OVERLAP, FIRES[0], 1)]
    assert [run.fire_at for run in plan(planned.job, [], FIRES[1]).runs] == [FIRES[1]]


def test_a_run_by_hand_takes_no_place_of_a_fire_time_that_was_moved_on() -> None:
    job = override(a_job(), Override(FIRES[0], FIRES[3] + 1), None, NOW).job
    assert free_instant(job, FIRES[0], set()) == FIRES[0] + 1


@pytest.mark.parametrize("to", [None, FIRES[2] + 1])
@pytest.mark.parametrize("after", ["resumed", "edited", "edited while paused"])
def test_what_passes_after_the_last_run_of_a_job_is_owed_no_more(to: Instant | None, after: str) -> None:
    job = override(a_job(fires_max=1), Override(FIRES[1], to), None, NOW).job
    job = plan(job, [], FIRES[0]).job
    planned = []
    if after != "edited":
        job = pause(job, [], FIRES[0] + (after == "resumed"), None).job
    if after == "resumed":
        planned += [resumed := resume(job, FIRES[3] + 1)]
        job = resumed.job
    planned += [edited := edit(job, replace(job, fires_max=9, enabled=True), [], FIRES[3] + 2)]
    planned += [plan(edited.job, [], FIRES[4])]
    rows = [(run.fire_at, run.state) for each in planned for run in each.runs]
    assert rows == [(FIRES[4], State.PENDING)]


def test_a_plan_that_makes_the_last_run_settles_no_later_fire_time() -> None:
    late = a_job(fires_max=1, catch_up=CatchUp(CatchUpPolicy.ALL))
    planned = plan(override(late, Override(FIRES[1]), None, NOW).job, [], FIRES[3])
    assert [run.fire_at for run in planned.runs] == [FIRES[0]]
    assert plan(planned.job, [], FIRES[3]).job.planned_until == FIRES[0], "the cursor passes none without a row"


def test_a_moved_fire_time_that_is_skipped_after_the_last_run_is_owed_no_more() -> None:
    job = override(a_job(fires_max=1), Override(FIRES[1], FIRES[4]), None, NOW).job
    job = plan(job, [], FIRES[0]).job
    skips = override(job, Override(FIRES[1]), None, FIRES[3])
    assert (skips.runs, skips.job.planned_until) == ((), FIRES[0])


def test_a_skip_under_a_hold_plans_none_of_what_is_held() -> None:
    job = override(a_job(), Override(FIRES[0], FIRES[4]), None, NOW).job
    job = plan(job, [], FIRES[1], held=JobHold(until=END)).job
    skips = override(job, Override(FIRES[0]), None, FIRES[3])
    assert (skips.runs, skips.job.planned_until) == ((), NOW)
    job = plan(skips.job, [], FIRES[3], held=JobHold(until=END)).job
    assert [run.disposition for run in plan(job, [], END).runs if run.fire_at == FIRES[0]] == [
        Disposition.SKIPPED_OVERRIDE
    ]
