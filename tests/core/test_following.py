"""What follows from what happens to a run: the rule as a table, and what must hold of it whatever happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from horarium.clock import MINUTE, SECOND, Instant
from horarium.errors import InvalidJob
from horarium.model import (
    Cancelled,
    Cause,
    Deferred,
    Disposition,
    Failed,
    Job,
    Occasion,
    Outcome,
    Released,
    Run,
    RunChange,
    State,
    Succeeded,
)
from horarium.model.targets import NOTIFY_QUEUE
from horarium.operations.settling.following import Following
from horarium.policies import Retention, Retry
from horarium.ports import RunFilter
from horarium.rules.chains import DEPTH_MAX, WIDTH_MAX, chain_key, depth_of, step_of
from horarium.rules.following import (
    follow,
    follow_behind,
    follow_plan,
    looks_back,
)
from horarium.rules.planning import plan
from horarium.rules.settling import cancel, rescue, settle
from horarium.stores.memory import MemoryStore
from horarium.testing.values import NOW, a_finished_run, a_job, a_run
from horarium.wire.definitions import job_from, read_definition


def a_job_with(on: dict[str, Any], **changes: Any) -> Job:
    fields = {
        "name": "job", "trigger": {"type": "interval", "every_seconds": 60}, "target": {"type": "queue", "queue": "q"},
        "on": on, **changes,
    }  # fmt: skip
    return job_from(read_definition(fields), id="job-id", now=NOW, check_target=lambda target: None)


def claimed(of: Job, number: int = 0, **changes: Any) -> Run:
    held = {"state": State.RUNNING, "token": 1, "attempt": 1, "started_at": NOW, "lease_expires_at": NOW + MINUTE}
    return a_run(number, of, **{**held, **changes})


def ended(job: Job, run: Run, outcome: Outcome, earlier: list[Run] | None = None, now: Instant = NOW) -> RunChange:
    change = RunChange(settle(run, job, outcome, now), run.token, run.state)
    return follow(job, change, now, earlier or [])


def keys(change: RunChange) -> list[str]:
    """The unique keys of what follows, without the run's id."""
    return [(run.unique_key or "").partition("/")[2] for run in change.follow_ups]


def told(change: RunChange) -> list[dict[str, Any]]:
    return [msgspec.json.decode(run.payload or b"")["event"] for run in change.follow_ups if run.queue == NOTIFY_QUEUE]


EVERY = {
    occasion.value: [{"notify": occasion.value}]
    for occasion in Occasion
    if occasion not in (Occasion.LATE, Occasion.OVERDUE)
}


@pytest.mark.parametrize(
    ("outcome", "attempts_max", "expected"),
    [
        (Succeeded(b"1"), 1, ["completed/notify:completed"]),
        (Failed("no"), 1, ["failed/notify:failed", "attempt_failed.1/notify:attempt_failed"]),
        (Failed("no"), 3, ["attempt_failed.1/notify:attempt_failed"]),
        (Failed("no", retryable=False), 3, ["failed/notify:failed", "attempt_failed.1/notify:attempt_failed"]),
        (Cancelled(), 1, ["cancelled/notify:cancelled"]),
        (Deferred(NOW + SECOND), 1, []),
        (Released(), 1, []),
    ],
)
def test_each_outcome_is_told_as_what_it_is(outcome: Outcome, attempts_max: int, expected: list[str]) -> None:
    job = a_job_with(EVERY, retry={"attempts_max": attempts_max})
    assert keys(ended(job, claimed(job), outcome)) == expected


def test_a_run_that_was_not_started_in_time_has_failed_and_says_so_once_to_each_channel() -> None:
    job = a_job_with({"not_started": [{"notify": "a"}], "failed": [{"notify": "a"}, {"notify": "b"}]})
    run = a_run(0, job, start_by=NOW)
    change = follow(job, RunChange(rescue(run, job, NOW), run.token, run.state), NOW)
    assert keys(change) == ["not_started/notify:a", "failed/notify:b"]


def test_a_lost_attempt_is_a_failed_one() -> None:
    job = a_job_with(EVERY)
    run = claimed(job, lease_expires_at=NOW)
    change = follow(job, RunChange(rescue(run, job, NOW), run.token, run.state, False), NOW)
    assert keys(change) == ["attempt_failed.1/notify:attempt_failed"]


