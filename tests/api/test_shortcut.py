"""The short way answers as the framework does: the same requests, one after the other, to two systems that differ in
nothing else. Compared are the answers byte for byte, what was counted, what the audit tells, and what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from litestar import Litestar
from msgspec import Struct

from horarium.api import endpoints, guards
from horarium.api.problems import problem_of
from horarium.api.reading import read_job, read_new_job, to_definition
from horarium.api.refused import WRITER
from horarium.errors import CallerError
from horarium.model.records import RecordFilter
from horarium.ports import JobFilter, RunFilter
from horarium.testing.values import a_run

from .conftest import Api, a_definition

SERVER_KEY = "first-key-1234"
ID = a_run(0).id
TEXT = msgspec.json.encode
NEW_RUN = {"target": {"type": "queue", "queue": "work", "payload": {"n": 1}}}
CLAIM = {"queues": ["work"], "limit": 1, "worker": "w"}
GOOD: Mapping[str, tuple[str, bytes]] = {
    "GET /healthz": ("/healthz", b""),
    "GET /jobs/{name}": ("/api/v1/jobs/job", b""),
    "POST /jobs": ("/api/v1/jobs", TEXT(a_definition("made"))),
    "PUT /jobs/{name}": ("/api/v1/jobs/put", TEXT(a_definition("put"))),
    "PATCH /jobs/{name}": ("/api/v1/jobs/job", b'{"priority": 3}'),
    "POST /runs": ("/api/v1/runs", TEXT(NEW_RUN)),
    "GET /runs/{id}": (f"/api/v1/runs/{ID}", b""),
    "POST /runs/claim": ("/api/v1/runs/claim", TEXT(CLAIM)),
    "POST /runs/{id}/heartbeat": (f"/api/v1/runs/{ID}/heartbeat", b'{"token": 1}'),
    "POST /runs/{id}/complete": (f"/api/v1/runs/{ID}/complete", b'{"token": 1, "result": {"ok": true}}'),
    "POST /runs/settle": ("/api/v1/runs/settle", TEXT([{"id": ID, "token": 1, "outcome": "completed"}])),
    "POST /jobs/{name}/trigger": ("/api/v1/jobs/job/trigger", b""),
    "GET /runs": ("/api/v1/runs", b""),
    "GET /stats": ("/api/v1/stats", b""),
}
"""A request that is fine, by its route: what clients ask for most."""
KEYS = ("server", "reader", "bound", "none", "wrong")


class Asked(Struct, frozen=True):
    """One request. `key`: whose key is sent; `chunks`: the body, as it comes; `cut`: the client hangs up after it."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = (("host", "testserver"),)
    chunks: tuple[bytes, ...] = (b"",)
    key: str = "server"
    query: str = ""
    cut: bool = False
    version: str = "1.1"


def with_body(method: str, path: str, body: bytes, *more: tuple[str, str], key: str = "server") -> Asked:
    given = (("host", "testserver"), ("content-type", "application/json"), ("content-length", str(len(body))), *more)
    return Asked(method, path, given, (body,), key)


def requests() -> Iterator[Asked]:
    """Of each route: what is fine, with every key; then what is not."""
    for route, (path, body) in GOOD.items():
        method = route.partition(" ")[0]
        for key in KEYS:
            yield with_body(method, path, body, key=key)
        yield from odd_heads(method, path, body)
        yield from odd_paths(method, path, body)
        if method != "GET":
            yield from odd_bodies(method, path, body)


def odd_heads(method: str, path: str, body: bytes) -> Iterator[Asked]:
    for name, text in (
        ("sec-fetch-site", "cross-site"), ("sec-fetch-site", "same-origin"), ("origin", "http://evil.example"),
        ("origin", "http://testserver"), ("host", "testserver"), ("idempotency-key", "once"),
        ("idempotency-key", "not one key"), ("traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-01"),
        ("traceparent", "nonsense"), ("content-encoding", "gzip"), ("authorization", "Basic eDp5"),
    ):  # fmt: skip
        yield with_body(method, path, body, (name, text))
    for hosts in ((), ("evil.example",), ("testserver:8080",), ("a b",), ("",), ("t\xe9stserver",)):
        for _ in range(2):  # a name that was answered before is known
            yield Asked(method, path, tuple(("host", host) for host in hosts), (body,))
    yield Asked(method, path, (), (body,), version="1.0")


