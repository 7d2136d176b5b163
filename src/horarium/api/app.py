"""The API as an ASGI application: the route tables put together, behind the guards.

`create_app` starts nothing and owns nothing: store, loops and the HTTP server are the caller's. Before it shuts the
HTTP server down, the caller must `close()` the claims, or the server waits for its long-polling workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import Any

from litestar import Litestar, Router
from litestar.handlers import HTTPRouteHandler

from horarium.api.docs import Docs
from horarium.api.endpoints import Endpoint, options, route
from horarium.api.guards import add_security_headers, refuse_cross_site, require_key
from horarium.api.jobs import Jobs
from horarium.api.limits import BODY_BYTES_MAX
from horarium.api.openapi import build_document
from horarium.api.problems import exception_handlers
from horarium.api.runs import Runs
from horarium.api.system import Health, System, Telemetry
from horarium.api.work import Work
from horarium.operations import Operations
from horarium.services.claims import Claims

PREFIX = "/api/v1"


def create_app(
    operations: Operations,
    claims: Claims,
    *,
    health: Health,
    telemetry: Telemetry,
    api_keys: Sequence[str] = (),
) -> Litestar:
    """The application. With `api_keys`, everything under /api needs one of them; health, metrics and the
    documentation do not."""
    system = System(operations, claims, health, telemetry)
    work = Work(operations, claims)
    guarded = [
        *Jobs(operations).endpoints(), *work.endpoints(), *Runs(operations).endpoints(), *system.endpoints()
    ]  # fmt: skip
    unguarded = system.open_endpoints()

    def document() -> dict[str, Any]:
        return build_document([(PREFIX, guarded), ("", unguarded)], version=_version(), keys=bool(api_keys))

    api = Router(PREFIX, route_handlers=_routes(guarded), guards=[require_key(api_keys)])
    return Litestar(
        [api, *_routes(unguarded), *Docs(document).handlers()],
        guards=[refuse_cross_site],
        before_send=[add_security_headers],
        exception_handlers=exception_handlers(operations.clock),
        openapi_config=None,
        logging_config=None,
        request_max_body_size=BODY_BYTES_MAX,
        debug=False,
        on_shutdown=[claims.close],
    )


def _routes(endpoints: Sequence[Endpoint]) -> list[HTTPRouteHandler]:
    """The handlers. Those for OPTIONS come first: where there is none, the framework adds one that knows one method."""
    paths = dict.fromkeys(endpoint.path for endpoint in endpoints)
    return [*(options(path) for path in paths), *(route(endpoint) for endpoint in endpoints)]


def _version() -> str:
    try:
        return metadata.version("horarium")
    except metadata.PackageNotFoundError:
        return "0"