def test_nothing_follows_from_a_change_that_ends_nothing() -> None:
    job = a_job_with(EVERY)
    run = claimed(job)
    asked = cancel(run, Retention(), NOW, "please")
    assert asked.state is State.CANCELLING
    for after, was in ((run, State.PENDING), (asked, State.RUNNING)):
        assert follow(job, RunChange(after, 1, was), NOW).follow_ups == ()
    kept = replace(a_finished_run(0, job), prune_at=0)
    assert follow(job, RunChange(kept, 1, State.COMPLETED), NOW).follow_ups == ()


def test_what_was_withdrawn_is_no_end() -> None:
    job = a_job_with(EVERY)
    run = a_run(0, job)
    after = replace(run, state=State.CANCELLED, disposition=Disposition.WITHDRAWN, finished_at=NOW)
    assert follow(job, RunChange(after, 0, State.PENDING), NOW).follow_ups == ()


def test_missed_fire_times_are_told_as_one_with_their_number() -> None:
    job = a_job_with({"missed": [{"notify": "ops"}, {"trigger": "other"}]}, catch_up={"policy": "none"})
    later = NOW + 10 * MINUTE + SECOND
    planned = follow_plan(plan(job, [], later), later)
    (event,) = [msgspec.json.decode(run.payload or b"")["event"] for run in planned.runs if run.queue == NOTIFY_QUEUE]
    assert (event["event"], event["count"], event["job"]) == ("missed", 9, "job")
    assert "9 fire times" in event["message"]
    assert len([run for run in planned.runs if run.queue == "follow"]) == 1


# ---- in a row ---------------------------------------------------------------------------------------------------


def test_after_counts_failures_in_a_row() -> None:
    job = a_job_with({"failed": [{"notify": "ops", "after": 3}]}, retry={"attempts_max": 1})
    run = claimed(job, 9)
    assert looks_back(job, settle(run, job, Failed("no"), NOW), State.RUNNING, NOW) == 2
    failed = [a_finished_run(number, job, state=State.FAILED, disposition=Disposition.RAN) for number in (8, 7)]
    skipped = a_finished_run(6, job, state=State.SKIPPED, disposition=Disposition.SKIPPED_OVERLAP)
    good = a_finished_run(5, job)
    assert keys(ended(job, run, Failed("no"), failed)) == ["failed/notify:ops"]
    assert keys(ended(job, run, Failed("no"), [failed[0], skipped, failed[1]])) == ["failed/notify:ops"]
    assert keys(ended(job, run, Failed("no"), [failed[0], good, failed[1]])) == []
    assert keys(ended(job, run, Failed("no"), failed[:1])) == []


async def test_a_message_claims_no_more_of_a_row_than_was_looked_at() -> None:
    store = MemoryStore()
    job = a_job_with({"failed": [{"notify": "ops", "after": 3}]}, retry={"attempts_max": 1})
    await store.add_jobs([job])
    await store.add_runs(
        [a_finished_run(number, job, state=State.FAILED, disposition=Disposition.RAN) for number in range(5)]
    )
    run = settle(claimed(job, 9), job, Failed("no"), NOW)
    ready = await Following(store).ready({0: RunChange(run, 1, State.RUNNING)}, {}, NOW)
    told = msgspec.json.decode(ready[0].follow_ups[0].payload or b"")["event"]
    assert told["message"] == "job failed, at least 3 times in a row: no", "it was the sixth"


@pytest.mark.parametrize("between", [State.SKIPPED, State.CANCELLED])
async def test_runs_that_were_skipped_or_cancelled_in_between_break_no_row(between: State) -> None:
    """As they are read: what says nothing is passed over, however much of it there is."""
    job = a_job_with({"failed": [{"notify": "ops", "after": 2}]}, retry={"attempts_max": 1})
    store = MemoryStore()
    await store.add_jobs([job])
    disposition = Disposition.SKIPPED_OVERLAP if between is State.SKIPPED else Disposition.CANCELLED
    idle = [a_finished_run(number, job, state=between, disposition=disposition) for number in range(2, 9)]
    await store.add_runs([a_finished_run(1, job, state=State.FAILED, disposition=Disposition.RAN), *idle])
    run = claimed(job, 9)
    change = RunChange(settle(run, job, Failed("no"), NOW), run.token, run.state)
    ready = await Following(store).ready({0: change}, {job.id: job}, NOW)
    assert keys(ready[0]) == ["failed/notify:ops"]


def _ends_of(job: Job, *outcomes: Outcome) -> list[RunChange]:
    return [
        RunChange(settle(run, job, outcome, NOW), run.token, run.state)
        for run, outcome in ((claimed(job, number), outcome) for number, outcome in enumerate(outcomes, 10))
    ]


