"""Each route with each role, each single scope, and nothing: what is promised stands here, and not in the code.

The table of the code is compared with it, so a route that is new, or that moves to another scope, is seen; then every
one of them is asked, on the API, on the pages and outside of both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from os import urandom

import pytest

from horarium.access.roles import Principal, Role, Scope, principal
from horarium.access.sessions import Sessions
from horarium.api.access import Callers

from .conftest import Api, Reply

pytestmark = pytest.mark.slow

KEY = "first-key-1234"
API = {
    Scope.JOBS_READ: (
        "GET /jobs", "GET /jobs/{name}", "GET /jobs/{name}/explain", "GET /jobs/{name}/fires",
        "GET /jobs/{name}/versions", "GET /jobs/{name}/overrides",
        "GET /upcoming", "POST /preview", "GET /calendars", "GET /calendars/{name}",
        "GET /calendars/{name}/days", "GET /plans", "POST /plans", "GET /forecast", "GET /feeds",
        "GET /rates", "GET /attention", "GET /queues", "GET /queues/{queue}",
    ),
    Scope.JOBS_WRITE: (
        "POST /jobs", "PUT /jobs/{name}", "PATCH /jobs/{name}", "DELETE /jobs/{name}", "POST /jobs/{name}/revert",
        "POST /import", "POST /jobs/{name}/history", "PUT /calendars/{name}", "DELETE /calendars/{name}",
        "POST /plans/{id}/apply", "POST /feeds", "DELETE /feeds/{name}",
        "PUT /rates/{key}", "DELETE /rates/{key}", "PUT /queues/{queue}",
    ),
    Scope.RUNS_READ: (
        "GET /runs", "GET /runs/{id}", "GET /runs/{id}/log", "GET /stats", "GET /nodes", "GET /events",
        "GET /holds", "GET /holds/{id}", "GET /approvals", "GET /batches", "GET /batches/{id}",
        "GET /batches/{id}/runs",
    ),
    Scope.RUNS_WRITE: (
        "POST /jobs/{name}/trigger", "POST /jobs/{name}/backfill", "POST /jobs/{name}/pause",
        "POST /jobs/{name}/fires/{instant}/skip", "POST /jobs/{name}/fires/{instant}/move", "POST /approvals/{id}",
        "DELETE /jobs/{name}/fires/{instant}",
        "POST /jobs/{name}/resume", "POST /runs/cancel", "POST /runs/retry", "POST /runs/{id}/cancel",
        "POST /runs/{id}/retry", "POST /holds", "PATCH /holds/{id}", "DELETE /holds/{id}",
        "POST /attention/acknowledge", "POST /attention/reopen",
    ),
    Scope.RUNS_DEFINE: (
        "POST /runs", "POST /runs/batch", "POST /batches", "POST /batches/{id}/runs", "POST /batches/{id}/close",
        "POST /batches/{id}/cancel", "POST /batches/{id}/retry",
    ),
    Scope.WORK: (
        "POST /runs/claim", "POST /runs/settle", "POST /runs/{id}/heartbeat", "POST /runs/{id}/complete",
        "POST /runs/{id}/fail", "POST /runs/{id}/log",
    ),
    Scope.ADMIN: (
        "GET /keys", "POST /keys", "DELETE /keys/{name}", "GET /sessions",
        "DELETE /sessions/{session}", "GET /audit", "GET /channels", "GET /channels/{name}",
        "PUT /channels/{name}", "DELETE /channels/{name}", "POST /channels/{name}/test",
        "POST /channels/{name}/send-by",
    ),
    None: ("GET /me",),
}  # fmt: skip
PAGES = {
    Scope.JOBS_READ: (
        "GET /", "GET /jobs", "GET /jobs/{name}", "GET /forecast", "POST /forecast", "GET /quiet-minutes", "GET /plans",
        "POST /plans", "GET /plans/{id}", "GET /business-days", "GET /business-days/{name}", "GET /holds",
        "GET /search", "POST /views", "POST /views/remove", "GET /rates", "GET /feeds", "GET /deleted-jobs",
    ),
    Scope.JOBS_WRITE: (
        "GET /new-job", "POST /new-job", "POST /preview-job", "GET /jobs/{name}/edit", "POST /jobs/{name}/edit",
        "POST /jobs/{name}/revert", "POST /jobs/{name}/delete", "POST /plans/{id}/approve", "POST /plans/{id}/discard",
        "POST /deleted-jobs/restore",
        "POST /queue", "POST /rates", "POST /rates/reset", "POST /feeds", "POST /feeds/revoke",
    ),
    Scope.RUNS_READ: ("GET /runs", "GET /runs/{id}", "GET /approvals", "GET /calendar", "GET /queues",
                      "GET /queue", "GET /nodes",
                      "GET /events", "GET /failures", "GET /compare", "GET /timeline",
                      "GET /runs/{id}/log", "GET /batches", "GET /batches/{id}"),
    Scope.RUNS_DEFINE: ("POST /batches/{id}/close", "POST /batches/{id}/cancel", "POST /batches/{id}/retry"),
    Scope.RUNS_WRITE: (
        "POST /failures", "POST /holds", "POST /holds/{id}/lift",
        "POST /jobs", "POST /jobs/{name}/run", "POST /jobs/{name}/pause", "POST /jobs/{name}/resume",
        "GET /bulk-jobs", "POST /bulk-jobs/chosen", "POST /bulk-jobs/undo", "POST /bulk-runs/chosen",
        "GET /acknowledge", "POST /acknowledge", "POST /acknowledge/undo",
        "POST /jobs/{name}/skip", "POST /jobs/{name}/move", "POST /jobs/{name}/unskip",
        "POST /jobs/{name}/backfill", "POST /plans/{id}/apply",
        "POST /approvals/{id}/approve", "POST /approvals/{id}/reject", "POST /approvals/{id}/missed",
        "POST /runs/{id}/retry", "POST /runs/{id}/cancel", "GET /bulk-runs", "POST /bulk-runs",
    ),
    Scope.ADMIN: ("GET /audit", "GET /channels", "POST /channels/{name}/test", "POST /channels",
                  "POST /channels/{name}/send-by",
                  "POST /channels/{name}/delete", "GET /access", "POST /access",
                  "POST /access/revoke", "POST /access/end"),
    None: ("POST /sign-out", "GET *"),
}  # fmt: skip
ALSO = {
    "GET /": Scope.RUNS_READ, "GET /jobs": Scope.RUNS_READ, "GET /jobs/{name}": Scope.RUNS_READ,
    "GET /calendar": Scope.JOBS_READ, "GET /jobs/{name}/edit": Scope.JOBS_READ,
    "GET /forecast": Scope.RUNS_READ, "POST /forecast": Scope.RUNS_READ, "GET /failures": Scope.JOBS_READ,
    "GET /timeline": Scope.JOBS_READ, "GET /holds": Scope.RUNS_READ, "GET /bulk-jobs": Scope.JOBS_READ, 
    "GET /acknowledge": Scope.JOBS_READ,
}  # fmt: skip
"""Pages that show both jobs and runs, or a job that is to be changed."""
OPEN = {
    "GET /sign-in", "POST /sign-in", "GET /dashboard/{stamp}/{file}", "GET /healthz", "GET /readyz", "GET /metrics",
    "GET /docs/openapi.json", "GET /docs/openapi.yml", "GET /swagger-ui", "GET /swagger-ui/{file}",
    "GET /.well-known/oauth-protected-resource", "GET /ping/{name}", "POST /ping/{name}", "GET /ping/{name}/{id}",
    "POST /ping/{name}/{id}", "GET /feed/{name}",
}  # fmt: skip
CALLERS: dict[str, tuple[Sequence[Role], Sequence[Scope]]] = {
    **{f"role {role}": ([role], []) for role in Role},
    **{f"scope {scope}": ([], [scope]) for scope in Scope},
    "nothing": ([], []),
}
WHAT_ROLES_MAY = {
    Role.VIEWER: {Scope.JOBS_READ, Scope.RUNS_READ},
    Role.OPERATOR: {Scope.JOBS_READ, Scope.RUNS_READ, Scope.RUNS_WRITE},
    Role.PRODUCER: {Scope.RUNS_READ, Scope.RUNS_DEFINE},
    Role.EDITOR: {Scope.JOBS_READ, Scope.RUNS_READ, Scope.RUNS_WRITE, Scope.RUNS_DEFINE, Scope.JOBS_WRITE},
    Role.WORKER: {Scope.WORK},
    Role.ADMIN: set(Scope),
}


@pytest.fixture(scope="module")
def api() -> Api:
    """Shared: nothing that these tests ask for is done."""
    return Api(api_keys=[KEY], pages=True)


def flat(table: dict[Scope | None, tuple[str, ...]], prefix: str = "") -> dict[str, Scope | None]:
    return {text.replace(" ", f" {prefix}"): scope for scope, texts in table.items() for text in texts}


def test_the_table_is_complete_and_says_what_is_promised(api: Api) -> None:
    guarded: dict[str, Scope | None] = {}
    pages: dict[str, Scope | None] = {}
    also: dict[str, Scope] = {}
    others: set[str] = set()
    for route in api.app.routes:
        what, page = f"{route.methods[0]} {route.path}", route.page
        if route.path.startswith("/api/"):
            guarded[what] = route.scope
        elif page is not None and not page.open:
            pages[what] = page.scope
            also |= {} if page.also is None else {what: page.also}
        else:
            others.add(what)
    assert guarded == flat(API, "/api/v1")
    assert pages == flat(PAGES)
    assert others == OPEN
    assert also == ALSO


def address(what: str) -> tuple[str, str]:
    """Method and a path at which nothing is."""
    method, _, path = what.replace("*", "/none").partition(" ")
    for name in ("name", "id", "stamp", "file"):
        path = path.replace(f"{{{name}}}", "0-0" if name == "id" else "none")
    return method, path


def may(roles: Sequence[Role], scopes: Sequence[Scope]) -> set[Scope]:
    return {scope for role in roles for scope in WHAT_ROLES_MAY[role]} | set(scopes)


async def asked(api: Api, what: str, headers: dict[str, str], body: bytes = b"{") -> Reply:
    method, path = address(what)
    gone = asyncio.Event()
    gone.set()  # who asks for a stream goes away at once
    headers = {"accept": "text/html", **headers}
    return await api.send(method, f"/{path}", body if method != "GET" else None, headers=headers, hang_up=gone)


@pytest.fixture
def caller(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> set[Scope]:
    """What a caller may who bears the token `token`: as an issuer's token, it may have scopes without any role."""
    roles, scopes = CALLERS[request.param]
    found = principal("who", "who", "oidc", roles, scopes=scopes)

    async def find(self: Callers, given: bytes, digest: bytes) -> Principal | None:
        return found if given == b"token" else None

    async def bearer(self: Callers, digest: str) -> Principal | None:
        return found

    monkeypatch.setattr(Callers, "find", find)
    monkeypatch.setattr(Callers, "bearer", bearer)
    return may(roles, scopes)


