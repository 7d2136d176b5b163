"""What a caller that is bound to queues or labels sees: their jobs and runs, and nothing of any other.

Judged by the route, before its handler: a job or run of others is not there; a list is open only where it says that
it leaves out the others. What such a caller changes is judged by the operations, in the write.
"""

from __future__ import annotations

from horarium.access.acting import reading
from horarium.access.roles import Principal, Scope
from horarium.api.endpoints import Endpoint
from horarium.api.routing import AnyRequest
from horarium.errors import Forbidden
from horarium.operations.facade import Operations
from horarium.operations.jobs.versions import never_was
from horarium.operations.writing.named import no_job, no_run

BY_NAME, BY_ID = "/jobs/{name}", "/runs/{id}"
OF_ALL = ("/calendars/{name}", "/rates/{key}")
"""They have no queue and no labels, and jobs of others use them."""
OF_DELETED_TOO = (f"{BY_NAME}/versions", f"{BY_NAME}/revert")
CHARS_MAX = 200


def bounds_of(endpoint: Endpoint) -> str:
    """What a bound caller may do there, in words, for the document."""
    if endpoint.scope is Scope.ADMIN or (endpoint.scope is not None and _is_closed(endpoint)):
        return "closed"
    if endpoint.scope is Scope.WORK:
        return "runs of its queues"
    if endpoint.path.startswith((BY_NAME, BY_ID, "/holds/{id}")):
        return "its own; others are not found"
    if endpoint.method == "GET":
        return "open" if endpoint.scope is None or endpoint.path.startswith("/calendars") else "its own are told"
    return "its own; others are refused"


def _is_closed(endpoint: Endpoint) -> bool:
    if endpoint.path.startswith((BY_NAME, BY_ID)):
        return False
    return not endpoint.bound if endpoint.method == "GET" else endpoint.path in OF_ALL


class Reach:
    """Judges the requests of bound callers."""

    def __init__(self, operations: Operations) -> None:
        self._store = operations.store

    async def check(self, endpoint: Endpoint, request: AnyRequest) -> None:
        """Raises NotFound, Forbidden."""
        caller: Principal = request.scope["user"]
        if endpoint.scope is Scope.WORK:
            return
        with reading(caller):
            await self._find(endpoint, request, caller)

    async def _find(self, endpoint: Endpoint, request: AnyRequest, caller: Principal) -> None:
        if endpoint.path.startswith(BY_NAME):
            name = str(request.path_params["name"])[:CHARS_MAX]
            if (await self._store.get_jobs([name])) == [None] and not await self._is_free(name):
                raise never_was(name) if endpoint.path in OF_DELETED_TOO else no_job(name)
        elif endpoint.path.startswith(BY_ID):
            run_id = str(request.path_params["id"])[:CHARS_MAX]
            if (await self._store.get_runs([run_id])) == [None]:
                raise no_run(run_id)
        elif endpoint.scope is not None and _is_closed(endpoint):
            raise Forbidden(f"{caller.name} is bound {caller.bounds}, and this is for all")

    async def _is_free(self, name: str) -> bool:
        """Whether no one has a job of that name: one may be made, or brought back."""
        with reading(None):
            return (await self._store.get_jobs([name])) == [None]