async def _settle_but(job: Job, changes: Sequence[RunChange], refused: int) -> tuple[list[str], int]:
    """The keys of what follows where that change is refused (its run was cancelled meanwhile), and in how many batches
    they were written."""
    store = MemoryStore()
    await store.add_jobs([job])
    runs = [claimed(job, number) for number in range(10, 10 + len(changes))]
    runs[refused] = replace(runs[refused], token=7)
    await store.add_runs([a_finished_run(1, job, state=State.FAILED, disposition=Disposition.RAN), *runs])
    batches = 0
    todo, following = dict(enumerate(changes)), Following(store)
    while todo:
        ready = await following.ready(todo, {job.id: job}, NOW)
        await store.settle_runs(list(ready.values()), NOW)
        todo = {index: change for index, change in todo.items() if index not in ready}
        batches += 1
    page = await store.list_runs(RunFilter(queue=NOTIFY_QUEUE), None, 100)
    return sorted(str(run.unique_key) for run in page.items), batches


async def test_a_recovery_is_told_by_the_second_of_a_batch_if_the_first_is_refused() -> None:
    job = a_job_with({"recovered": [{"notify": "ops"}]}, retry={"attempts_max": 1})
    assert await _settle_but(job, _ends_of(job, *[Succeeded()] * 5), 0) == (
        [f"{a_run(1, job).id}/recovered/notify:ops"],
        1,
    )


async def test_a_row_of_failures_counts_what_was_written_only() -> None:
    """Three in a row, one of them stored. Of a batch of fifty the first is refused: the third tells it, and two batches
    are enough, since those after it need not know more."""
    job = a_job_with({"failed": [{"notify": "ops", "after": 3}]}, retry={"attempts_max": 1})
    told, batches = await _settle_but(job, _ends_of(job, *[Failed("no")] * 50), 0)
    assert told == [f"{a_run(number, job).id}/failed/notify:ops" for number in range(12, 60)]
    assert batches <= 4


async def test_what_did_not_fail_after_all_is_not_recovered_from() -> None:
    job = a_job_with({"recovered": [{"notify": "ops"}]}, retry={"attempts_max": 1})
    changes = _ends_of(job, Failed("no"), Succeeded())
    assert (await _settle_but(job, changes, 0))[0] == [f"{a_run(1, job).id}/recovered/notify:ops"]


async def test_completed_runs_that_were_late_count_in_a_row() -> None:
    job = a_job_with({"late": [{"notify": "ops", "seconds": 1, "after": 3}]})
    store = MemoryStore()
    await store.add_jobs([job])
    late = {"due_at": NOW - MINUTE, "started_at": NOW, "finished_at": NOW}
    await store.add_runs([a_finished_run(number, job, **late) for number in (1, 2)])
    run = claimed(job, 9, due_at=NOW - MINUTE)
    change = RunChange(settle(run, job, Succeeded(), NOW), run.token, run.state)
    ready = await Following(store).ready({0: change}, {job.id: job}, NOW)
    assert keys(ready[0]) == ["late/notify:ops"]


def test_a_recovery_is_told_once_however_many_runs_complete_after_it() -> None:
    job = a_job_with({"recovered": [{"notify": "ops"}]})
    failed = [
        a_finished_run(number, job, state=State.FAILED, disposition=Disposition.RAN, finished_at=NOW)
        for number in (4, 3)
    ]
    first = ended(job, claimed(job, 8), Succeeded(), failed)
    beside = ended(job, claimed(job, 9), Succeeded(), failed)
    assert [run.unique_key for run in first.follow_ups] == [run.unique_key for run in beside.follow_ups]
    assert told(first)[0]["message"] == "job recovered after 2 failed runs"
    assert keys(ended(job, claimed(job, 9), Succeeded(), [a_finished_run(8, job), *failed])) == []
    patient = a_job_with({"recovered": [{"notify": "ops", "after": 3}]})
    assert keys(ended(patient, claimed(patient, 9), Succeeded(), failed)) == []


def test_a_channel_hears_recovered_in_place_of_completed() -> None:
    job = a_job_with({"recovered": [{"notify": "ops"}], "completed": [{"notify": "ops"}, {"trigger": "next"}]})
    failed = a_finished_run(4, job, state=State.FAILED, disposition=Disposition.RAN)
    assert keys(ended(job, claimed(job, 8), Succeeded(), [failed])) == [
        "recovered/notify:ops",
        "completed/trigger:next",
    ]
    assert keys(ended(job, claimed(job, 8), Succeeded())) == ["completed/notify:ops", "completed/trigger:next"]


