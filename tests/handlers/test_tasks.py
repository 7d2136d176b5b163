"""Handlers with options: typed tasks, defaults of runs, errors that count or not, contexts and hooks around them."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from horarium import (
    Discard,
    InvalidJob,
    InvalidRequest,
    RunContext,
    Scheduler,
    StateConflict,
    SyncScheduler,
    UnknownArgument,
    WrongArguments,
    every,
)
from horarium.library.values import Run
from horarium.testing import perform
from tests.handlers.conftest import done, ended
from tests.passing import PassingClock
from tests.waiting import until


@dataclass
class Report:
    pages: int
    sent_to: str


async def test_a_function_is_itself_and_a_task(scheduler: Scheduler) -> None:
    @scheduler.handler()
    async def send(to: str, subject: str = "hello") -> str:
        return f"{subject} {to}"

    assert inspect.iscoroutinefunction(send)
    assert await send("a") == "hello a"
    runs = [
        await send.enqueue(to="a"),
        await send.enqueue("b", "hi"),
        await send.with_options(delay="5s", priority=3).enqueue(to="c"),
        await send.with_options(delay="5s").with_options(unique_key="k").enqueue("d"),
    ]
    assert [run.payload for run in runs] == [b'{"to":"a"}', b'{"to":"b","subject":"hi"}', b'{"to":"c"}', b'{"to":"d"}']
    assert runs[2].due_at - runs[2].created_at == timedelta(seconds=5)
    assert (runs[2].priority, await send.with_options(unique_key="k").enqueue(to="e")) == (3, runs[3])
    await scheduler.start()
    assert (await ended(scheduler, runs[1])).result == b'"hi b"'


async def test_wrong_calls_of_a_task_are_refused_as_those_of_enqueue(scheduler: Scheduler) -> None:
    @scheduler.job(every("1h"))
    def send(run: RunContext, to: str = "us") -> None: ...

    for wrong, words in (
        (lambda: send.enqueue(1), "argument 'to': expected `str`"),  # type: ignore[arg-type]
        (lambda: send.enqueue("a", "b"), "2 arguments by position were given, and it takes 1"),  # type: ignore[call-arg]
        (lambda: send.enqueue("a", to="b"), "argument 'to' is given twice"),  # type: ignore[misc]
        (lambda: send.enqueue(two="b"), "there is no argument 'two'"),  # type: ignore[call-arg]
    ):
        with pytest.raises(WrongArguments, match=words):
            await wrong()  # type: ignore[no-untyped-call]
    with pytest.raises(UnknownArgument, match="did you mean 'delay'"):
        await send.with_options(dely=3).enqueue()  # type: ignore[call-arg]


async def test_methods_are_tasks_too(scheduler: Scheduler) -> None:
    class Mailer:
        def send(self, to: str) -> str:
            return to

    task = scheduler.handler("send")(Mailer().send)
    assert task("a") == "a"
    assert (await task.enqueue(to="b")).queue == (await scheduler.enqueue(task, {"to": "c"})).queue == "handler/send"


def test_without_asyncio() -> None:
    with SyncScheduler("memory://") as scheduler:

        @scheduler.handler(priority=5)
        def send(to: str) -> None: ...

        assert send.with_options(delay="1h").enqueue(to="a").priority == 5


async def test_options_of_a_handler_are_the_defaults_of_its_runs_and_jobs(scheduler: Scheduler) -> None:
    @scheduler.handler(
        retry={"attempts_max": 7}, timeouts={"execution_seconds": 9}, priority=4, retention={"finished_seconds": 60},
        concurrency={"key": "smtp", "max": 2},
    )  # fmt: skip
    async def send(run: RunContext) -> None: ...

    run = await scheduler.enqueue(send)
    assert run.policy is not None
    assert (run.policy.retry.attempts_max, run.priority, run.concurrency_key) == (7, 4, "smtp")
    assert (run.policy.timeouts.execution_seconds, run.policy.retention.finished_seconds) == (9, 60)
    run = await scheduler.add_run(handler="send", priority=1)
    assert (run.priority, run.concurrency_key) == (1, "smtp")
    job = await scheduler.add_job("often", every("1m"), handler=send, priority=2)
    assert (job.retry.attempts_max, job.priority) == (7, 2)
    with pytest.raises(InvalidRequest, match="concurrency"):
        scheduler.add_handler("x", lambda run: None, concurrency=True)
    with pytest.raises(UnknownArgument, match="did you mean 'retry'"):
        scheduler.handler(retyr=3)(print)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequest, match=r"retry\.attempts: there is no such field"):
        scheduler.add_handler("x", lambda run: None, retry={"attempts": 3})
    with pytest.raises(InvalidJob, match="3 is not a class of exceptions, or a tuple of these"):
        scheduler.add_handler("x", lambda run: None, retry_for=3)  # type: ignore[arg-type]


async def test_a_call_and_a_job_have_their_own_times(scheduler: Scheduler) -> None:
    @scheduler.job(every("1h"))
    @scheduler.handler(delay="5s", priority=3)
    async def work() -> None: ...

    noon = datetime(2200, 1, 1, tzinfo=UTC)
    run = await work.with_options(at=noon).enqueue()
    assert (run.due_at, run.priority) == (noon, 3)
    assert (await scheduler.add_run(handler="work", at=noon)).due_at == noon
    run = await work.enqueue()
    assert run.due_at - run.created_at == timedelta(seconds=5)
    await scheduler.declare()
    assert (await scheduler.get_job("work")).priority == 3


async def failing(scheduler: Scheduler, error: BaseException, **options: Any) -> Run:
    async def fail(run: RunContext) -> None:
        raise error

    name = f"fail-{len(scheduler._program._handlers)}"
    scheduler.add_handler(name, fail, **options)
    await scheduler.start()
    run = await scheduler.enqueue(name, retry={"attempts_max": 2, "backoff_seconds": 0})
    run = await ended(scheduler, run)
    await scheduler.stop()
    return run


async def test_errors_are_retried_or_given_up_by_their_class(scheduler: Scheduler) -> None:
    attempts = [
        (await failing(scheduler, ValueError("x"), retry_for=OSError)).attempt,
        (await failing(scheduler, TimeoutError("x"), retry_for=(OSError, KeyError))).attempt,
        (await failing(scheduler, ValueError("x"), give_up_on=ValueError)).attempt,
        (await failing(scheduler, OSError("x"), give_up_on=ValueError)).attempt,
        (await failing(scheduler, OSError("x"), retry_if=lambda run, error: "y" in str(error))).attempt,
        (await failing(scheduler, OSError("x"), retry_if=lambda run, error: None)).attempt,
        (await failing(scheduler, OSError("x"), retry_if=lambda run, error: timedelta(0))).attempt,
        (await failing(scheduler, OSError("x"), retry_if=lambda run, error: 1 / 0)).attempt,
        (await failing(scheduler, Discard("x"), retry_for=Discard)).attempt,
    ]
    assert attempts == [1, 2, 1, 2, 1, 2, 2, 2, 1]


async def test_an_error_that_is_given_up_on_keeps_its_traceback(scheduler: Scheduler) -> None:
    run = await failing(scheduler, ValueError("no such month"), give_up_on=ValueError)
    assert run.error is not None
    assert run.error.startswith("ValueError: no such month (at test_tasks.py:")
    assert "raise error" in str(run.view().history[-1].detail)


tenant: ContextVar[str] = ContextVar("tenant", default="")


async def test_handlers_are_called_within_contexts(scheduler: Scheduler) -> None:
    seen: list[str] = []

    @scheduler.around
    async def outer(run: RunContext) -> AsyncIterator[None]:
        tenant.set(f"tenant of {run.handler}")
        seen.append("begin")
        try:
            yield
        except ValueError as error:
            seen.append(str(error))
            raise
        finally:
            seen.append("end")

    @scheduler.around
    def inner(run: RunContext) -> contextlib.AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    @scheduler.handler()
    async def plain() -> str:
        return tenant.get()

    @scheduler.handler()
    def threaded() -> str:
        return tenant.get()

    @scheduler.handler()
    def wrong() -> None:
        raise ValueError("wrong")

    await scheduler.start()
    assert (await done(scheduler, "plain")).result == b'"tenant of plain"'
    assert (await done(scheduler, "threaded")).result == b'"tenant of threaded"'
    run = await done(scheduler, "wrong")
    assert (run.state, str(run.error)[:17]) == ("failed", "ValueError: wrong")
    assert seen == ["begin", "end", "begin", "end", "begin", "wrong", "end"]
    assert await perform(scheduler, "plain") == "tenant of plain"
    with pytest.raises(InvalidJob, match="around"):
        scheduler.around(outer)


async def test_a_plain_context_is_entered_where_the_handler_is_called(scheduler: Scheduler) -> None:
    seen: list[Any] = []

    @scheduler.around
    def around(run: RunContext) -> Iterator[None]:
        seen.append(threading.get_ident())
        with contextlib.suppress(KeyError):
            yield

    @scheduler.handler()
    def threaded() -> None:
        seen.append(threading.get_ident())
        raise KeyError

    @scheduler.handler()
    async def here() -> None:
        seen.append(threading.get_ident())

    await scheduler.start()
    assert (await done(scheduler, "threaded")).state == "completed"
    assert (await done(scheduler, "here")).state == "completed"
    assert seen[0] == seen[1] != threading.get_ident() == seen[2] == seen[3]
    assert await perform(scheduler, "here") is None


async def test_a_context_may_fail_or_mend(scheduler: Scheduler) -> None:
    @scheduler.around
    async def around(run: RunContext) -> AsyncIterator[None]:
        if run.args.get("refuse"):
            raise PermissionError("not now")
        with contextlib.suppress(KeyError):
            yield

    @scheduler.handler()
    async def work(run: RunContext) -> None:
        raise KeyError

    await scheduler.start()
    assert (await done(scheduler, "work", {})).state == "completed"
    run = await done(scheduler, "work", {"refuse": True})
    assert (run.state, "PermissionError: not now" in str(run.error)) == ("failed", True)


async def test_a_time_limit_ends_the_context_too(scheduler: Scheduler, clock: PassingClock) -> None:
    ended_by: list[str] = []

    @scheduler.around
    async def around(run: RunContext) -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            ended_by.append(type(error).__name__)
            raise

    @scheduler.handler(timeouts={"execution_seconds": 0.1})
    async def endless() -> None:
        await asyncio.Event().wait()

    await scheduler.start()
    clock.let_pass(30)  # A node that has just started leaves leases that ended to others for a while.
    assert (await done(scheduler, "endless")).state == "failed"
    assert ended_by == ["CancelledError"]


async def test_a_result_has_its_type(scheduler: Scheduler) -> None:
    @scheduler.handler(retry={"attempts_max": 1})
    async def report(run: RunContext, month: int) -> Report:
        if month > 12:
            raise ValueError("no such month")
        return Report(month, "team")

    run = await report.enqueue(month=3)
    with pytest.raises(StateConflict, match="it is pending"):
        await scheduler.result(run)
    await scheduler.start()
    await ended(scheduler, run)
    assert await scheduler.result(run, as_=Report) == Report(3, "team")
    assert await scheduler.result(run.id) == {"pages": 3, "sent_to": "team"}
    with pytest.raises(InvalidRequest, match="is no"):
        await scheduler.result(run, as_=int)
    failed = await ended(scheduler, await report.enqueue(month=13))
    with pytest.raises(StateConflict, match="it is failed: ValueError: no such month"):
        await scheduler.result(failed)


async def test_a_function_in_place_of_the_policy_judges_errors(scheduler: Scheduler) -> None:
    assert (await failing(scheduler, OSError("x"), retry=lambda run, error: "y" in str(error))).attempt == 1
    assert (await failing(scheduler, OSError("x"), retry=lambda run, error: timedelta(0))).attempt == 2


async def never(run: RunContext, error: BaseException) -> bool:
    return False


@pytest.mark.parametrize("answer", ["soon", object(), [5], float("nan")])
async def test_a_judge_that_answers_nonsense_leaves_it_to_the_policy(scheduler: Scheduler, answer: Any) -> None:
    """The end of the run is written, as those of all others that end together with it."""
    run = await failing(scheduler, OSError("x"), retry=lambda run, error: answer)
    assert (run.state, run.attempt) == ("failed", 2)


async def test_a_judge_is_a_plain_function(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidJob, match="retry_if must be a plain function"):
        scheduler.add_handler("x", print, retry=never)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="retry_if must be a plain function"):
        scheduler.add_handler("x", print, retry_if=5)  # type: ignore[arg-type]


async def test_calls_of_a_handler_are_unique_by_its_key(scheduler: Scheduler) -> None:
    @scheduler.handler(unique={"key": "receipt:{args.order}", "until": "finished"})
    async def receipt(order: int) -> None: ...

    scheduler.add_handler("loose", lambda run: None, unique={"key": "{args.order}"})
    first = await receipt.enqueue(order=1)
    assert await scheduler.enqueue(receipt, {"order": 1}) == first
    assert (await scheduler.add_run(handler=receipt, args={"order": 1})) == first
    second, again = await scheduler.enqueue_many(receipt, [{"order": 2}, {"order": 1}])
    assert (again, second != first.id) == (first.id, True)
    assert (await receipt.with_options(unique_key="other").enqueue(order=1)).id not in (first.id, second)
    with pytest.raises(InvalidRequest, match=r"unique\.key: \{args\.order\} of the key .* is missing"):
        await scheduler.enqueue("loose", {"other": 1})
    with pytest.raises(InvalidJob, match=r"\{orders\} is unknown in a key"):
        scheduler.add_handler("wrong", print, unique={"key": "{orders}"})


async def test_a_process_that_names_queues_performs_their_handlers_alone(scheduler: Scheduler) -> None:
    scheduler.add_handler("heavy", lambda run: None, queue="heavy")
    scheduler.add_handler("light", lambda run: None)
    scheduler.configure(queues=["heavy"])
    await scheduler.start()
    light = await scheduler.enqueue("light")
    assert (await done(scheduler, "heavy")).state == "completed"
    assert (await scheduler.get_run(light.id)).state == "pending"
    await scheduler.stop()
    scheduler.configure(queues=["default"])
    await scheduler.start()
    assert (await ended(scheduler, light)).state == "completed"
    with pytest.raises(InvalidJob, match="queue must be a name, not 3"):
        Scheduler("memory://").add_handler("x", lambda run: None, queue=3)  # type: ignore[arg-type]


async def is_held(scheduler: Scheduler, run: Run) -> bool:
    """Whether the claim has put it off until the end of a hold."""
    return (await scheduler.get_run(run.id)).due_at > run.due_at


async def test_a_one_off_run_has_labels_of_its_own(scheduler: Scheduler) -> None:
    seen: list[Any] = []

    @scheduler.handler(labels={"team": "billing"}, concurrency="{label.team}")
    async def send(run: RunContext) -> None:
        seen.append(dict(run.labels))

    run = await scheduler.enqueue(send)
    assert (run.to_dict()["labels"], run.concurrency_key) == ({"team": "billing"}, "billing")
    hold = await scheduler.add_hold({"scope": {"labels": {"team": "sales"}}, "reason": "their database moves"})
    await scheduler.start()
    sales = await scheduler.enqueue(send, labels={"team": "sales"})
    await ended(scheduler, run)
    await until(lambda: is_held(scheduler, sales), what="the claim to find it held")
    await scheduler.lift_hold(hold["id"])
    await ended(scheduler, sales)
    assert seen == [{"team": "billing"}, {"team": "sales"}]
    with pytest.raises(InvalidRequest, match=r"labels"):
        await scheduler.enqueue(send, labels={"no good": "x"})


async def test_the_unique_key_of_a_handler_holds_in_batches_too(scheduler: Scheduler) -> None:
    scheduler.handler("greet", unique={"key": "to {args.name}"})(lambda run: None)
    scheduler.handler("count", unique={"key": "n", "until": "finished"})(lambda run: None)
    names = [{"name": name} for name in ("Kim", "Straße 7", "Kim")]
    async with scheduler.batch() as batch:
        await batch.enqueue_many("greet", names)
        again = await batch.enqueue("greet", names[1])
        with pytest.raises(InvalidRequest, match="unique: a run of a batch holds its key for as long as it is kept"):
            await batch.enqueue("count")
        await batch.enqueue("count", unique_key="mine")
    assert (await scheduler.get_batch(batch.id)).total == 3
    assert await scheduler.enqueue("greet", names[1]) == again
