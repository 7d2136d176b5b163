"""One-off runs and jobs from a program: when, in which order, how often; and many jobs by their labels."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from horarium import Conflict, InvalidJob, InvalidRequest, Run, RunContext, Scheduler, every
from horarium.clock import SECOND, to_datetime, to_instant
from horarium.model import State
from horarium.stores.memory import MemoryStore
from horarium.testing import ManualClock
from tests.handlers.conftest import ended
from tests.passing import PassingClock
from tests.waiting import until

pytestmark = pytest.mark.slow

START = 1_767_571_200 * SECOND


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def still(clock: ManualClock) -> Scheduler:
    """A scheduler whose clock stands still."""
    return Scheduler(MemoryStore(), clock=clock)


@pytest.mark.parametrize(
    ("how", "due_in_seconds"),
    [
        ({}, 0),
        ({"delay": 90}, 90),
        ({"delay": 0.25}, 0.25),
        ({"delay": timedelta(minutes=5)}, 300),
        ({"delay": "5m"}, 300),
        ({"delay": "1h30m"}, 5_400),
        ({"at": to_datetime(START) + timedelta(days=400)}, 400 * 86_400),
        ({"at": to_datetime(START) - timedelta(hours=1)}, -3600),
    ],
)
async def test_a_run_is_due_when_it_was_asked_for(still: Scheduler, how: dict[str, Any], due_in_seconds: float) -> None:
    async with still:
        run = await still.enqueue("x", **how)
        assert run.due_at == run.fire_at == to_datetime(START) + timedelta(seconds=due_in_seconds)
        assert await still.get_run(run.id) == run


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"at": datetime(2026, 1, 1)}, "has no time zone"),
        ({"at": "2026-01-01T00:00:00Z"}, "is no datetime"),
        ({"delay": "5x"}, "delay: '5x' is not a duration: expected e.g. 250ms, 90s, 5m"),
        ({"delay": [5]}, "delay: expected a timedelta, seconds or a text such as '5m', not a list"),
        ({"at": datetime(9999, 1, 1, tzinfo=UTC)}, "at: must be from 1970 to 2200"),
        ({"at": datetime(2026, 2, 1, tzinfo=UTC), "delay": 1}, "give `at` or `delay`, not both"),
        ({"delay": -1}, "delay: must be from 0 s to ten years, not -1 s"),
        ({"delay": float("nan")}, "delay: must be from 0 s to ten years"),
        ({"delay": timedelta(days=4000)}, "delay: must be from 0 s to ten years"),
        ({"priority": 1_001}, "priority: must be a whole number from -1,000 to 1,000, not 1001"),
        ({"priority": "high"}, "priority: must be a whole number"),
        ({"unique_key": ""}, "unique_key: must be 1 to 200 bytes of text, not 0"),
        ({"unique_key": "ä" * 101}, "unique_key: must be 1 to 200 bytes of text, not 202"),
        ({"unique_key": "\ud800"}, "unique_key: it holds half of a surrogate pair"),
        ({"unique_key": 7}, "unique_key: expected a text, not 7"),
        ({"retry": {"attempts_max": 0}}, "retry.attempts_max: expected int >= 1"),
        ({"retry": {"attempts": 3}}, "retry.attempts: there is no such field (did you mean 'attempts_max'?)"),
        ({"timeouts": {"execution_seconds": "5"}}, "timeouts.execution_seconds: expected float"),
        ({"concurrency": {"key": ""}}, "concurrency.key: expected str of length >= 1"),
        ({"name": "a b"}, "name: 'a b' is no handler's name"),
    ],
)
async def test_what_can_not_be_meant_is_a_value_error_and_nothing_is_written(
    still: Scheduler, how: dict[str, Any], words: str
) -> None:
    async with still:
        with pytest.raises(ValueError, match=r"\w") as caught:
            await still.enqueue(**{"name": "x", **how})
        assert words in str(caught.value)
        assert (await still.list_runs()).items == ()


async def test_the_highest_priority_is_begun_first_then_the_earliest_due() -> None:
    async with Scheduler("memory://", handler_concurrency=1) as scheduler:
        order: list[str] = []

        @scheduler.handler()
        async def note(run: RunContext, word: str) -> None:
            order.append(word)
            await asyncio.sleep(0)

        past = datetime.now(UTC) - timedelta(hours=1)
        await scheduler.enqueue("note", {"word": "low"}, priority=-5, at=past - timedelta(hours=1))
        await scheduler.enqueue("note", {"word": "late"}, at=past)
        await scheduler.enqueue("note", {"word": "early"}, at=past - timedelta(seconds=1))
        last = await scheduler.enqueue("note", {"word": "urgent"}, priority=100)
        await scheduler.start()
        await ended(scheduler, last)
        await until(lambda: len(order) == 4)
        assert order == ["urgent", "early", "late", "low"]


async def test_a_delayed_run_begins_at_its_instant_and_not_before() -> None:
    async with Scheduler("memory://") as scheduler:
        late: list[float] = []

        @scheduler.handler()
        async def note(run: RunContext) -> None:
            late.append((datetime.now(UTC) - run.due_at).total_seconds())

        await scheduler.start()
        await ended(scheduler, await scheduler.enqueue("note", delay=0.3))
        assert late[0] >= 0


# ---- unique keys ------------------------------------------------------------------------------------------------


async def test_a_unique_key_gives_the_run_that_holds_it_as_it_stands(still: Scheduler) -> None:
    async with still:
        first = await still.enqueue("x", {"n": 1}, unique_key="k")
        again = await still.enqueue("x", {"n": 2}, unique_key="k", delay=60)
        assert again == first
        assert (await still.enqueue("y", unique_key="other")).id != first.id
        assert len((await still.list_runs()).items) == 2


async def test_a_finished_run_holds_its_key_until_it_is_forgotten() -> None:
    async with Scheduler("memory://") as scheduler:

        @scheduler.handler()
        async def work(run: RunContext) -> None: ...

        await scheduler.start()
        kept = await ended(scheduler, await scheduler.enqueue("work", unique_key="kept"))
        assert await scheduler.enqueue("work", unique_key="kept") == kept
        forgotten = await scheduler.enqueue("work", unique_key="short", retention={"finished_seconds": 0})
        await ended(scheduler, forgotten)
        await scheduler._runtime.store.prune_runs(to_instant(datetime.now(UTC)), 10)
        assert (await scheduler.enqueue("work", unique_key="short")).id != forgotten.id


async def test_a_caller_waits_for_a_result() -> None:
    async with Scheduler("memory://") as scheduler:

        @scheduler.handler("double")
        async def double(run: RunContext, n: int) -> int:
            return 2 * n

        run = await scheduler.enqueue("double", {"n": 4})
        with pytest.raises(TimeoutError, match=r"is still pending: after 0\.01 s"):
            await scheduler.wait_for(run.id, timeout=timedelta(seconds=0.01))
        waiting = asyncio.create_task(scheduler.wait_for(run.id))
        await scheduler.start()
        assert (await waiting).result == b"8"
        never = await scheduler.enqueue("double", {"n": 5}, delay=60)
        waiting = asyncio.create_task(scheduler.wait_for(never.id))
        await until(lambda: scheduler._operations.waiting._waiting)
        await scheduler.stop()
        with pytest.raises(TimeoutError, match="still pending: the scheduler stopped"):
            await waiting


async def test_a_retried_run_is_a_new_one_without_the_key(still: Scheduler) -> None:
    async with still:
        first = await still.enqueue("x", {"n": 1}, unique_key="k")
        await still.cancel_run(first.id)
        other = await still.retry_run(first.id, {"n": 2})
        assert other.payload == b'{"n":2}'
        again = await still.retry_run(first.id)
        assert (again.unique_key, again.payload, again.state) == (None, b'{"n":1}', State.PENDING)
        assert (await still.enqueue("x", unique_key="k")).id == first.id


async def test_many_who_ask_with_one_key_get_one_run(tmp_path: Any) -> None:
    async with Scheduler(f"sqlite:///{tmp_path}/own.db") as scheduler:
        runs = await asyncio.gather(*(scheduler.enqueue("x", {"n": n}, unique_key="k") for n in range(50)))
        assert len({run.id for run in runs}) == 1
        assert len((await scheduler.list_runs()).items) == 1


async def test_runs_in_bulk_come_in_order(still: Scheduler) -> None:
    async with still:
        ids = await still.enqueue_many("x", [{"n": n} for n in range(2_500)], delay=60, priority=3)
        assert len(set(ids)) == 2_500
        assert ids == sorted(ids)
        assert await still.enqueue_many("x", []) == []
        last = await still.get_run(ids[-1])
        assert (last.payload, last.priority, last.due_at) == (b'{"n":2499}', 3, to_datetime(START + 60 * SECOND))


async def test_the_execution_window_bounds_what_is_held_and_a_held_run_begins_on_time() -> None:
    clock = PassingClock()
    async with Scheduler("memory://", execution_window_seconds=1_200, clock=clock) as scheduler:
        begun: list[str] = []

        @scheduler.handler()
        async def note(run: RunContext) -> None:
            assert to_datetime(clock.now()) >= run.due_at
            begun.append(run.id)

        soon = await scheduler.enqueue("note", delay=600)
        far = await scheduler.enqueue("note", delay=2_400)
        await scheduler.start()

        async def taken() -> bool:
            return (await scheduler.get_run(soon.id)).state is not State.PENDING

        await until(taken)
        assert begun == [], "claimed before it is due, and held"
        clock.let_pass(600)
        assert (await ended(scheduler, soon)).state is State.COMPLETED
        assert begun == [soon.id]
        assert (await scheduler.get_run(far.id)).state is State.PENDING
        await scheduler.stop()


# ---- jobs by label ----------------------------------------------------------------------------------------------


async def test_jobs_are_listed_paused_resumed_and_deleted_by_label(still: Scheduler) -> None:
    async with still:
        for number in range(250):
            labels = {"team": "red" if number % 2 else "blue", "number": str(number)}
            await still.add_job(f"job-{number:03}", every("1h"), queue="q", labels=labels)
        red = {"team": "red"}
        assert len((await still.list_jobs(labels=red)).items) == 125
        assert [job.name for job in (await still.list_jobs(labels={**red, "number": "7"})).items] == ["job-007"]
        assert await still.pause_jobs(labels=red, reason="moving") == 125
        page = await still.list_jobs(enabled=False)
        assert {job.pause_reason for job in page.items} == {"moving"}
        assert await still.resume_jobs(labels=red) == 125
        assert await still.delete_jobs(labels=red) == 125
        assert await still.delete_jobs(labels=red) == 0
        assert len((await still.list_jobs()).items) == 125
        for act in (still.delete_jobs, still.pause_jobs, still.resume_jobs):
            with pytest.raises(InvalidRequest, match="labels: give at least one"):
                await act(labels={})


async def test_a_handler_sees_the_labels_of_its_job() -> None:
    async with Scheduler("memory://") as scheduler:

        @scheduler.handler()
        async def work(run: RunContext) -> dict[str, str]:
            return dict(run.labels)

        await scheduler.add_job("j", every("1h"), handler="work", labels={"team": "red"})
        await scheduler.start()
        assert (await ended(scheduler, await scheduler.trigger_job("j"))).result == b'{"team":"red"}'
        assert (await ended(scheduler, await scheduler.enqueue("work"))).result == b"{}"


# ---- runs of any target, and many at once


async def test_a_run_of_any_target_is_added_once_under_its_key() -> None:
    async with Scheduler("memory://") as scheduler:

        @scheduler.handler("mail")
        async def mail(run: RunContext) -> None:
            pass

        queued = await scheduler.add_run(queue="images", payload={"n": 1}, delay="5m", unique_key="k", concurrency="c")
        assert (queued.queue, queued.payload, queued.job) == ("pull/images", b'{"n":1}', None)
        assert (queued.due_at - queued.created_at, queued.concurrency_key) == (timedelta(minutes=5), "c")
        assert await scheduler.add_run(queue="images", unique_key="k") == queued
        assert (await scheduler.add_run(handler=mail, args={"a": 1})).queue == "handler/mail"
        assert (await scheduler.add_run(http="https://example.com/x", priority=3)).priority == 3
        keyed = [{"queue": queue, "unique_key": "k"} for queue in ("images", "q")]
        one, wrong, same, other = await scheduler.add_runs([{"bus": "b"}, {"http": "nope"}, *keyed])
        assert (isinstance(one, Run), isinstance(wrong, InvalidJob), same) == (True, True, queued)
        assert isinstance(other, Conflict), "the key's run is in another queue"
        for given in ({}, {"queue": "q", "http": "https://x.example"}, {"queue": "q", "delai": 1}, {"queue": "a b"}):
            with pytest.raises(InvalidRequest):
                await scheduler.add_run(**given)


async def test_many_runs_are_cancelled_and_retried_by_a_filter(still: Scheduler) -> None:
    async with still as scheduler:
        await scheduler.add_runs([{"queue": "images", "payload": number} for number in range(5)])
        assert (await scheduler.cancel_runs(queue="pull/images", dry_run=True)).matched == 5
        assert (await scheduler.cancel_runs(queue="pull/images", per_second=1_000)).done == 5
        assert (await scheduler.retry_runs(queue="pull/images")).matched == 0, "failed ones, unless said otherwise"
        again = await scheduler.retry_runs(states=["cancelled"], error_contains="cancelled by", per_second=10)
        assert (again.matched, again.done, again.left) == (5, 5, {})
        waiting = (await scheduler.list_runs(states=["pending"])).items
        waits = sorted((run.due_at - to_datetime(START)).total_seconds() for run in waiting)
        assert waits == [0, 0.1, 0.2, 0.3, 0.4]
        once = await scheduler.retry_runs(states=["cancelled"], queue="pull/images")
        assert (once.matched, once.done, once.left) == (5, 0, {"retried_before": 5})
        with pytest.raises(InvalidRequest, match="not both"):
            await scheduler.retry_runs()
        with pytest.raises(InvalidRequest, match="nothing can be done to a completed run"):
            await scheduler.retry_runs(states=["completed"])