def odd_paths(method: str, path: str, body: bytes) -> Iterator[Asked]:
    for given in (f"{path}/", f"/{path}", path.replace("/v1", "//v1"), f"{path}/x", path.upper(), f"{path}%00"):
        yield with_body(method, given, body)
    yield Asked(method, path, query="limit=1&limit=2")
    yield Asked(method, path, query="unknown=1&%ff")
    for other in ("HEAD", "OPTIONS", "DELETE" if method == "GET" else "GET", "PUT", "BREW"):
        yield with_body(other, path if method == "GET" else f"{path}-other", body)
    if path.startswith("/api/v1/jobs/"):
        for name in ("nobody", "-", "a" * 201, "\u00fc"):
            yield with_body(method, f"/api/v1/jobs/{name}", body)


def odd_bodies(method: str, path: str, body: bytes) -> Iterator[Asked]:
    for given in (
        b"", b"{", b"[]", b"null", b"5", b"\xff", b'{"unknown": 1}', b'{"name": "a\\u0000"}', b"[" * 100 + b"]" * 100,
        b'{"name": 1e999}', b'{"priority": 3.0, "name": "x"}', body[:-1] + b', "nope": 1}', b" " + body, b"x" * 70_000,
    ):  # fmt: skip
        yield with_body(method, path, given)
    host = ("host", "testserver")
    yield Asked(method, path, (host,), (body,))
    yield Asked(method, path, (host, ("content-type", "text/plain")), (body,))
    yield Asked(method, path, (host, ("content-type", "Application/JSON; charset=utf-8")), (body[:5], body[5:]))
    yield Asked(method, path, (host, ("content-type", "application/json"), ("content-length", "9999999")), (body,))
    yield Asked(method, path, (host, ("content-type", "application/json"), ("content-length", "many")), (body,))
    yield Asked(method, path, (host, ("content-type", "application/json")), (b" " * 700_000, b" " * 700_000))
    yield Asked(method, path, (host, ("content-type", "application/json")), (body[:5],), cut=True)


def every_route(app: Litestar) -> Iterator[Asked]:
    """Each route with each key; but for a stream, and for text that says when it was begun."""
    for route in app.routes:
        path = route.path.replace("{name:str}", "job").replace("{id:str}", ID).replace("{file:str}", "file")
        for method in sorted(route.methods - {"OPTIONS"}):
            for key in KEYS if not path.endswith(("/events", "/metrics")) else ():
                yield with_body(method, path, b"{}" if method in ("POST", "PUT", "PATCH") else b"", key=key)


def job_bodies() -> Iterator[Asked]:
    """Definitions: what the first look accepts must be what the second one would have accepted."""
    changed: list[dict[str, Any]] = [
            {"priority": 3.0}, {"priority": 3.5}, {"priority": "3"}, {"fires_max": 7.0}, {"fires_max": 10**30},
            {"labels": {"a": "b"}}, {"labels": {"a": 1}}, {"title": "x" * 500}, {"starts_at": "2100-01-01T00:00:00Z"},
            {"starts_at": "soon"}, {"enabled": False}, {"retry": {"attempts_max": 2.0}}, {"retry": {"attempts": 2}},
            {"trigger": {"type": "cron", "expression": "0 9 * * *", "timezone": "Europe/Berlin"}}, {"trigger": 5},
            {"trigger": {"type": "cron", "expression": "x" * 9_000}}, {"trigger": {"type": "no"}}, {"id": "mine"},
            {"target": {"type": "external"}}, {"target": {"type": "nowhere"}}, {"next_fire_at": None, "version": 9},
            {"target": {"type": "http", "url": "https://example.com/?token=x", "signing_secret": "s" * 20}},
            {"on": {"failed": [{"notify": "ops"}]}}, {"on": {"nope": []}}, {"concurrency": {"key": "k", "max": 2.0}},
    ]  # fmt: skip
    for number, changes in enumerate(changed):
        yield with_body("POST", "/api/v1/jobs", TEXT(a_definition(f"job-{number}") | changes))
        yield with_body("GET", f"/api/v1/jobs/job-{number}", b"")
    twice = TEXT(a_definition("twice"))[:-1]
    yield with_body("POST", "/api/v1/jobs", twice + b', "priority": 1, "priority": 2}')
    yield with_body("POST", "/api/v1/jobs", twice + b', "priority": "x", "priority": 2}')
    yield with_body("POST", "/api/v1/jobs", twice + b', "fires_max": 1' + b"0" * 400 + b"}")


def all_bodies() -> Iterator[Asked]:
    yield from job_bodies()
    yield from odd_bodies("POST", *GOOD["POST /jobs"])


async def written() -> None:
    """Return once the entries of refusals are stored, which are written beside the answers."""
    writing = [task for task in asyncio.all_tasks() if task.get_name() == WRITER]
    await asyncio.gather(*writing)


