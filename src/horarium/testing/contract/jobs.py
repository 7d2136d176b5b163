"""Jobs: added jobs come back equal, names are unique while they are used, and due ones come in order."""

from __future__ import annotations

from msgspec.structs import replace

from horarium.clock import DAY, INSTANT_MAX, INSTANT_MIN
from horarium.model import (
    LABELS_MAX,
    NAME_LENGTH_MAX,
    BusTarget,
    Completion,
    Follow,
    HandlerTarget,
    HttpTarget,
    Job,
    Occasion,
    Plan,
    QueueTarget,
)
from horarium.model.missed import Missed, Rule, Stretch
from horarium.model.overrides import Override
from horarium.policies import Approval, CatchUp, CatchUpPolicy, Concurrency, Overlap, Rate, Retention, Retry, Timeouts
from horarium.ports import BATCH_MAX, JobFilter, Store
from horarium.testing.contract.base import Stores, StoreUnderTest, job_of
from horarium.testing.values import NOW, a_job, a_run

FULL_JOB = Job(
    name="full.job_1:a@b-c",
    trigger={"type": "any_of", "triggers": [{"type": "rrule", "rrule": "DTSTART:20250101T000000Z\nRRULE:FREQ=DAILY"}]},
    target=HttpTarget(
        url="https://example.org/höök?q=%F0%9F%95%B0&ü=1",
        method="PUT",
        headers={"X-Größe": "naïve \U0001f570", "x-empty": ""},
        body={"nul": "a\x00b", "float": 0.1, "tiny": 5e-324, "big": 2**63 - 1, "none": None, "list": [1, [2.5, {}]]},
        timeout_seconds=0.1,
        expected_status=(200, 418),
        signing_secret="whsec_c2VjcmV0",
        completion=Completion.CALLBACK,
        cancel_url="https://example.org/cancel",
    ),
    enabled=False,
    labels={"größe": "ü\U0001f570", "empty": "", "quote": "a'b\"c\\d%_"},
    catch_up=CatchUp(policy=CatchUpPolicy.ALL, window_seconds=0.1),
    overlap=Overlap.TERMINATE_OTHER,
    retry=Retry(
        attempts_max=7,
        backoff_seconds=0.3,
        backoff_factor=1.7,
        backoff_max_seconds=99.9,
        age_max_seconds=1.1,
        silences_max="unlimited",
    ),
    timeouts=Timeouts(start_seconds=0.7, execution_seconds=1e8 / 3, heartbeat_seconds=1.000001),
    priority=-1000,
    concurrency=Concurrency(key="schlüssel/\U0001f511", max=100_000),
    rate=(Rate(7, 60.5, 3, key="schlüssel/{payload.x}"),),
    fair="schlüssel/{payload.x}",
    jitter_seconds=0.000001,
    starts_at=INSTANT_MIN,
    ends_at=INSTANT_MAX,
    fires_max=100_000_000,
    retention=Retention(finished_seconds=None, runs_max=0),
    title="Nächtlich \U0001f570: \"all\" 'of' it\n/ 100 %",
    buffer_max=1_000,
    approval=Approval(roles=("viewer", "admin"), within_seconds=0.1, then="run", four_eyes=True),
    on={
        Occasion.FAILED: (Follow(notify="ops", after=100), Follow(trigger="other", payload={"a": [1, None]})),
        Occasion.LATE: (Follow(notify="ops", seconds=0.1),),
    },
    id="0190a0a0-0000-7000-8000-000000000001",
    version=2**40,
    anchor_at=INSTANT_MAX - 1,
    planned_until=INSTANT_MIN,
    next_fire_at=INSTANT_MAX,
    fires_count=2**40,
    paused_at=1,
    paused_until=2,
    overrides=(
        Override(fire_at=3, to=INSTANT_MAX, by="ü", reason="a\nb", at=4, done=True, token=2**40),
        Override(fire_at=5),
    ),
    overrides_dropped=(INSTANT_MIN, INSTANT_MAX),
    missed=Missed(
        id="0190a0a0-0000-7000-8000-000000000002",
        asked_at=INSTANT_MIN,
        expires_at=INSTANT_MAX,
        stretches=(Stretch(1, 2**40, 2**40, Rule({"type": "once"}, 1, 2, 3)), Stretch(2**41, 2**41)),
        decision=CatchUpPolicy.LATEST,
        by="ü",
        reason="a\nb",
        decided_at=6,
    ),
    pause_reason="line\nline\ttab ü",
    created_at=INSTANT_MIN,
    updated_at=INSTANT_MAX,
)


def named(*jobs: Job | None) -> list[str]:
    return [job.name for job in jobs if job is not None]


