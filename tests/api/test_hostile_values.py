"""No value in an address, a header or a cookie is an accident: every route and page answers, and none by 500."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.datastructures import QueryParams

import horarium.dashboard.views
from horarium.api.routing import Route
from horarium.dashboard.site import csrf_of
from tests.api.conftest import Api

pytestmark = pytest.mark.slow

VALUES = ("\0", "%", "..", "/etc/passwd", "\u202e\ud800", "-1", "99999999999999999999999", "x" * 4_000, "NaN",
          "0001-01-01", "9999-12-31T23:59:59+23:59", "{}", "[]", "a,b;c=d", "\r\nx: y", "')--", "true",
          "\u0661")  # fmt: skip
FEW = ("\0", "-1", "99999999999999999999999", "9999-12-31T23:59:59-23:59", "\u202e\ud800", "{'")
COOKIES = ("horarium_zone", "horarium_session", "horarium_visit", "horarium_said", "horarium_sign_in")
HEADERS = ("authorization", "idempotency-key", "if-match", "if-none-match", "accept", "accept-encoding", "content-type",
           "content-length", "traceparent", "range", "origin", "sec-fetch-site", "hx-request", "x-form", "x-live",
           "x-request-id", "x-forwarded-for", "forwarded", "cookie", "last-event-id")  # fmt: skip
NEVER_ENDING = {"/events", "/api/v1/events"}
PATIENCE_SECONDS = 20


def escaped(value: str) -> str:
    return quote(value.encode("utf-8", "surrogatepass"), safe="")


def routes(api: Api) -> list[Route]:
    return [route for route in api.app.routes if route.path not in NEVER_ENDING]


def parameters() -> list[str]:
    """The names of queries that pages read, from their source, and those of the API, from its document."""
    folder = Path(horarium.dashboard.views.__path__[0])
    names = {name for file in folder.glob("*.py") for name in re.findall(r'visit\.texts?\("(\w+)"\)', file.read_text())}
    return sorted(
        names | {"limit", "cursor", "since", "until", "count", "after", "at", "state", "queue", "job", "label"}
    )


def addresses(route: Route, values: tuple[str, ...]) -> Iterator[str]:
    """The path with each value in each of its parameters."""
    names = re.findall(r"{\w+}", route.path)
    for name in names:
        for value in values:
            yield re.sub(r"{\w+}", "a", route.path.replace(name, escaped(value)))


async def answer(api: Api, method: str, url: str, headers: dict[str, str]) -> int:
    body = None if method in ("GET", "HEAD", "DELETE") else b"{}"
    reply = await asyncio.wait_for(api.send(method, f"/{url}", body, headers=headers), PATIENCE_SECONDS)
    return reply.status


@pytest.fixture(params=["open", "with keys"])
async def api(request: pytest.FixtureRequest) -> Api:
    if request.param == "open":
        made = Api(pages=True)
        await made.add_job("a")
        return made
    return Api(["first-key-1234"], pages=True)


async def test_no_value_in_a_path_is_an_accident(api: Api) -> None:
    asked = 0
    for route in routes(api):
        for method in route.methods:
            for url in addresses(route, VALUES):
                assert await answer(api, method, url, {}) != 500, (method, url)
                asked += 1
    assert asked > 500


async def test_no_value_in_a_query_is_an_accident(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is asked with each name that it reads where none is given (no other is read where it alone is given), and
    with one of no meaning; a route of the API, which costs nothing, with every name."""
    read: set[str] = set()
    honest = QueryParams.getlist

    def getlist(self: QueryParams, name: str) -> list[str]:
        read.add(name)
        return honest(self, name)

    monkeypatch.setattr(QueryParams, "getlist", getlist)
    names, asked, good = parameters(), 0, 0
    for route in routes(api):
        if "GET" in route.methods and not route.path.startswith(("/dashboard/", "/swagger")):
            path = re.sub(r"{\w+}", "a", route.path)
            read.clear()
            await answer(api, "GET", path, {})
            for name in names if route.page is None else ["meaningless", *sorted(read)]:
                for value in FEW:
                    status = await answer(api, "GET", f"{path}?{name}={escaped(value)}", {})
                    assert status != 500, (path, name, value)
                    asked, good = asked + 1, good + (status == 200)
    assert asked > 1_000
    assert good > 100, "some are answered"


async def test_no_header_and_no_cookie_is_an_accident(api: Api) -> None:
    for path in ("/", "/jobs", "/sign-in", "/api/v1/jobs", "/api/v1/me", "/healthz", "/metrics", "/ping/x"):
        for value in VALUES:
            latin = value.encode("utf-8", "surrogatepass").decode("latin-1")
            for cookie in COOKIES:
                assert await answer(api, "GET", path, {"cookie": f"{cookie}={escaped(value)}"}) != 500, (path, cookie)
                assert await answer(api, "GET", path, {"cookie": f"{cookie}={latin}"}) != 500, (path, cookie, value)
            for header in HEADERS:
                assert await answer(api, "GET", path, {header: latin}) != 500, (path, header, value)


async def test_no_field_of_a_form_is_an_accident() -> None:
    """Each form with hostile values in all fields, under the token that it needs, and under none that it ever gave."""
    api, names, token, statuses = Api(pages=True), parameters(), "1234", Counter[int]()
    headers = {"cookie": f"horarium_visit={token}", "content-type": "application/x-www-form-urlencoded"}
    for route in routes(api):
        if route.page is not None and route.page.method == "POST":
            path = re.sub(r"{\w+}", "a", route.path)
            for value in (*FEW, "\u0661"):
                for csrf in (csrf_of(token), value):
                    fields = [*((name, value) for name in names), ("csrf", csrf)]
                    form = "&".join(f"{name}={escaped(each)}" for name, each in fields).encode()
                    reply = await asyncio.wait_for(
                        api.send("POST", f"/{path}", form, headers=headers), PATIENCE_SECONDS
                    )
                    assert reply.status != 500, (path, value, csrf)
                    statuses[reply.status] += 1
    assert statuses.total() > 500
    assert statuses[422] > 50, "some forms are read"


async def test_no_page_takes_nul() -> None:
    """Stores know no text that holds it; a store in memory would take it."""
    api, asked = Api(pages=True), 0
    headers = {"cookie": "horarium_visit=1234", "content-type": "application/x-www-form-urlencoded"}
    for route in routes(api):
        if route.page is not None and route.page.scope is not None:
            path = re.sub(r"{\w+}", "a", route.path)
            if route.page.method == "POST":
                reply = await api.send("POST", f"/{path}", f"csrf={csrf_of('1234')}&name=%00".encode(), headers=headers)
                assert (reply.status, b"holds NUL" in reply.body) == (422, True), path
            else:
                urls = [f"{path}?name=%00", *addresses(route, ("\0",))]
                assert {await answer(api, "GET", url, headers) for url in urls} == {404}, urls
            asked += 1
    assert asked > 50
