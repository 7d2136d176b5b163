"""`then=`: a run follows once the one before it has completed, with its result or with args of its own, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count, product
from typing import Any

import pytest

from horarium import InvalidJob, InvalidRequest, RunContext, Scheduler, SyncScheduler, UnknownArgument, WrongArguments
from horarium.errors import Outage
from horarium.library.one_offs import Then
from horarium.library.values import Run
from horarium.model import State, Succeeded
from horarium.operations.settling.settling import Settlement
from horarium.policies import Rate
from horarium.ports import RunFilter
from horarium.rules.chains import then_key
from horarium.testing import travel
from horarium.testing.faults import Fault, FaultyStore
from tests.handlers.conftest import ended
from tests.services.test_batches import World
from tests.waiting import until


@pytest.fixture
def said() -> list[Any]:
    return []


@pytest.fixture
def shop(scheduler: Scheduler, said: list[Any]) -> Scheduler:
    """Three handlers, each of which says with what it was called."""

    @scheduler.handler()
    async def pay(order: int) -> dict[str, int]:
        said.append(("pay", order))
        return {"order": order, "total": 10 * order}

    @scheduler.handler(retry={"attempts_max": 7}, priority=3)
    async def receipt(order: int, total: int = 0) -> int:
        said.append(("receipt", order, total))
        return total

    @scheduler.handler()
    async def note(result: int) -> None:
        said.append(("note", result))

    return scheduler


async def after(scheduler: Scheduler, run: Run, index: int = 0) -> Run:
    """The run that followed from this one, once it has ended."""
    await ended(scheduler, run)

    async def followed() -> Run | None:
        found = await scheduler._runtime.store.get_run_by_key(then_key(run.id, index))
        return None if found is None or not found.finished else Run(found)

    found: Run = await until(followed, what=f"the end of what follows from {run.id}")
    return found


async def test_each_of_a_chain_gets_the_result_of_the_one_before_it(shop: Scheduler, said: list[Any]) -> None:
    await shop.start()
    run = await shop.enqueue("pay", {"order": 4}, then={"handler": "receipt", "then": "note"})
    second = await after(shop, run)
    await after(shop, second)
    assert said == [("pay", 4), ("receipt", 4, 40), ("note", 40)]
    assert (second.cause, second.priority) == ("follow_up", 3)
    assert second.policy is not None
    assert second.policy.retry.attempts_max == 7, "the options of its handler hold"


async def test_typed_tasks_follow_with_args_and_options_and_several_at_once(scheduler: Scheduler) -> None:
    said: list[Any] = []

    @scheduler.handler()
    async def send(run: RunContext, to: str, copies: int = 1) -> None:
        said.append((to, copies, dict(run.labels)))

    await scheduler.start()
    first = send.with_args("b", copies=2)
    labelled = send.with_options(labels={"team": "red"}, priority=9)
    run = await send.with_options(then=[first, labelled.with_args(to="c")]).enqueue("a")
    assert (await after(scheduler, run, 1)).priority == 9
    await after(scheduler, run, 0)
    assert said[0] == ("a", 1, {})
    assert sorted(said[1:]) == [("b", 2, {}), ("c", 1, {"team": "red"})]


async def test_nothing_follows_from_a_failure_until_the_retry_completes(shop: Scheduler, said: list[Any]) -> None:
    failing = [True]

    @shop.handler(retry={"attempts_max": 1})
    async def fails_first() -> None:
        if failing.pop():
            raise ValueError("no")

    failing.append(True)
    await shop.start()
    run = await ended(shop, await fails_first.with_options(then={"handler": "note", "args": {"result": 1}}).enqueue())
    assert (run.state, said) == ("failed", [])
    assert (await shop.list_runs(queue="handler/note")).items == ()
    failing[:] = [False]
    await after(shop, await shop.retry_run(run.id))
    assert said == [("note", 1)]


async def test_it_is_refused_where_it_is_written(shop: Scheduler) -> None:
    for then, error, words in (
        ({"handler": "receipt", "args": {"order": "x"}}, WrongArguments, "argument 'order': expected `int`"),
        ({"handler": "note", "at": datetime(2030, 1, 1, tzinfo=UTC)}, InvalidRequest, "at: "),
        ({"handler": "note", "dely": 5}, UnknownArgument, "did you mean 'delay'"),
        ({"handler": "note", "unique_key": "k"}, UnknownArgument, "unique_key: it is for one run"),
        ({"args": {}}, InvalidRequest, "None is no handler's name"),
        (print, InvalidRequest, "print is not registered"),
        (["note"] * 11, InvalidRequest, "11 runs; at most 10 follow"),
        ({"handler": "free", "args": {"text": "x" * 262_100}}, InvalidRequest, "are kept"),
        ({"handler": "note", "concurrency": "{key}"}, InvalidJob, r"\{key\} is unknown in a key"),
        (
            {"handler": "note", "args": {"result": 1}, "fair": "{args.key}"},
            InvalidRequest,
            r"\{args\.key\} .* is missing",
        ),
    ):
        with pytest.raises(error, match=words):
            await shop.enqueue("pay", {"order": 1}, then=then)
    assert (await shop.list_runs()).items == ()


async def test_delays_limits_and_chains_in_virtual_time(shop: Scheduler, said: list[Any]) -> None:
    async with travel(shop, "2027-01-01T00:00Z") as clock:
        late = {"handler": "receipt", "delay": "1h", "rate": "till=1/1m", "fair": "gold", "concurrency": "till"}
        run = await shop.enqueue("pay", {"order": 1}, then=late)
        await clock.advance("59m")
        assert said == [("pay", 1)]
        (waits,) = (await shop.list_runs(queue="handler/receipt")).items
        assert (waits.concurrency_key, waits.fair) == ("till", "gold")
        assert [rate.key for rate in waits.rates] == ["till"]
        await clock.advance("1m")
        assert said == [("pay", 1), ("receipt", 1, 10)]
        assert (await shop.get_run(run.id)).state == "completed"


async def test_what_follows_from_a_batch(shop: Scheduler, said: list[Any]) -> None:
    @shop.handler()
    async def report(total: int, completed: int, **others: Any) -> None:
        said.append(("report", completed, total))

    async with travel(shop, "2027-01-01T00:00Z") as clock:
        then: list[Then] = [report, report.with_options(delay="5m"), {"handler": "note", "args": {"result": 7}}]
        async with shop.batch("payments", then=then) as batch:
            await batch.enqueue_many(
                "pay", [{"order": 1}, {"order": 2}], then={"handler": "note", "args": {"result": 0}}
            )
        await clock.advance("1m")
        assert sorted(said) == [
            ("note", 0), ("note", 0), ("note", 7), ("pay", 1), ("pay", 2), ("report", 2, 2)
        ]  # fmt: skip
        await clock.advance("5m")
        assert said[-1] == ("report", 2, 2)
        assert (await shop.get_batch(batch.id)).total == 2, "what follows is not of the batch"


def test_without_asyncio(said: list[Any]) -> None:
    with SyncScheduler("memory://") as scheduler:

        @scheduler.handler()
        def send(to: str) -> None: ...

        run = send.with_options(then=send.with_args(to="b")).enqueue(to="a")
        assert run.policy is not None
        assert [each.payload for each in run.policy.then] == [{"to": "b"}]


def dies(fault: Fault, last: int, calls: Iterator[int], call: str) -> Fault | None:
    """A node that dies at its last call."""
    return fault if next(calls) >= last else None


async def test_it_follows_once_whatever_call_fails() -> None:
    """The end of the run is written by a node whose store fails at the n-th call, then again by another one."""
    for fault, last in product(Fault, range(1, 6)):
        world = World()
        scheduler = Scheduler("memory://")
        scheduler.add_handler("first", lambda run: None)
        (run,) = scheduler._one_offs(
            "first", [None], {"then": ["b", {"handler": "c", "rate": Rate(key="k", max=1, per_seconds=60)}]}
        )
        await world.store.add_runs([run])
        now = world.clock.now() + 10**16
        (claimed,) = (await world.store.claim_runs(["handler/first"], 1, "w", now, now, world.clock.steady())).runs
        dying = world.on(FaultyStore(world.store, partial(dies, fault, last, count(1))))
        settlement = Settlement(claimed.id, claimed.token, Succeeded(b"[1]"))
        with suppress(Outage):
            await dying.settling.settle_one(settlement)
        await world.operations.settling.settle_one(settlement)
        page = await world.store.list_runs(RunFilter(states=frozenset({State.PENDING})), None, 9)
        assert sorted((each.queue, each.payload) for each in page.items) == [
            ("handler/b", b'{"result":[1]}'), ("handler/c", b'{"result":[1]}')
        ]  # fmt: skip