# ---- late and overdue -------------------------------------------------------------------------------------------


def test_what_began_or_ended_too_late_is_told_at_its_end_with_the_key_of_the_watcher() -> None:
    job = a_job_with({"late": [{"notify": "ops", "seconds": 30}], "overdue": [{"notify": "ops", "seconds": 90}]})
    run = a_run(0, job, fire_at=NOW, due_at=NOW)
    assert follow_behind(job, run, NOW + 30 * SECOND) == []
    (seen,) = follow_behind(job, run, NOW + 31 * SECOND)
    assert (seen.unique_key or "").endswith("/late/notify:ops")
    late = claimed(job, fire_at=NOW, started_at=NOW + 60 * SECOND, id=run.id)
    at_end = ended(job, late, Succeeded(), now=NOW + 61 * SECOND)
    assert [each.unique_key for each in at_end.follow_ups] == [seen.unique_key]
    assert keys(ended(job, late, Succeeded(), now=NOW + 91 * SECOND)) == ["late/notify:ops", "overdue/notify:ops"]
    in_time = claimed(job, fire_at=NOW, started_at=NOW + SECOND)
    assert keys(ended(job, in_time, Succeeded(), now=NOW + 89 * SECOND)) == []
    retried = settle(in_time, job, Failed("no"), NOW + 2 * SECOND)
    assert follow_behind(job, retried, NOW + 60 * SECOND) == []


def test_lateness_counts_from_the_fire_time_even_if_the_run_was_made_after_a_downtime() -> None:
    job = a_job_with({"late": [{"notify": "ops", "seconds": 30}]})
    caught_up = claimed(job, fire_at=NOW - MINUTE, created_at=NOW, cause=Cause.CATCH_UP)
    assert keys(ended(job, caught_up, Succeeded())) == ["late/notify:ops"]
    by_hand = replace(caught_up, cause=Cause.BACKFILL)
    assert keys(ended(job, by_hand, Succeeded())) == []


# ---- chains -----------------------------------------------------------------------------------------------------


def test_a_chain_hands_on_the_result_and_ends_at_a_hundred() -> None:
    job = a_job_with({"completed": [{"trigger": "next", "payload": "result"}, {"notify": "ops"}]})
    run, bodies = claimed(job), []
    for _ in range(DEPTH_MAX):
        follow_up = ended(job, run, Succeeded(b'{"rows":[1]}')).follow_ups[0]
        body = msgspec.json.decode(follow_up.payload or b"")
        bodies.append((body["job"], body["payload"]))
        run = replace(claimed(job), unique_key=chain_key(body["depth"], follow_up.unique_key or ""))
    assert bodies == [("next", {"rows": [1]})] * DEPTH_MAX
    last = ended(job, run, Succeeded())
    assert keys(last) == [key for key in keys(last) if key.endswith("notify:ops")] != []
    assert last.run.history[-1].message == "the chain ends here, 100 runs deep: next not triggered"


@pytest.mark.parametrize(
    ("on", "width"),
    [
        ({"completed": 2}, 2),
        ({"completed": 10}, 10),
        ({"completed": 1, "recovered": 1, "failed": 1}, 2),
        ({"completed": 3, "late": 3, "overdue": 3, "attempt_failed": 3}, 3 + 3 + 3 + 3 * 100),
    ],
)
def test_a_chain_that_branches_ends_before_it_is_very_wide(on: dict[str, int], width: int) -> None:
    more = {"late": {"seconds": 1}, "overdue": {"seconds": 1}}
    job = a_job_with(
        {occasion: [{"trigger": f"job-{number}", **more.get(occasion, {})} for number in range(count)]
         for occasion, count in on.items()},
        retry=Retry(attempts_max=100),
    )  # fmt: skip
    runs, depth, made = 1, 0, 0
    while depth < DEPTH_MAX:
        run = replace(claimed(job), unique_key=chain_key(depth, "r/completed/trigger:a") if depth else None)
        bodies = [msgspec.json.decode(each.payload or b"") for each in ended(job, run, Succeeded()).follow_ups]
        assert len(bodies) >= on["completed"]
        (deeper,) = {body["depth"] for body in bodies}
        assert deeper > depth
        depth, runs = deeper, runs * width
        made += runs
    assert WIDTH_MAX <= made <= 10 * WIDTH_MAX
    last = ended(job, replace(run, unique_key=chain_key(depth, "r")), Succeeded())
    assert last.run.history[-1].message.startswith("the chain ends here")


