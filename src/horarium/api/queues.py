"""The endpoints under /queues."""

from __future__ import annotations

from msgspec import Struct

from horarium.access.roles import Scope
from horarium.api.endpoints import Answer, Call, Endpoint, Example, answer
from horarium.api.reading import BodyReader, read_cursor, write_cursor
from horarium.api.schemas import PageQuery
from horarium.errors import InvalidRequest
from horarium.operations.facade import Operations
from horarium.operations.settling.turns import QueueSettings
from horarium.policies import FairWeights
from horarium.wire.queues import QUEUE_CHARS_MAX, named_queue


class QueueBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to set for a queue. `fair_weights`: how often each of these fairness keys has its turn, next to the 1 of
    every other."""

    fair_weights: FairWeights = {}


class QueueSettingsView(Struct):
    """What is set for a queue."""

    queue: str
    fair_weights: dict[str, int]


class QueuePage(Struct):
    """One page of queues, by name."""

    items: list[QueueSettingsView]
    next_cursor: str | None


EXAMPLES = (Example("gold has three turns", {"fair_weights": {"gold": 3}}),)


class QueuesApi:
    """Handlers; what they do is in `Operations`."""

    def __init__(self, operations: Operations) -> None:
        self._queues = operations.queues

    async def list_all(self, call: Call) -> Answer:
        query: PageQuery = call.query
        page = await self._queues.page(read_cursor("queues", query.cursor, bool), query.limit)
        return answer(QueuePage([_view(*item) for item in page.items], write_cursor("queues", page.next_after)))

    async def get(self, call: Call) -> Answer:
        queue = _queue(call)
        return answer(_view(queue, await self._queues.get(queue)))

    async def put(self, call: Call) -> Answer:
        queue, asked = _queue(call), call.body
        return answer(_view(queue, await self._queues.put(queue, QueueSettings(asked.fair_weights))))

    def endpoints(self) -> list[Endpoint]:
        """The route table."""
        return [
            Endpoint(
                method="GET", path="/queues", name="listQueues", tag="queues", handle=self.list_all, query=PageQuery,
                scope=Scope.JOBS_READ, summary="Queues for which something is set", bound=True,
                answers={200: (QueuePage, "One page")}, problems=("invalid_cursor",),
            ),
            Endpoint(
                method="GET", path="/queues/{queue}", name="getQueue", tag="queues", handle=self.get, bound=True,
                scope=Scope.JOBS_READ, summary="What is set for a queue", problems=("invalid_request",),
                description="A queue is named as in a claim: a plain name is a worker's queue, `handler/NAME` a "
                "handler's, `http` the server's own.",
                answers={200: (QueueSettingsView, "The queue")},
            ),
            Endpoint(
                method="PUT", path="/queues/{queue}", name="putQueue", tag="queues", handle=self.put,
                scope=Scope.JOBS_WRITE, summary="Set the weights of fairness keys", body=QueueBody,
                read=BodyReader(QueueBody), examples=EXAMPLES, problems=("invalid_request", "conflict"),
                description="They hold for runs that are made or fall due from now on.",
                answers={200: (QueueSettingsView, "The queue")},
            ),
        ]  # fmt: skip


def _view(queue: str, settings: QueueSettings) -> QueueSettingsView:
    return QueueSettingsView(queue, settings.fair_weights)


def _queue(call: Call) -> str:
    given: str = call.request.path_params["queue"]
    if (queue := named_queue(given)) is None:
        raise InvalidRequest(f"queue: {given[:200]!r} is not 1 to {QUEUE_CHARS_MAX} characters", field="queue")
    return queue
