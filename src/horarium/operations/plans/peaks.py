"""The busiest minute, as it is and as a plan would leave it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from operator import add

from msgspec import Struct

from horarium.clock import MINUTE, Instant
from horarium.model import Job
from horarium.operations.looking.starts import StartCounts
from horarium.operations.plans.fires import Pair


class Peak(Struct, frozen=True):
    """The minute in which the most runs start."""

    at: Instant
    starts: int


def compared(counts: StartCounts, pairs: Sequence[Pair]) -> tuple[Peak | None, Peak | None]:
    """Before and after these changes. `counts`: of all other jobs."""
    (others,) = counts.totals([""])

    def peak(jobs: Iterable[Job | None]) -> Peak | None:
        keys = (counts.key(job) for job in jobs if job is not None)
        total = array("d", map(add, others, counts.total(key for key in keys if key is not None)))
        most = max(total)
        return Peak(counts.span.since + total.index(most) * MINUTE, round(most)) if most else None

    return peak(job for job, _ in pairs), peak(after for _, after in pairs)