@pytest.mark.parametrize("caller", CALLERS, indirect=True)
async def test_each_route_of_the_api_asks_for_its_scope_first(api: Api, caller: set[Scope]) -> None:
    for what, scope in flat(API, "/api/v1").items():
        reply = await asked(api, what, {"authorization": "Bearer token"})
        if scope is None or scope in caller:
            assert reply.status not in (401, 403), (what, reply.body)
            continue
        assert (reply.status, reply.code, reply.json["missing_scopes"]) == (403, "forbidden", [scope]), what
        challenge = f'Bearer realm="horarium", error="insufficient_scope", scope="{scope}"'
        assert reply.headers["www-authenticate"] == challenge
        # A body that is not JSON, and of no known type, is not looked at either.
        assert (await asked(api, what, {"authorization": "Bearer token", "content-type": "x/y"})).status == 403


@pytest.mark.parametrize("caller", CALLERS, indirect=True)
async def test_each_page_asks_for_its_scope_first(api: Api, caller: set[Scope]) -> None:
    sessions = Sessions(api.store, api.clock, urandom)
    for what, scope in flat(PAGES).items():
        token = await sessions.begin("key", "0" * 64)
        reply = await asked(api, what, {"cookie": f"horarium_session={token}"})
        told = reply.body.decode()
        missing = [each for each in (scope, ALSO.get(what)) if each is not None and each not in caller]
        if not missing:
            assert "it takes the scope" not in told, what
            # A form without its token is refused for that alone: its scope was there.
            assert (reply.status == 403) == what.startswith("POST"), (what, reply.status)
        else:
            assert (reply.status, f"it takes the scope {', '.join(missing)}" in told) == (403, True), what


async def test_without_a_key_only_what_is_open_is_answered(api: Api) -> None:
    for what in flat(API, "/api/v1"):
        reply = await asked(api, what, {})
        assert (reply.status, reply.code) == (401, "unauthorized"), what
        assert reply.headers["www-authenticate"].startswith("Bearer")
    for what in flat(PAGES):
        reply = await asked(api, what, {})
        assert (reply.status, reply.headers["location"].partition("?")[0]) == (303, "/sign-in"), what
    for what in OPEN:
        reply = await asked(api, what, {})
        assert reply.status not in (401, 303), what
