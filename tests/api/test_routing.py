"""Which route a path and a method lead to, and what is said where there is none."""

from __future__ import annotations

import pytest

from horarium.api.answers import Ready
from horarium.api.problems import Refusals
from horarium.api.routing import AnyRequest, Application, Route
from horarium.testing.clock import ManualClock

from .conftest import Api, Reply, ask


def route(path: str, *methods: str) -> Route:
    async def handle(request: AnyRequest) -> Ready:
        said = "".join(f" {name}={value}" for name, value in request.path_params.items())
        return Ready(f"{path}{said}".encode(), media_type="text/plain")

    return Route(path=path, methods=methods, name=path, handle=handle)


APP = Application(
    [
        route("/", "GET", "HEAD"), route("/jobs", "GET"), route("/jobs", "POST"), route("/jobs/import", "POST"),
        route("/jobs/{name}", "GET", "HEAD"), route("/jobs/{name}", "DELETE"), route("/jobs/{name}/runs/{id}", "GET"),
        route("/jobs/{name}/last", "GET"), route("/runs/claim/now", "POST"), route("/runs/{id}", "GET"),
    ],
    guards=(),
    refusals=Refusals(ManualClock(0)),
)  # fmt: skip


async def get(path: str, method: str = "GET") -> Reply:
    return await ask(APP, method, path, {})


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/", "/"), ("//", "/"), ("/jobs", "/jobs"), ("/jobs/", "/jobs"), ("//jobs//", "/jobs"),
        ("/jobs/a", "/jobs/{name} name=a"), ("/jobs/a/", "/jobs/{name} name=a"), ("/jobs//a", "/jobs/{name} name=a"),
        ("/jobs/%C3%BC%20b", "/jobs/{name} name=\u00fc b"), ("/jobs/a/last", "/jobs/{name}/last name=a"),
        ("/jobs/import/last", "/jobs/{name}/last name=import"), ("/runs/claim", "/runs/{id} id=claim"),
        ("/jobs/a/runs/b", "/jobs/{name}/runs/{id} name=a id=b"), ("/jobs/a%2Flast", "/jobs/{name}/last name=a"),
    ],
)  # fmt: skip
async def test_a_path_leads_to_its_route(path: str, said: str) -> None:
    reply = await get(path)
    assert (reply.status, reply.body.decode()) == (200, said)


@pytest.mark.parametrize("path", ["/job", "/jobs/a/b", "/jobs/a/runs", "/jobs/a/runs/b/c", "/Jobs", "/runs", "*"])
async def test_other_paths_lead_nowhere(path: str) -> None:
    reply = await get(path)
    assert (reply.status, reply.code) == (404, "no_such_route")


@pytest.mark.parametrize(
    ("path", "method", "allowed"),
    [
        ("/jobs/import", "GET", "OPTIONS, POST"), ("/jobs/a", "POST", "DELETE, GET, HEAD, OPTIONS"),
        ("/jobs", "BREW", "GET, OPTIONS, POST"), ("/", "PUT", "GET, HEAD, OPTIONS"),
    ],
)  # fmt: skip
async def test_another_method_hears_which_there_are(path: str, method: str, allowed: str) -> None:
    reply = await get(path, method)
    assert (reply.status, reply.code, reply.headers["allow"]) == (405, "method_not_allowed", allowed)
    options = await get(path, "OPTIONS")
    assert (options.status, options.body, options.headers["allow"]) == (204, b"", allowed)


async def test_options_of_the_api_are_told_to_who_may_ask(locked_api: Api) -> None:
    assert (await locked_api.send("OPTIONS", "/jobs")).status == 401
    assert (await locked_api.send("OPTIONS", "//healthz")).headers["allow"] == "GET, HEAD, OPTIONS"
