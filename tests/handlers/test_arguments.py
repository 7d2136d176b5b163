"""Typed arguments: from JSON to what a function declares, and what is said when that can't be."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol
from uuid import UUID

import pydantic
import pytest
from msgspec import Meta, Struct

from horarium import InvalidJob, InvalidRequest, RunContext, Scheduler, WrongArguments, every
from horarium.delivery.arguments import Arguments
from horarium.delivery.handler import Handler
from horarium.library.one_offs import encode_args
from horarium.library.values import Run
from horarium.rules.refusals import REFUSALS_SECONDS
from horarium.testing.values import a_run
from tests.handlers.conftest import ONCE, done, ended
from tests.passing import PassingClock
from tests.waiting import until

if TYPE_CHECKING:
    from collections import OrderedDict


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Line(Struct):
    sku: str
    count: int = 1


@dataclass
class Order:
    id: UUID
    lines: list[Line]


async def everything(  # type: ignore[no-untyped-def]
    run: RunContext,
    number: int,
    share: float,
    at: datetime,
    day: date,
    lasts: timedelta,
    price: Decimal,
    size: Size,
    kind: Literal["a", "b"],
    order: Order,
    tags: set[str],
    pair: tuple[int, str],
    note: str | None,
    page: Annotated[int, Meta(ge=1)] = 1,
    *,
    free: Any = None,
    untyped="yes",
) -> None: ...


GIVEN: dict[str, Any] = {
    "number": 3,
    "share": 1,
    "at": datetime(2026, 3, 1, 12, tzinfo=UTC),
    "day": date(2026, 3, 1),
    "lasts": timedelta(minutes=5),
    "price": Decimal("9.95"),
    "size": Size.LARGE,
    "kind": "b",
    "order": Order(UUID(int=7), [Line("x"), Line("y", 2)]),
    "tags": {"t"},
    "pair": (1, "one"),
    "note": None,
}


def arguments(function: Callable[..., Any]) -> Arguments:
    return Handler("work", function).arguments


def test_what_was_enqueued_arrives_as_the_types_that_are_declared() -> None:
    assert arguments(everything).of(encode_args(GIVEN), None) == GIVEN


def test_what_stands_in_a_job_as_plain_values_arrives_likewise() -> None:
    plain = {**GIVEN, "at": "2026-03-01T12:00:00Z", "day": "2026-03-01", "lasts": "PT5M", "price": "9.95"}
    plain |= {"size": "large", "tags": ["t"], "pair": [1, "one"]}
    plain["order"] = {"id": str(UUID(int=7)), "lines": [{"sku": "x"}, {"sku": "y", "count": 2}]}
    assert arguments(everything).of(None, plain) == GIVEN


def test_a_default_is_the_functions_own() -> None:
    def work(run: RunContext, a: int = 5, b: list[int] = []) -> None: ...  # noqa: B006

    assert arguments(work).of(b"{}", None) == {}
    assert arguments(work).of(b'{"b":[1]}', None) == {"b": [1]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"number": "3"}, "argument 'number': expected `int`, got `str`"),
        ({"number": None}, "argument 'number': expected `int`, got `null`"),
        ({"size": "huge"}, "argument 'size': invalid enum value 'huge'"),
        ({"page": 0}, "argument 'page': expected `int` >= 1"),
        ({"at": "yesterday"}, "argument 'at': invalid RFC3339 encoded datetime"),
        ({"order": {"id": str(UUID(int=1)), "lines": [{"sku": 1}]}}, "argument 'order.lines[0].sku': expected `str`"),
        ({"order": {"id": str(UUID(int=1))}}, "argument 'order': object missing required field `lines`"),
        ({"colour": "red"}, "there is no argument 'colour'; handler 'work' takes number, share, at"),
    ],
)
def test_wrong_args_are_told_by_their_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(WrongArguments) as caught:
        arguments(everything).of(encode_args({**GIVEN, **changes}), None)
    assert str(caught.value).startswith(words)
    with pytest.raises(WrongArguments, match=r"argument 'number' is missing"):
        arguments(everything).of(b"{}", None)
    with pytest.raises(WrongArguments, match=r"args: expected `object`, got `array`"):
        arguments(everything).of(b"[1]", None)


def test_a_function_with_open_keywords_takes_what_it_does_not_name() -> None:
    def work(run: RunContext, a: int, **others: Any) -> None: ...

    assert arguments(work).of(b'{"a":1,"b":[2]}', None) == {"a": 1, "b": [2]}
    with pytest.raises(WrongArguments, match="argument 'a': expected `int`"):
        arguments(work).of(None, {"a": "x", "b": 2})


def test_a_function_of_the_run_alone_is_given_anything() -> None:
    def work(run: RunContext) -> None: ...

    assert arguments(work).of(b"[1,2]", None) == {}


def test_a_parameter_that_json_can_not_give_keeps_its_default() -> None:
    def work(run: RunContext, a: int, clock: Scheduler = Scheduler("memory://")) -> None: ...  # noqa: B008

    with pytest.raises(WrongArguments, match="no argument 'clock'"):
        arguments(work).of(b'{"a":1,"clock":3}', None)


class Callable_:  # noqa: N801
    async def __call__(self, run: RunContext, a: int) -> int:
        return a

    def method(self, run: RunContext, a: int) -> int:
        return a


def test_methods_partials_and_objects_are_functions_too() -> None:
    def work(run: RunContext, a: int, b: str) -> None: ...

    assert arguments(Callable_()).of(b'{"a":1}', None) == {"a": 1}
    assert Handler("x", Callable_()).is_async
    assert arguments(Callable_().method).of(b'{"a":1}', None) == {"a": 1}
    assert arguments(functools.partial(work, b="x")).of(b'{"a":1}', None) == {"a": 1}


def yields(run: RunContext) -> Any:
    yield 1


def foreign(run: RunContext, scheduler: Scheduler) -> None: ...


def unread(run: RunContext, a: OrderedDict[str, int]) -> None: ...


def by_position(run: RunContext, a: int, /) -> None: ...


def alone_by_position(order: int, /) -> None: ...


def another_run(order: int, run: int) -> None: ...


class Named(Protocol):
    id: str


def of_a_protocol(run: Named) -> None: ...
def of_anything(run: Any) -> None: ...
def of_an_object(run: object) -> None: ...
def of_the_run(run: RunContext | None) -> None: ...
def of_one_for_type_checkers(run: OrderedDict[str, int]) -> None: ...


@pytest.mark.parametrize("function", [of_a_protocol, of_anything, of_an_object, of_the_run, of_one_for_type_checkers])
def test_the_run_may_be_declared_as_anything_that_it_can_be(function: Any) -> None:
    assert Handler("h", function).free


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (another_run, "its parameter 'run' is given the run, and is declared as int; give it another name"),
        (alone_by_position, "parameter 'order' can't be given by name; drop the `/`"),
        (by_position, "parameter 'a' can't be given by name"),
        (foreign, "parameter 'scheduler' is a <class 'horarium.library.scheduler.Scheduler'>, which JSON can't give"),
        (unread, "the type 'OrderedDict[str, int]' of parameter 'a' can't be read"),
        (yields, "it yields"),
        (3, "is not a function"),
    ],
)
def test_what_can_not_be_a_handler_is_refused_when_it_is_registered(function: Any, words: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        Scheduler("memory://").add_handler("work", function)
    assert words in str(caught.value)


def alone(a: int = 1) -> Any:
    return a


def nothing() -> Any:
    return 1


def last(a: int, run: RunContext) -> Any:
    return a, run


def by_name(*, own: RunContext) -> Any:
    return own


def untyped(ctx) -> Any:  # type: ignore[no-untyped-def]
    return ctx


def by_place(own, /, a: int = 1) -> Any:  # type: ignore[no-untyped-def]
    return own


def of_everything(*args: Any) -> Any:
    return args[0]


RUN = a_run(1, queue="handler/h", payload=b"{}")
CONTEXT = RunContext(RUN, None, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "answer"),
    [
        (alone, 1),
        (nothing, 1),
        (by_name, CONTEXT),
        (untyped, CONTEXT),
        (by_place, CONTEXT),
        (of_everything, CONTEXT),
        (functools.partial(last, 5), (5, CONTEXT)),
    ],
)
def test_the_run_is_given_where_it_is_asked_for(function: Any, answer: Any) -> None:
    assert Handler("h", function).call(CONTEXT) == answer


def test_a_function_without_the_run_is_given_its_args_alone() -> None:
    assert arguments(alone).of(b'{"a":2}', None) == {"a": 2}
    with pytest.raises(WrongArguments, match="there is no argument 'b'; handler 'work' takes none"):
        arguments(nothing).of(b'{"b":2}', None)


async def test_a_type_defined_beside_the_handler_is_found(scheduler: Scheduler) -> None:
    class Local(Struct):
        x: int

    @scheduler.handler()
    async def work(run: RunContext, local: Local) -> int:
        assert isinstance(local, Local)
        return local.x

    await scheduler.start()
    assert (await done(scheduler, "work", {"local": Local(4)})).result == b"4"


# ---- what a caller sees -----------------------------------------------------------------------------------------


async def test_enqueue_and_add_job_refuse_what_a_handler_of_this_process_can_not_take(scheduler: Scheduler) -> None:
    @scheduler.handler()
    def charge(run: RunContext, cents: int, to: str = "us") -> None: ...

    with pytest.raises(WrongArguments, match="argument 'cents' is missing"):
        await scheduler.enqueue("charge")
    with pytest.raises(WrongArguments, match="argument 'cents': expected `int`, got `str`"):
        await scheduler.enqueue_many("charge", [{"cents": 1}, {"cents": "2"}])
    with pytest.raises(WrongArguments, match="no argument 'sents'"):
        await scheduler.add_job("monthly", every("5m"), handler="charge", args={"cents": 1, "sents": 2})
    assert (await scheduler.list_runs()).items == ()
    assert (await scheduler.list_jobs()).items == ()


async def test_wrong_args_from_elsewhere_fail_for_good_before_the_function_is_called(scheduler: Scheduler) -> None:
    begun: list[str] = []
    async with Scheduler(scheduler._runtime.store) as elsewhere:
        run = await elsewhere.enqueue("charge", {"cents": "five"}, retry={"attempts_max": 5})

    @scheduler.handler()
    def charge(run: RunContext, cents: int) -> None:
        begun.append(run.id)

    await scheduler.open()
    await scheduler.start()
    run = await ended(scheduler, run)
    assert (run.state, run.attempt, run.error) == ("failed", 1, "argument 'cents': expected `int`, got `str`")
    assert begun == []


async def test_a_run_of_a_newer_release_waits_for_a_worker_that_knows_its_args(
    scheduler: Scheduler, clock: PassingClock
) -> None:
    async def charge_as_before(run: RunContext, cents: int) -> None: ...
    def charge(run: RunContext, cents: int, currency: str) -> str:
        return f"{cents} {currency}"

    scheduler.add_handler("charge", charge_as_before)
    await scheduler.start()
    async with Scheduler(scheduler._runtime.store, clock=clock) as newer:
        newer.add_handler("charge", charge)
        run = await newer.enqueue("charge", {"cents": 5, "currency": "EUR"}, **ONCE)
        put_back = await until(lambda: refused(scheduler, run))
        assert (put_back.state, put_back.attempt) == ("pending", 0)
        assert "there is no argument 'currency'; handler 'charge' takes cents" in put_back.history[-1].message
        await scheduler.stop()
        await newer.start()
        clock.let_pass(5)
        run = await ended(newer, run)
    assert (run.state, run.attempt, run.result) == ("completed", 1, b'"5 EUR"')


async def refused(scheduler: Scheduler, run: Run) -> Run | None:
    found = await scheduler.get_run(run.id)
    return found if found.history[-1].message.startswith("deferred to") else None


async def test_a_run_with_args_that_no_worker_knows_fails_for_good(scheduler: Scheduler, clock: PassingClock) -> None:
    @scheduler.handler()
    def charge(run: RunContext, cents: int) -> None: ...

    async with Scheduler(scheduler._runtime.store, clock=clock) as elsewhere:
        run = await elsewhere.enqueue("charge", {"cent": 5}, retry={"attempts_max": 5})
    await scheduler.open()
    await scheduler.start()
    await until(lambda: refused(scheduler, run))
    clock.let_pass(REFUSALS_SECONDS)
    run = await ended(scheduler, run)
    assert (run.state, run.attempt) == ("failed", 1)
    assert run.error == "there is no argument 'cent'; handler 'charge' takes cents"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"x": object()}, "args: can't be written as JSON: Encoding objects of type object is unsupported"),
        ({"x": "\ud800"}, "args: can't be written as JSON"),
        ({"x": [1.0, float("nan")]}, "args: can't be written as JSON: args['x'][1] is not a finite number"),
        ([1], "args: expected a mapping from names to values, not list"),
        ("x", "args: expected a mapping from names to values, not str"),
        ({"x": "y" * 300_000}, "args: 300,008 bytes; at most 262,144 are kept"),
    ],
)
async def test_args_that_can_not_be_kept_are_value_errors(scheduler: Scheduler, args: Any, words: str) -> None:
    with pytest.raises(ValueError, match="args") as caught:
        await scheduler.enqueue("anything", args)
    assert str(caught.value).startswith(words)
    with pytest.raises(ValueError, match="args"):
        await scheduler.add_job("j", every("5m"), handler="anything", args=args)


async def test_a_job_keeps_args_of_any_type_that_json_can_hold(scheduler: Scheduler) -> None:
    seen: list[Any] = []

    @scheduler.handler()
    async def work(run: RunContext, at: datetime, size: Size) -> None:
        seen.extend([at, size, run.args])

    at = datetime(2026, 3, 1, tzinfo=UTC)
    await scheduler.add_job("j", every("1h"), handler="work", args={"at": at, "size": Size.SMALL})
    await scheduler.start()
    run = await scheduler.trigger_job("j")
    assert (await ended(scheduler, run)).state == "completed"
    assert seen == [at, Size.SMALL, {"at": "2026-03-01T00:00:00Z", "size": "small"}]


class Address(pydantic.BaseModel):
    street: str
    number: Annotated[int, pydantic.Field(ge=1)] = 1


def deliver(to: Address, others: list[Address] = [], copy: Address | None = None) -> Address:  # noqa: B006
    return copy or to


async def test_models_of_pydantic_are_args_and_results(scheduler: Scheduler) -> None:
    scheduler.add_handler("deliver", deliver)
    await scheduler.start()
    far, near = Address(street="far", number=3), Address(street="near")
    for args, wanted in (
        ({"to": far}, far),
        ({"to": {"street": "near"}, "others": [far], "copy": None}, near),
        ({"to": far, "copy": near}, near),
    ):
        run = await done(scheduler, "deliver", args)
        assert await scheduler.result(run, as_=Address) == wanted
    with pytest.raises(WrongArguments, match="argument 'to': number: Input should be greater than or equal to 1"):
        await scheduler.enqueue("deliver", {"to": {"street": "far", "number": 0}})
    with pytest.raises(WrongArguments, match=r"argument 'others\[0\]': input should be a valid dictionary"):
        await scheduler.enqueue("deliver", {"to": far, "others": [5]})
    with pytest.raises(InvalidRequest, match="country: Field required"):
        await scheduler.result(await done(scheduler, "deliver", {"to": far}), as_=Elsewhere)


class Elsewhere(Address):
    country: str
