"""What a program gave and can't be meant: said at once, with the nearest word or what is allowed."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from horarium import RunContext, Scheduler, SyncScheduler, WrongArguments, cron, every
from horarium.errors import InvalidJob, InvalidRequest, InvalidSetting, InvalidTrigger, NotFound, UnknownArgument
from horarium.library.fields import JobFields, SchedulerOptions
from horarium.library.scheduler import LIBRARY_ROLES
from horarium.node.runtime import ROLES, Options
from horarium.wire.definitions import JobDefinition


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    async with Scheduler("memory://") as scheduler:
        yield scheduler


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"handler_concurency": 3}, r"handler_concurency: there is no such argument \(did you mean 'handler_concurre"),
        ({"handler_concurrency": "3"}, "handler_concurrency: expected int, got str"),
        ({"handler_concurrency": 0}, "handler_concurrency: must be from 1 to 10,000, not 0"),
        ({"grace_seconds": "30s"}, "grace_seconds: expected float, got str"),
        ({"node_name": "a\udcff"}, "node_name: 'a.udcff' holds half of a surrogate pair"),
        ({"roles": "planner"}, "roles: expected array, got str"),
        ({"roles": ["planer"]}, r"roles\[0\]: expected one of .*not 'planer' \(did you mean 'planner'\?\)"),
        ({"namespce": "x"}, "did you mean 'namespace'"),
        ({"namespace": "a b"}, "namespace: expected 1 to 63 letters, digits, - or _, not 'a b'"),
        ({"namespace": 3}, "namespace: expected .*, not 3"),
        ({"program": ""}, "program: expected a name of 1 to 200 characters, not ''"),
        ({"program": 5}, "program: expected .*, not 5"),
        ({"frobnicate": 1}, "frobnicate: there is no such argument; known: store, namespace, program, clock, roles"),
    ],
)
@pytest.mark.parametrize("kind", [Scheduler, SyncScheduler])
def test_an_option_that_can_not_be_meant(kind: Callable[..., Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises((UnknownArgument, InvalidSetting), match=words):
        kind("memory://", **options)


@pytest.mark.parametrize("store", [None, Path("horarium.db")])
def test_a_store_is_a_url_or_a_store(store: Any) -> None:
    with pytest.raises(InvalidSetting, match=r"store: expected a URL such as .*, not (None|a PosixPath)"):
        Scheduler(store)


@pytest.mark.parametrize("zone", [ZoneInfo("Europe/Berlin"), UTC, None])
def test_a_time_zone_is_given_by_its_name(zone: Any) -> None:
    with pytest.raises(InvalidTrigger, match="timezone: expected an IANA name such as 'Europe/Berlin', not "):
        cron("0 3 * * *", timezone=zone)


def test_an_unknown_argument_is_a_type_error_too() -> None:
    with pytest.raises(TypeError, match="nod_name"):
        Scheduler("memory://", nod_name="x")  # type: ignore[call-arg]
    assert issubclass(UnknownArgument, ValueError)


def test_the_options_are_those_of_a_node() -> None:
    known = set(inspect.signature(Options.__init__).parameters) - {"self"}
    assert set(SchedulerOptions.__annotations__) == known
    assert set(LIBRARY_ROLES) == set(ROLES) - {"api"}


def test_the_fields_of_a_job_are_those_of_a_definition() -> None:
    assert {*JobFields.__annotations__, "name", "trigger", "target"} == set(JobDefinition.__struct_fields__)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"overlap": "forbid"}, "overlap: expected one of allow, skip, buffer_one, buffer_all, cancel_other, termi"),
        ({"retry": {"attempts": 3}}, r"retry.attempts: there is no such field \(did you mean 'attempts_max'\?\)"),
        ({"timeouts": {"execution": 3}}, "did you mean 'execution_seconds'"),
        ({"retries": 3}, r"retries: there is no such argument \(did you mean 'retry'\?\)"),
        ({"priority": 10**30}, "priority: expected int <= 1000"),
        ({"catch_up": "newest"}, "catch_up.policy: expected one of none, latest, all, ask, not 'newest'"),
        ({"retry": object()}, "retry: a object can't be kept in a job"),
        ({"fires_max": 0, "jitter_seconds": -1}, "jitter_seconds: expected float >= 0.0; fires_max: expected int >= 1"),
        ({"handler": None}, "give exactly one of handler, http, queue, bus and target"),
    ],
)
async def test_a_field_of_a_job_that_can_not_be_meant(scheduler: Scheduler, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidJob, match=words) as caught:
        await scheduler.add_job("j", every("5m"), **{"handler": "h", **fields})
    assert caught.value.field in {*fields, *str(caught.value).split(": ")[0].split(), "target"}
    assert (await scheduler.list_jobs()).items == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retry": 3}, 'retry: expected object, got int; give an object, such as {"attempts_max": 3}'),
        ({"timeouts": "60s"}, 'timeouts: expected object, got str; give an object, such as {"heartbeat_seconds": 30}'),
        ({"rate": 5}, "rate[0]: expected object, got int; give an object with max, per_seconds, key"),
        ({"unique": True}, "unique: expected object, got bool; give an object with key"),
        ({"priority": "high"}, "priority: must be a whole number from -1,000 to 1,000, not 'high'"),
    ],
)
def test_an_option_of_a_handler_of_another_type_says_what_would_do(
    scheduler: Scheduler, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(words) + "$"):
        scheduler.handler("report", **options)(lambda run: None)


@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        ("*/5 * * * *", r"'\*/5 \* \* \* \*' is a bare text; .*: cron\('\*/5 \* \* \* \*'\)"),
        ("@daily", r"cron\('@daily'\)"),
        ("FREQ=DAILY", r"rrule\('FREQ=DAILY'\)"),
        ("5m", r"every\('5m'\)"),
        ("2030-01-01T00:00:00Z", r"at\('2030"),
        ("every tuesday at noon", r"when\('every tuesday at noon'\)"),
        ("now and then", r"cron\(\.\.\.\), rrule\(\.\.\.\)"),
        (timedelta(minutes=5), r"every\(timedelta"),
        (datetime(2030, 1, 1, tzinfo=UTC), r"at\(datetime"),
        (300, r"expected cron\(\.\.\.\), .* not 300"),
        (None, "not None"),
    ],
)
async def test_a_trigger_that_is_none_says_how_to_write_it(scheduler: Scheduler, trigger: Any, words: str) -> None:
    with pytest.raises(InvalidTrigger, match=words) as caught:
        await scheduler.add_job("j", trigger, handler="h")
    assert caught.value.field == "trigger"
    with pytest.raises(InvalidTrigger, match=words):
        scheduler.job(trigger)


@pytest.mark.parametrize(
    ("make", "given", "words"),
    [
        (cron, {"hour": 3}, r'there is no argument \'hour\'; give an expression: cron\("0 3 \* \* \*"\)'),
        (cron, {"minute": "*/5"}, r'cron\("\*/5 \* \* \* \*"\)'),
        (cron, {"hour": 7, "minute": 30, "day_of_week": "mon"}, r'cron\("30 7 \* \* mon"\)'),
        (cron, {"day": 1}, r'cron\("0 0 1 \* \*"\)'),
        (cron, {"day_of_week": "fri"}, r'cron\("0 0 \* \* fri"\)'),
        (cron, {"month": 6}, r'cron\("0 0 1 6 \*"\)'),
        (cron, {"second": "*/10"}, r'cron\("\*/10 \* \* \* \* \*"\)'),
        (cron, {"expression": "0 3 * * *", "tz": "UTC"}, "there is no argument 'tz'; known: expression, timezone"),
        (cron, {"expression": "0 3 * * *", "timezon": "UTC"}, "did you mean 'timezone'"),
        (every, {"minutes": 5}, r'there is no argument \'minutes\'; give a duration: every\("5m"\)'),
        (every, {"hours": 1, "minutes": 30}, r'every\("1h30m"\)'),
        (every, {"seconds": 1.5}, r"every\(timedelta\(seconds=1.5\)\)"),
        (every, {"duration": "5m", "ancho": None}, "did you mean 'anchor'"),
    ],
)
def test_arguments_of_other_schedulers_are_answered_with_ours(
    make: Callable[..., Any], given: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnknownArgument, match=words):
        make(**given)


async def test_a_handler_may_be_given_by_its_function(scheduler: Scheduler) -> None:
    @scheduler.handler("report")
    async def make_report(run: RunContext, month: int) -> None: ...

    async def other(run: RunContext) -> None: ...

    job = await scheduler.add_job("monthly", cron("0 3 1 * *"), handler=make_report, args={"month": 1})
    assert job.queue == "handler/report"
    assert (await scheduler.enqueue(make_report, {"month": 2})).queue == "handler/report"
    with pytest.raises(WrongArguments, match="month"):
        await scheduler.enqueue(make_report, {"mont": 2})
    with pytest.raises(InvalidJob, match=r"handler: the function other is not registered; put @scheduler\.handler"):
        await scheduler.add_job("j", every("5m"), handler=other)
    with pytest.raises(InvalidRequest, match="the function other is not registered"):
        await scheduler.enqueue(other)


async def test_states_of_runs_are_one_or_several(scheduler: Scheduler) -> None:
    run = await scheduler.add_run(queue="q", delay="1h")
    for states in ("pending", ["pending"], ("running", "pending")):
        assert [found.id for found in (await scheduler.list_runs(states=states)).items] == [run.id]
    assert (await scheduler.list_runs(states="skipped")).items == ()
    expected = r"states: 'pendng' is none of pending, running, .* \(did you mean 'pending'\?\)"
    with pytest.raises(InvalidRequest, match=expected):
        await scheduler.list_runs(states="pendng")
    with pytest.raises(InvalidRequest, match=expected):
        await scheduler.cancel_runs(states=["pendng"])


class Mailer:
    def send(self, to: str) -> None: ...

    def __call__(self, to: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (partial(print, "x"), r"handler: functools\.partial\(.*\) has no name; give it one, as in handler\('name'\)"),
        (Mailer(), r"handler: <.*Mailer object at .*> has no name"),
        (lambda run: None, r"handler: <function <lambda> at .*> has no name"),
        (Mailer.send, "handler 'send': it is a method without its object; give that of one"),
    ],
)
async def test_a_function_without_a_name_or_an_object_is_refused(
    scheduler: Scheduler, function: Any, words: str
) -> None:
    with pytest.raises(InvalidJob, match=words):
        scheduler.handler()(function)
    with pytest.raises(InvalidJob, match=words):
        scheduler.job(every("1h"))(function)
    known: Any = Mailer().send if function is Mailer.send else function
    task: Any = scheduler.handler("named")(known)
    assert task.enqueue


async def test_two_judges_of_one_handler_are_refused(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidJob, match="handler 'x': retry is a function, and so is retry_if; give one of them"):
        scheduler.add_handler("x", print, retry=lambda run, error: False, retry_if=lambda run, error: True)


REASONS: dict[str, Callable[[Scheduler, Any], Any]] = {
    "pause": lambda s, reason: s.pause_job("j", reason),
    "pause by label": lambda s, reason: s.pause_jobs(labels={"team": "red"}, reason=reason),
    "cancel": lambda s, reason: s.cancel_run("x", reason=reason),
    "cancel many": lambda s, reason: s.cancel_runs(queue="handler/h", reason=reason),
    "cancel a batch": lambda s, reason: s.cancel_batch("x", reason),
    "skip": lambda s, reason: s.skip_fire("j", datetime(2030, 1, 1, tzinfo=UTC), reason=reason),
    "decide": lambda s, reason: s.decide("x", "approve", reason=reason),
}


@pytest.mark.parametrize("call", REASONS.values(), ids=REASONS)
async def test_a_reason_that_is_no_text_is_refused_and_the_job_stays_readable(tmp_path: Path, call: Any) -> None:
    async with Scheduler(f"sqlite:///{tmp_path}/s.db") as scheduler:
        await scheduler.add_job("j", every("1h"), handler="h", labels={"team": "red"})
        for reason in (4711, {"ticket": 4711}):
            with pytest.raises(InvalidRequest, match=r"reason: expected a text, not (4711|a dict)"):
                await call(scheduler, reason)
        assert (await scheduler.get_job("j")).pause_reason is None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.lift_hold(5), "id: expected a text, not 5"),
        (lambda s: s.get_job(None), "name: expected a text, not None"),
        (lambda s: s.list_runs(job={"a": 1}), "job: expected a text, not a dict"),
        (lambda s: s.list_rates(prefix=b"x"), "prefix: expected a text, not a bytes"),
        (lambda s: s.fair_weights(5), "queue: expected a text, not 5"),
        (lambda s: s.wait_for_batch(5), "id: expected a text, not 5"),
        (lambda s: s.plan(5), "documents: expected object, got int"),
        (lambda s: s.plan({"jobs": 5}), "documents.jobs: expected array, got int"),
        (lambda s: s.plan({}, horizon_seconds="1d"), "horizon_seconds: expected a whole number, not '1d'"),
        (lambda s: s.forecast(bucket_seconds="1h"), "bucket_seconds: expected a whole number, not '1h'"),
        (lambda s: s.set_fair_weights("q", 5), "weights: expected object, got int"),
        (lambda s: s.create_feed("f", labels=5), "labels: expected object, got int"),
        (lambda s: s.enqueue(["h"]), "name: a list is no handler's name"),
        (lambda s: s.decide("x", {"a": 1}), "decision: expected one of approve, "),
    ],
)
async def test_an_argument_of_another_type_is_named(scheduler: Scheduler, call: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(words)):
        await call(scheduler)


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.add_job("k", every("1h"), handler="h", title="\ud800"),
        lambda s: s.add_job("k", every("1h"), handler="h", labels={"team": "\ud800"}),
        lambda s: s.add_job("k", every("1h"), handler="h", retry={"\ud800": 1}),
        lambda s: s.add_job("k", every("1h"), queue="q", payload="\ud800"),
        lambda s: s.add_job("k", every("1h"), http={"url": "https://example.org", "body": "\ud800"}),
        lambda s: s.get_job("\ud800"),
        lambda s: s.enqueue("h", labels={"team": "\ud800"}),
        lambda s: s.enqueue("h", fair="\ud800"),
        lambda s: s.add_runs([{"queue": "q", "payload": "\ud800"}]),
        lambda s: s.trigger_job("j", {"a": "\ud800"}),
        lambda s: s.trigger_job("j", unique_key="\ud800"),
        lambda s: s.pause_job("j", "\ud800"),
        lambda s: s.list_jobs(labels={"team": "\ud800"}),
        lambda s: s.add_hold({"scope": {"queue": "q"}, "reason": "\ud800"}),
        lambda s: s.put_channel("c", {"type": "email", "to": ["a@b.c"], "template": "\ud800"}),
        lambda s: s.set_rate("\ud800", "1/1m"),
        lambda s: s.delete_job("j", actor="\ud800"),
    ],
)
async def test_half_of_a_surrogate_pair_is_no_text_and_writes_nothing(tmp_path: Path, call: Any) -> None:
    async with Scheduler(f"sqlite:///{tmp_path}/s.db") as scheduler:
        before = await scheduler.add_job("j", every("1h"), handler="h")
        with pytest.raises((InvalidRequest, InvalidJob, NotFound), match=r"surrogate|written as JSON|no job named"):
            await call(scheduler)
        assert (await scheduler.list_jobs()).items == (before,)
        assert (await scheduler.list_runs()).items == ()


async def test_a_feed_of_labels_that_are_no_texts_is_refused_and_all_stay_readable(tmp_path: Path) -> None:
    async with Scheduler(f"sqlite:///{tmp_path}/s.db") as scheduler:
        for fields, words in (
            ({"labels": {"team": 5}}, "labels.*: expected str, got int"),
            ({"jobs": ["nightly", 5]}, r"jobs\[1\]: expected str, got int"),
            ({"jobs": "nightly"}, "jobs: expected array, got str"),
        ):
            with pytest.raises(InvalidRequest, match=words):
                await scheduler.create_feed("mine", **fields)
        assert await scheduler.list_feeds() == []
