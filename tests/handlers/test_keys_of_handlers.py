"""Keys of rate limits, concurrency and fairness that a handler has as templates: with the defaults of its parameters,
and in runs that follow from others."""

from __future__ import annotations

from typing import Any

import pytest

from horarium import Scheduler, every
from tests.handlers.conftest import ended
from tests.waiting import until

KEYS: dict[str, Any] = {
    "fair": "{args.tenant}",
    "concurrency": {"key": "of {args.tenant}", "max": 2},
    "rate": {"key": "api:{args.tenant}", "max": 100, "per_seconds": 1},
}


@pytest.fixture
def letter(scheduler: Scheduler) -> Any:
    @scheduler.handler(unique={"key": "letter:{args.number}:{args.tenant}"}, **KEYS)
    async def letter(number: int, tenant: str = "none", paper: object = object()) -> int:
        return number

    return letter


def keys_of(run: Any) -> tuple[Any, ...]:
    return (run.fair, run.concurrency_key, [rate.key for rate in run.rates])


async def followed(scheduler: Scheduler, about: Any) -> Any:
    """The run of the handler `letter` that followed from this one."""
    await ended(scheduler, about)

    async def found() -> Any:
        return next(iter((await scheduler.list_runs(queue="handler/letter")).items), None)

    run = await until(found, what="a letter")
    return await ended(scheduler, run)


async def test_a_key_holds_the_default_of_an_argument_that_is_left_out(scheduler: Scheduler, letter: Any) -> None:
    run = await letter.enqueue(number=1)
    assert keys_of(run) == ("none", "of none", ["api:none"])
    assert await letter.enqueue(number=1, tenant="none") == run
    assert await scheduler.add_run(handler=letter, args={"number": 1}) == run
    assert (await letter.enqueue(number=1, tenant="gold")).fair == "gold"
    async with scheduler.batch() as batch:
        assert (await batch.enqueue(letter, {"number": 1})).id == run.id


async def test_a_job_fires_whose_args_leave_out_what_a_key_names(scheduler: Scheduler, letter: Any) -> None:
    await scheduler.add_job("letters", every("1h"), handler=letter, args={"number": 7})
    run = await scheduler.trigger_job("letters")
    assert keys_of(run) == ("none", "of none", ["api:none"])


async def test_a_run_that_follows_has_the_keys_of_the_result_before_it(scheduler: Scheduler, letter: Any) -> None:
    @scheduler.handler()
    async def order(number: int) -> dict[str, Any]:
        return {"number": number, "tenant": "gold"}

    await scheduler.start()
    run = await followed(scheduler, await order.with_options(then=letter).enqueue(number=3))
    assert (run.state, run.result) == ("completed", b"3")
    assert keys_of(run) == ("gold", "of gold", ["api:gold"])


async def test_a_run_follows_though_the_result_has_no_part_of_its_key(scheduler: Scheduler, letter: Any) -> None:
    @scheduler.handler()
    async def order(number: int) -> dict[str, int]:
        return {"number": number}

    await scheduler.start()
    run = await followed(scheduler, await order.with_options(then=letter).enqueue(number=3))
    assert (run.state, run.result) == ("completed", b"3")
    assert keys_of(run) == (KEYS["fair"], "of {args.tenant}", ["api:{args.tenant}"])