def test_a_chain_in_which_one_run_follows_whatever_the_end_is_is_as_long_as_ever() -> None:
    to_next = [{"trigger": "next"}]
    assert step_of(a_job_with({"completed": to_next, "failed": to_next, "cancelled": to_next, "missed": to_next})) == 1
    assert step_of(a_job_with({"completed": [*to_next, {"notify": "ops"}]})) == 1


@given(st.text(max_size=20))
@example("²/x")
@example("-1/x")
@example("1000/x")
def test_no_key_of_a_users_own_breaks_the_depth(key: str) -> None:
    assert depth_of(a_run(unique_key=key)) == 0
    assert 0 <= depth_of(a_run(unique_key=f"follow/{key}")) < 1000


# ---- whatever happens -------------------------------------------------------------------------------------------

OUTCOMES = st.sampled_from([Succeeded(b"1"), Failed("no"), Failed("no", retryable=False), Cancelled(), Released()])
ACTIONS = st.one_of(
    st.builds(lambda name, after: {"notify": name, "after": after}, st.sampled_from("ab"), st.integers(1, 3)),
    st.builds(lambda name: {"trigger": name}, st.sampled_from("xy")),
)
ON = st.dictionaries(
    st.sampled_from(sorted(EVERY)),
    st.lists(ACTIONS, max_size=3, unique_by=lambda action: action.get("notify") or action["trigger"]),
)


@given(on=ON, outcomes=st.lists(OUTCOMES, min_size=1, max_size=8), attempts_max=st.integers(1, 3))
def test_every_end_owes_the_same_to_whoever_works_it_out_and_each_key_once(
    on: dict[str, Any], outcomes: list[Outcome], attempts_max: int
) -> None:
    job = a_job_with(on, retry={"attempts_max": attempts_max})
    earlier: list[Run] = []
    seen: set[str] = set()
    for number, outcome in enumerate(outcomes):
        change = ended(job, claimed(job, number), outcome, earlier)
        assert change == ended(job, claimed(job, number), outcome, earlier)
        made = [run.unique_key or "" for run in change.follow_ups]
        assert len(made) == len(set(made))
        assert not seen & {key for key in made if "/recovered/" not in key}
        seen.update(made)
        for run in change.follow_ups:
            assert (run.job_id, run.state, run.cause) == (None, State.PENDING, Cause.FOLLOW_UP)
        if change.run.finished:
            earlier.insert(0, change.run)
        if change.run.finished:
            state = f"/{change.run.state}/trigger:"
            follows = job.on.get(Occasion(change.run.state), ())
            assert {key.partition(state)[2] for key in made if state in key} == {
                each.trigger for each in follows if each.trigger
            }


# ---- what may be written ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "field"),
    [
        ({"failed": [{}]}, "on.failed[0]"),
        ({"failed": [{"notify": "a", "trigger": "b"}]}, "on.failed[0]"),
        ({"failed": [{"notify": "a", "payload": 1}]}, "on.failed[0].payload"),
        ({"failed": [{"notify": "a", "seconds": 1}]}, "on.failed[0].seconds"),
        ({"late": [{"notify": "a"}]}, "on.late[0].seconds"),
        ({"failed": [{"notify": "a"}, {"notify": "a", "after": 2}]}, "on.failed[1]"),
        ({"failed": [{"notify": "a", "after": 0}]}, "on.failed[0].after"),
        ({"failed": [{"notify": "a", "whom": "b"}]}, "on.failed[0].whom"),
        ({"faild": [{"notify": "a"}]}, "on"),
    ],
)
def test_what_can_not_be_meant_is_refused_with_its_place(on: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        a_job_with(on)
    assert (refused.value.field or "").startswith(field)


def test_a_job_without_on_is_left_alone() -> None:
    job = replace(a_job(), retry=Retry(attempts_max=1))
    change = RunChange(settle(claimed(job), job, Failed("no"), NOW), 1, State.RUNNING)
    assert follow(job, change, NOW) is change


async def test_runs_of_another_job_that_had_the_name_do_not_hide_an_earlier_one() -> None:
    store, job = MemoryStore(), a_job()
    ids = [job.id if number in (0, 50) else "before" for number in range(51)]
    runs = [a_finished_run(number, job, job_id=id, state=State.FAILED) for number, id in enumerate(ids)]
    assert all(await store.add_runs(runs))
    assert [each.id for each in await Following(store).earlier_runs(job, runs[50], 1)] == [runs[0].id]
