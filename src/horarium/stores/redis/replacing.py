"""Runs that are replaced: deleted and added in their place, in one script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horarium.model import RunChange
from horarium.stores.redis.loading import Read
from horarium.stores.redis.parts import parts
from horarium.stores.redis.rows import Arguments, come_along, new_run, pack_all


async def replace_runs(write: Read, changes: Sequence[RunChange]) -> list[bool]:
    """What `settle_runs` answers for changes of this kind."""
    answers: list[bool] = []
    for part in parts(changes):
        arguments = Arguments(before=2)
        batch: list[Any] = []
        for change in part:
            along = come_along((), change.records, arguments)
            batch += (change.token, *new_run(change.run, arguments), along)
        ids = pack_all([change.run.id for change in part])
        answers += map(bool, await write("replace_runs", ids, pack_all(batch), *arguments.values))
    return answers
