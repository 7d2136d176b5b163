"""Who waits, and who began lately, by fairness key: of one queue, and of each key of a rate limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from horarium.clock import HOUR, Instant
from horarium.model import Run
from horarium.policies import FairWeights


class Share(Struct, frozen=True):
    """One fairness key. `due`: the percentage of the turns that it has while all that wait go on waiting; None: it does
    not wait. `began`: runs that began within the last hour, `part` percent of all of these."""

    key: str
    waits: int
    weight: int
    due: int | None
    began: int
    part: int


def shares_of(waiting: Iterable[Run], ran: Iterable[Run], weights: FairWeights, now: Instant) -> Sequence[Share]:
    """Most that wait first."""
    waits = Counter(run.fair for run in waiting if run.fair is not None)
    began = Counter(run.fair for run in ran if run.fair is not None and now - HOUR <= (run.started_at or 0))
    turns, all_begun = sum(weights.get(key, 1) for key in waits), began.total() or 1
    return [
        Share(
            key, waits[key], weights.get(key, 1), round(100 * weights.get(key, 1) / turns) if waits[key] else None,
            began[key], round(100 * began[key] / all_begun),
        )
        for key, _ in (waits + began).most_common()
    ]  # fmt: skip
