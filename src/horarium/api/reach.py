"""What a caller that is bound to queues sees: the jobs and runs of these, and nothing of any other.

Judged by the route, before its handler: a job or run of another queue is not there; a list is open only where its
handler says that it leaves out the others. What such a caller changes is judged by the operations, in the write.
"""

from __future__ import annotations

from horarium.access.roles import Principal, Scope
from horarium.api.endpoints import Endpoint
from horarium.api.routing import AnyRequest
from horarium.errors import Forbidden, NotFound
from horarium.model import Job, Run
from horarium.operations.facade import Operations

BY_NAME, BY_ID = "/jobs/{name}", "/runs/{id}"
CHARS_MAX = 200


class Reach:
    """Judges the requests of bound callers."""

    def __init__(self, operations: Operations) -> None:
        self._store = operations.store

    async def check(self, endpoint: Endpoint, request: AnyRequest) -> None:
        """Raises NotFound, Forbidden."""
        caller: Principal = request.scope["user"]
        if endpoint.scope is Scope.WORK:
            return
        found: Job | Run | None = None
        if endpoint.path.startswith(BY_NAME):
            name = str(request.path_params["name"])[:CHARS_MAX]
            (found,) = await self._store.get_jobs([name])
            what = f"job named {name!r}"
        elif endpoint.path.startswith(BY_ID):
            run_id = str(request.path_params["id"])[:CHARS_MAX]
            (found,) = await self._store.get_runs([run_id])
            what = f"run {run_id!r}"
        elif endpoint.method == "GET" and endpoint.scope is not None and not endpoint.bound:
            raise Forbidden(f"{caller.name} is bound to queues, and this tells of all")
        if found is not None and not caller.may_reach(found.queue):
            raise NotFound(f"there is no {what}")