class JobContract(StoreUnderTest):
    async def test_a_job_comes_back_equal_in_every_field(self, store: Store) -> None:
        assert await store.add_jobs([FULL_JOB]) == [True]
        assert await store.get_jobs([FULL_JOB.name]) == [FULL_JOB]
        assert await store.get_jobs_by_id([FULL_JOB.id]) == [FULL_JOB]

    async def test_a_job_of_each_target_comes_back_equal(self, store: Store) -> None:
        jobs = [
            a_job("handler", target=HandlerTarget("f", {"x": [1.5, None, {"k": "ü"}]})),
            a_job("queue", target=QueueTarget("q", payload="text")),
            a_job("bus", target=BusTarget("b", payload=[None])),
            a_job("plain"),
        ]
        assert await store.add_jobs(jobs) == [True] * 4
        assert await store.get_jobs([job.name for job in jobs]) == jobs

    async def test_a_job_of_the_longest_name_and_most_labels_comes_back_equal(self, store: Store) -> None:
        labels = {f"{number:03}" + "k" * 197: "v" * 200 for number in range(LABELS_MAX)}
        job = a_job("n" * NAME_LENGTH_MAX, labels=labels)
        assert await store.add_jobs([job]) == [True]
        assert await store.get_jobs([job.name]) == [job]

    async def test_what_one_instance_wrote_another_reads(self, stores: Stores) -> None:
        writer, reader = await stores.several(2)
        await writer.add_jobs([a_job()])
        assert await reader.get_jobs(["job"]) == [a_job()]

    async def test_jobs_come_in_the_order_asked_with_none_for_the_unknown(self, store: Store) -> None:
        one, two = a_job("one"), a_job("two")
        await store.add_jobs([one, two])
        assert await store.get_jobs(["two", "none", "one", "two"]) == [two, None, one, two]
        assert await store.get_jobs_by_id([two.id, "none", one.id, two.id]) == [two, None, one, two]

    async def test_empty_batches_of_jobs_are_answered(self, store: Store) -> None:
        assert await store.add_jobs([]) == []
        assert await store.get_jobs([]) == []
        assert await store.get_jobs_by_id([]) == []

    async def test_names_differ_by_case(self, store: Store) -> None:
        assert await store.add_jobs([a_job("Job"), a_job("job")]) == [True, True]
        assert named(*await store.get_jobs(["job", "JOB", "Job"])) == ["job", "Job"]

    async def test_a_taken_name_is_refused_and_the_rest_of_the_batch_is_not(self, store: Store) -> None:
        first = a_job("taken")
        await store.add_jobs([first])
        second = a_job("taken", id="another", priority=5)
        assert await store.add_jobs([a_job("a"), second, a_job("b")]) == [True, False, True]
        assert await store.get_jobs(["taken"]) == [first]
        assert await store.get_jobs_by_id(["another"]) == [None]

    async def test_a_name_twice_in_one_batch_is_taken_by_the_first(self, store: Store) -> None:
        first, second = a_job("twice", priority=1), a_job("twice", id="another", priority=2)
        assert await store.add_jobs([first, second]) == [True, False]
        assert await store.get_jobs(["twice"]) == [first]

    async def test_a_taken_id_is_refused(self, store: Store) -> None:
        first = a_job("first")
        assert await store.add_jobs([first, a_job("second", id=first.id)]) == [True, False]
        assert await store.get_jobs(["first", "second"]) == [first, None]

    async def test_a_job_may_be_added_after_a_run_of_it(self, store: Store) -> None:
        job, run = a_job(), a_run(1, of=a_job())
        assert await store.add_runs([run]) == [True]
        assert await store.add_jobs([job]) == [True]
        assert await store.get_jobs([job.name]) == [job]
        assert (await store.unfinished_runs([job.id]))[job.id] == [run]

    async def test_adding_a_job_again_changes_nothing(self, store: Store) -> None:
        assert await store.add_jobs([a_job()]) == [True]
        assert await store.add_jobs([a_job()]) == [False]
        assert await store.get_jobs(["job"]) == [a_job()]

    async def test_a_full_batch_of_jobs_is_added_and_read(self, store: Store) -> None:
        jobs = [a_job(f"job-{number}") for number in range(BATCH_MAX)]
        assert await store.add_jobs(jobs) == [True] * BATCH_MAX
        assert await store.get_jobs([job.name for job in jobs]) == jobs

    # -- deletion

    async def test_a_deleted_job_is_found_by_id_alone(self, store: Store) -> None:
        gone = await delete(store, a_job(next_fire_at=NOW))
        assert await store.get_jobs(["job"]) == [None]
        assert await store.get_jobs_by_id([gone.id]) == [gone]
        assert await store.due_jobs(NOW, 10) == ([], None)

    async def test_the_name_of_a_deleted_job_is_free_again(self, store: Store) -> None:
        gone = await delete(store, a_job())
        successor = a_job(id="successor")
        assert await store.add_jobs([successor]) == [True]
        assert await store.get_jobs(["job"]) == [successor]
        assert await store.get_jobs_by_id([gone.id, "successor"]) == [gone, successor]

    async def test_a_name_can_be_deleted_and_reused_again_and_again(self, store: Store) -> None:
        for number in range(3):
            await delete(store, a_job(id=f"generation-{number}"))
        assert await store.get_jobs(["job"]) == [None]
        assert await store.add_jobs([a_job()]) == [True]

    async def test_the_id_of_a_deleted_job_stays_taken(self, store: Store) -> None:
        gone = await delete(store, a_job())
        assert await store.add_jobs([a_job("other", id=gone.id)]) == [False]

    async def test_a_deleted_job_is_added_beside_the_one_that_has_its_name(self, store: Store) -> None:
        job, older = a_job(next_fire_at=NOW), a_job(id="older", deleted_at=NOW, version=5, labels={"k": "v"})
        gone, oldest = a_job(id="gone", deleted_at=NOW + 1, next_fire_at=NOW), a_job(id="oldest", deleted_at=NOW)
        assert await store.add_jobs([older, job, gone]) == [True] * 3
        assert await store.add_jobs([oldest]) == [True]
        assert await store.add_jobs([replace(gone, version=9)]) == [False]
        assert await store.get_jobs_by_id(["gone", "older", "oldest", job.id]) == [gone, older, oldest, job]
        assert await store.get_jobs(["job"]) == [job]
        assert await store.due_jobs(NOW, 10) == ([job], None)
        assert (await store.list_jobs(JobFilter(), None, 10)).items == (job,)

    # -- due

    async def test_a_job_is_due_at_its_very_instant(self, store: Store) -> None:
        job = a_job(next_fire_at=NOW)
        await store.add_jobs([job])
        assert await store.due_jobs(NOW - 1, 10) == ([], NOW)
        assert await store.due_jobs(NOW, 10) == ([job], None)

    async def test_due_jobs_come_earliest_first_then_by_id(self, store: Store) -> None:
        late, early, same = (a_job(name, next_fire_at=at) for name, at in (("x", NOW), ("y", NOW - DAY), ("z", NOW)))
        await store.add_jobs([late, early, same])
        ties = sorted([late, same], key=lambda job: job.id)
        assert await store.due_jobs(NOW, 10) == ([early, *ties], None)

    async def test_the_limit_of_due_jobs_holds_and_what_is_beyond_is_told(self, store: Store) -> None:
        jobs = [a_job(f"job-{number}", next_fire_at=NOW + number) for number in range(4)]
        await store.add_jobs(jobs[::-1])
        assert await store.due_jobs(NOW + 9, 0) == ([], NOW)
        assert await store.due_jobs(NOW + 9, 1) == (jobs[:1], NOW + 1)
        assert await store.due_jobs(NOW + 2, BATCH_MAX) == (jobs[:3], NOW + 3)
        assert await store.due_jobs(NOW + 3, 4) == (jobs, None)

    async def test_due_jobs_can_be_asked_for_from_an_instant_on(self, store: Store) -> None:
        jobs = [a_job(f"job-{number}", next_fire_at=NOW + number) for number in range(4)]
        tied = a_job("tied", next_fire_at=NOW + 1)
        await store.add_jobs([*jobs[::-1], tied])
        assert await store.due_jobs(NOW + 2, 10, NOW + 1) == ([jobs[2]], NOW + 3)
        assert await store.due_jobs(NOW + 3, 1, NOW + 1) == ([jobs[2]], NOW + 3)
        assert await store.due_jobs(NOW + 3, 10, NOW + 3) == ([], None)
        assert await store.due_jobs(NOW, 10, NOW + 1) == ([], NOW + 2)
        assert (await store.due_jobs(NOW + 9, 10, NOW - 1))[0] == (await store.due_jobs(NOW + 9, 10))[0]

    async def test_a_job_with_nothing_to_plan_is_never_due(self, store: Store) -> None:
        await store.add_jobs([a_job(next_fire_at=None)])
        assert await store.due_jobs(INSTANT_MAX, 10) == ([], None)

    async def test_extreme_fire_times_are_due_in_order(self, store: Store) -> None:
        last, first = a_job("last", next_fire_at=INSTANT_MAX), a_job("first", next_fire_at=INSTANT_MIN)
        await store.add_jobs([last, first])
        assert await store.due_jobs(INSTANT_MIN, 10) == ([first], INSTANT_MAX)
        assert await store.due_jobs(INSTANT_MAX, 10) == ([first, last], None)

    async def test_a_replanned_job_is_due_at_its_new_instant_only(self, store: Store) -> None:
        job = a_job(next_fire_at=NOW)
        await store.add_jobs([job])
        await store.commit_plans([Plan(replace(job, next_fire_at=NOW + DAY))], NOW)
        assert await store.due_jobs(NOW, 10) == ([], NOW + DAY)


async def delete(store: Store, job: Job) -> Job:
    """Add this job and delete it; the job as it is then stored."""
    assert await store.add_jobs([job]) == [True]
    assert await store.commit_plans([Plan(replace(job, deleted_at=NOW))], NOW) == [True]
    return await job_of(store, job)
