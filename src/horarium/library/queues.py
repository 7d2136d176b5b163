"""Queues, as a `Scheduler` sets them."""

from __future__ import annotations

from collections.abc import Mapping

from horarium.errors import InvalidRequest
from horarium.library.channels import converted
from horarium.library.named import Part, in_name_of_actor
from horarium.policies import FairWeights
from horarium.wire.queues import QUEUE_CHARS_MAX, named_queue


class QueueMethods(Part):
    """What is set for the queues of a scheduler. A queue is named as runs name theirs (`handler/report`); a plain name
    is a worker's queue."""

    @in_name_of_actor
    async def set_fair_weights(
        self, queue: str, weights: Mapping[str, int], *, actor: str | None = None
    ) -> dict[str, int]:
        """Have fairness keys take these numbers of turns (1 to 1,000) next to the 1 of every other key. Raises
        InvalidRequest."""
        from horarium.operations.settling.turns import QueueSettings

        settings = QueueSettings(converted(dict(weights), FairWeights, "weights"))
        return (await self._operations.queues.put(_named(queue), settings)).fair_weights

    async def fair_weights(self, queue: str) -> dict[str, int]:
        """The weights that are set for a queue's fairness keys."""
        return (await self._operations.queues.get(_named(queue))).fair_weights


def _named(queue: str) -> str:
    if (found := named_queue(queue)) is None:
        raise InvalidRequest(f"queue: {queue[:200]!r} is not 1 to {QUEUE_CHARS_MAX} characters", field="queue")
    return found
