"""The endpoints under /queues."""

from __future__ import annotations

from msgspec import Struct

from horarium.access.roles import NO_LABELS, Scope
from horarium.api.endpoints import Answer, Call, Endpoint, Example, Handlers, answer
from horarium.api.reading import read_cursor, write_cursor
from horarium.api.schemas import Page, PageQuery
from horarium.errors import InvalidRequest
from horarium.model.targets import QUEUE_CHARS_MAX, named_queue
from horarium.operations.settling.turns import QueueSettings
from horarium.policies import FairWeights


class QueueBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What to set for a queue. `fair_weights`: how often each of these fairness keys has its turn, next to the 1 of
    every other."""

    fair_weights: FairWeights = {}


class QueueSettingsView(Struct):
    """The settings of a queue. `hold`: a hold lies over it."""

    queue: str
    fair_weights: dict[str, int]
    hold: bool


class QueuePage(Page[QueueSettingsView]):
    """One page of queues, by name."""


EXAMPLES = (Example("gold has three turns", {"fair_weights": {"gold": 3}}),)


class QueuesApi(Handlers):
    @Endpoint(
        "GET", "/queues", "listQueues", tag="queues", scope=Scope.JOBS_READ, query=PageQuery, bound=True,
        summary="Queues: waiting runs, holds and weights",
        answers={200: (QueuePage, "One page")}, problems=("invalid_cursor",),
    )  # fmt: skip
    async def list_all(self, call: Call) -> Answer:
        query: PageQuery = call.query
        after = read_cursor("queues", query.cursor, bool)
        page = await self._operations.queues.page(after, query.limit)
        found = dict(page.items)
        scopes = [hold.scope.queue for hold in await self._operations.holds.in_force()]
        held = [queue for scope in scopes if scope is not None and (queue := named_queue(scope)) is not None]
        waiting = [one.queue for one in (await self._operations.stats()).queues]
        for queue in (*waiting, *(each for each in held if call.principal.may_reach(each, NO_LABELS))):
            found.setdefault(queue, QueueSettings())
        names = sorted(name for name in found if after is None or name > after)
        shown = names[: query.limit]
        more = shown[-1] if len(names) > len(shown) or page.next_after is not None else None
        over = await self._operations.holds.held(shown)
        items = [QueueSettingsView(name, found[name].fair_weights, name in over) for name in shown]
        return answer(QueuePage(items, write_cursor("queues", more)))

    @Endpoint(
        "GET", "/queues/{queue}", "getQueue", tag="queues", scope=Scope.JOBS_READ, bound=True,
        summary="What is set for a queue",
        description="A queue is named as in a claim: a plain name is a worker's queue, `handler/NAME` a "
        "handler's, `http` the server's own.",
        answers={200: (QueueSettingsView, "The queue")}, problems=("invalid_request",),
    )  # fmt: skip
    async def get(self, call: Call) -> Answer:
        queue = _queue(call)
        return await self._answer(queue, await self._operations.queues.get(queue))

    @Endpoint(
        "PUT", "/queues/{queue}", "putQueue", tag="queues", scope=Scope.JOBS_WRITE,
        summary="Set the weights of fairness keys",
        description="They hold for runs that are made or fall due from now on.",
        body=QueueBody, examples=EXAMPLES,
        answers={200: (QueueSettingsView, "The queue")}, problems=("invalid_request", "conflict"),
    )  # fmt: skip
    async def put(self, call: Call) -> Answer:
        queue, asked = _queue(call), call.body
        return await self._answer(queue, await self._operations.queues.put(queue, QueueSettings(asked.fair_weights)))

    async def _answer(self, queue: str, settings: QueueSettings) -> Answer:
        over = await self._operations.holds.held([queue])
        return answer(QueueSettingsView(queue, settings.fair_weights, bool(over)))


def _queue(call: Call) -> str:
    given: str = call.request.path_params["queue"]
    if (queue := named_queue(given)) is None:
        raise InvalidRequest(f"queue: {given[:200]!r} is not 1 to {QUEUE_CHARS_MAX} characters", field="queue")
    return queue
