"""One call for every job that has some labels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from horarium.errors import InvalidRequest, NotFound
from horarium.operations.bounds.listing import pages_of
from horarium.ports import PAGE_MAX, JobFilter

if TYPE_CHECKING:
    from horarium.operations.facade import Operations


async def each_labelled(operations: Operations, labels: Mapping[str, str], act: Callable[[str], Awaitable[Any]]) -> int:
    """Do it to each job of these labels, finished ones too; one that is gone by then needs it no more. To how many."""
    if not labels:
        raise InvalidRequest("labels: give at least one; no labels do not mean every job", field="labels")
    count = 0
    async for page in pages_of(lambda after: operations.jobs.list_jobs(JobFilter(labels), after, PAGE_MAX)):
        for job in page:
            with suppress(NotFound):
                await act(job.name)
                count += 1
    return count