class System:
    """One of the two."""

    def __init__(self, *, short: bool) -> None:
        self.api = Api(api_keys=[SERVER_KEY])
        self.framework = 0
        app = self.api.app
        inner: Callable[..., Any] = app.asgi_handler

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            self.framework += 1
            await inner(scope, receive, send)

        app.asgi_handler = counted
        self._call: Callable[..., Any] = app if short else lambda *given: Litestar.__call__(app, *given)
        self.keys = {"server": SERVER_KEY, "none": "", "wrong": "no-such-key"}

    async def set_up(self) -> None:
        admin = {"authorization": f"Bearer {SERVER_KEY}"}
        for name, fields in {"reader": {"roles": ["viewer"]}, "bound": {"roles": ["editor"], "queues": ["a"]}}.items():
            reply = await self.api.post("/keys", {"name": name, **fields}, headers=admin)
            self.keys[name] = reply.json["key"]
        assert (await self.api.post("/jobs", a_definition("job"), headers=admin)).status == 201
        await self.api.store.add_runs([a_run(number, queue="pull/work") for number in range(5)])
        self.framework = 0

    async def ask(self, asked: Asked) -> list[Any]:
        """All that is sent back."""
        headers = [(name.encode(), text.encode("latin-1")) for name, text in asked.headers]
        if self.keys[asked.key]:
            headers.append((b"authorization", b"Bearer " + self.keys[asked.key].encode()))
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": asked.version, "scheme": "http",
            "method": asked.method, "path": asked.path, "raw_path": asked.path.encode(), "root_path": "",
            "query_string": asked.query.encode(), "headers": headers, "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80), "state": {},
        }  # fmt: skip
        left, sent = list(asked.chunks), list[Any]()

        async def receive() -> dict[str, Any]:
            if left:
                return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or asked.cut}
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self._call(scope, receive, send)
        return [
            {**message, "headers": list(message["headers"])} if "headers" in message else message for message in sent
        ]

    async def stored(self) -> dict[str, Any]:
        """What there is in the end."""
        await written()
        store = self.api.store
        audit: list[Any] = []
        after: str | None = None
        while True:
            page = await store.list_records(RecordFilter("audit/"), after, 1_000)
            audit += page.items
            if (after := page.next_after) is None:
                break
        jobs = (await store.list_jobs(JobFilter(finished=None), None, 200)).items
        runs = (await store.list_runs(RunFilter(), None, 200)).items
        return {"audit": audit, "jobs": jobs, "runs": runs, "counted": self._counted()}

    def _counted(self) -> Sequence[str]:
        text = self.api.telemetry.render()[0].decode()
        return [line for line in text.splitlines() if line.startswith("horarium_requests_refused_total")]


@pytest.mark.slow
async def test_both_ways_answer_alike(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level("CRITICAL", "horarium.api")
    for module in (endpoints, guards):
        monkeypatch.setattr(module, "urandom", bytes)  # what requests are called in the audit
    short, long = System(short=True), System(short=False)
    await short.set_up()
    await long.set_up()
    table = [*requests(), *job_bodies(), *every_route(short.api.app)]
    for asked in table:
        assert await short.ask(asked) == await long.ask(asked), asked
        for system in (short, long):
            system.api.clock.advance(1)  # what an address owes for a wrong key fades
    assert long.framework == len(table)
    assert short.framework < len(table) / 2
    assert await short.stored() == await long.stored()


@pytest.mark.parametrize("asked", [each for each in all_bodies() if each.method == "POST"])
def test_a_definition_is_read_at_once_as_it_is_read_field_by_field(asked: Asked) -> None:
    body = b"".join(asked.chunks)
    assert _outcome(read_new_job, body) == _outcome(lambda text: to_definition(read_job(text)), body)


def _outcome(read: Callable[[bytes], Any], body: bytes) -> Any:
    try:
        return read(body)
    except CallerError as error:
        return type(error), problem_of(error)


async def test_what_clients_ask_for_most_goes_the_short_way() -> None:
    system = System(short=True)
    await system.set_up()
    for route, (path, body) in GOOD.items():
        method = route.partition(" ")[0]
        await system.ask(with_body(method, path, body))
    assert system.framework == 0


async def test_only_answers_that_are_whole_do() -> None:
    """A stream, and the text of the metrics, are the framework's."""
    system = System(short=True)
    await system.set_up()
    await system.ask(with_body("GET", "/metrics", b""))
    await system.ask(with_body("HEAD", "/api/v1/events", b""))
    assert system.framework == 2
