"""The keys under which the runs of handlers are unique: filled in for each call, whoever gives the rule."""

from __future__ import annotations

from typing import Any

import pytest

from horarium import InvalidRequest, Scheduler


def receipts(scheduler: Scheduler, **options: Any) -> Any:
    @scheduler.handler(**options)
    async def receipt(order: int) -> None: ...

    return receipt


async def test_arguments_that_come_one_by_one_are_all_enqueued(scheduler: Scheduler) -> None:
    receipt = receipts(scheduler, unique={"key": "receipt:{args.order}"})
    ids = await scheduler.enqueue_many(receipt, ({"order": order} for order in (1, 2, 1)))  # type: ignore[arg-type]
    assert len(ids) == 3
    assert ids[0] == ids[2] != ids[1]


async def test_the_key_of_a_call_is_filled_in_as_that_of_a_handler_is(scheduler: Scheduler) -> None:
    receipt = receipts(scheduler)
    once = receipt.with_options(unique={"key": "once:{args.order}"})
    later = receipt.with_options(debounce={"key": "later:{args.order}", "seconds": 30})
    for task in (once, later):
        first, other, again = [await task.enqueue(order=order) for order in (1, 2, 1)]
        assert (again.id, other.id != first.id) == (first.id, True)
    found = await scheduler.add_run(handler=receipt, args={"order": 1}, unique={"key": "once:{args.order}"})
    assert found == await scheduler.enqueue(receipt, {"order": 1}, unique={"key": "once:1"})
    plain = [await scheduler.enqueue(receipt, {"order": order}, unique={"key": "{title}"}) for order in (1, 2)]
    assert plain[0] == plain[1]
    with pytest.raises(InvalidRequest, match=r"debounce\.key: \{args\.day\} of the key .* is missing"):
        await scheduler.enqueue(receipt, {"order": 1}, debounce={"key": "{args.day}", "seconds": 30})


async def test_a_value_with_braces_is_not_filled_in_again(scheduler: Scheduler) -> None:
    scheduler.add_handler("note", lambda title, text: None, unique={"key": "{args.title}"})
    first = await scheduler.enqueue("note", {"title": "{args.text}", "text": "a"})
    assert await scheduler.enqueue("note", {"title": "{args.text}", "text": "b"}) == first
    assert await scheduler.enqueue("note", {"title": "a", "text": "b"}) != first


async def test_a_key_may_hold_a_label_of_its_run(scheduler: Scheduler) -> None:
    receipt = receipts(scheduler, labels={"team": "billing"}, unique={"key": "{label.team}:{args.order}"})
    first = await receipt.enqueue(order=1)
    assert await scheduler.add_run(handler=receipt, args={"order": 1}) == first
    assert await receipt.with_options(labels={"team": "sales"}).enqueue(order=1) != first
    async with scheduler.batch() as batch:
        assert (await batch.enqueue(receipt, {"order": 1})).id == first.id


def test_a_statement_does_not_drop_the_rule_of_its_handler() -> None:
    scheduler = Scheduler("postgresql://horarium@127.0.0.1/horarium")
    receipt = receipts(scheduler, unique={"key": "receipt:{args.order}"})
    with pytest.raises(InvalidRequest, match=r"`unique`, that of its handler too, .* a unique_key can"):
        scheduler.enqueue_sql(receipt, [{"order": 1}])
    statement, _ = scheduler.enqueue_sql(receipt, [{"order": 1}], unique_key="receipt:1")
    assert "add_runs" in statement
