"""What follows from a batch is checked where the batch is made."""

from __future__ import annotations

from typing import Any

import pytest

from horarium import InvalidRequest, Scheduler, WrongArguments
from horarium.model.batches import BatchFollow


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (5, r"on_finished\.handler: expected str.*, got int"),
        (BatchFollow(handler=5), r"on_finished\.handler: expected str.*, got int"),  # type: ignore[arg-type]
        ({"handler": "report", "payload": object()}, r"on_finished\.payload: can't be written as JSON"),
        ([{"notfy": "ops"}], r"on_finished\.notfy: there is no such field \(did you mean 'notify'"),
    ],
)
async def test_an_action_that_can_not_be_kept_is_refused(scheduler: Scheduler, action: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        async with scheduler.batch("import", on_finished=action):
            pass
    assert await scheduler.list_batches() == []


async def test_the_name_of_a_batch_is_a_text(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidRequest, match="name: expected str"):
        scheduler.batch(5)  # type: ignore[arg-type]


async def test_a_handler_that_can_not_take_the_counts_is_refused(scheduler: Scheduler) -> None:
    @scheduler.handler()
    async def alone() -> None: ...

    @scheduler.handler()
    async def counted(failed: int, **counts: Any) -> None: ...

    with pytest.raises(WrongArguments, match="there is no argument 'batch'; handler 'alone' takes none"):
        scheduler.batch(on_finished=alone)
    with pytest.raises(WrongArguments, match="argument 'failed': expected `int`, got `str`"):
        scheduler.batch(on_failed={"handler": "counted", "payload": {"failed": "x"}})
    for action in (counted, "elsewhere", {"handler": "alone", "payload": {}}):
        assert scheduler.batch(on_completed=action)
