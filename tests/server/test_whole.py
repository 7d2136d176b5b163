"""What goes between server and application in one piece says what ASGI's messages say: the same bytes are sent over
real connections to two servers, one of which offers no such thing, and all that comes back is compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from horarium.api.answers import Ready
from horarium.api.limits import BODY_BYTES_MAX
from horarium.server.whole import WholeExchange
from tests.api.conftest import Api, a_definition

from .conftest import Running, serving

HOST = b"Host: testserver\r\n"
JSON = b"Content-Type: application/json\r\n"
LAST = b"GET /healthz HTTP/1.1\r\nHost: testserver\r\nConnection: close\r\n\r\n"
GET = b"GET /api/v1/jobs/job HTTP/1.1\r\n" + HOST
RUN = msgspec.json.encode({"target": {"type": "queue", "queue": "work", "payload": {"n": 1}}})
CLAIM = msgspec.json.encode({"queues": ["work"], "limit": 1, "worker": "w"})
_DATE = re.compile(rb"date: [^\r]*")


def post(path: str, body: bytes, more: bytes = b"") -> bytes:
    head = b"POST /api/v1%s HTTP/1.1\r\n%s%sContent-Length: %d\r\n%s\r\n"
    return head % (path.encode(), HOST, JSON, len(body), more) + body


TALKS: dict[str, list[bytes]] = {
    "a job": [GET + b"\r\n"],
    "a job that is not there": [GET.replace(b"/job ", b"/nobody ") + b"\r\n"],
    "the head alone": [GET.replace(b"GET", b"HEAD", 1) + b"\r\n", GET + b"\r\n"],
    "a new job": [post("/jobs", msgspec.json.encode(a_definition("made")))] * 2,
    "a run, claimed; then none is left": [post("/runs", RUN), *[post("/runs/claim", CLAIM)] * 2],
    "requests sent ahead": [b"".join([GET + b"\r\n", post("/runs", RUN), GET + b"\r\n", post("/runs/claim", CLAIM)])],
    "the last one": [GET + b"Connection: close\r\n\r\n"],
    "an old client": [GET.replace(b"1.1", b"1.0") + b"\r\n"],
    "a body after leave to send it": [post("/runs", RUN, b"Expect: 100-continue\r\n")],
    "a body in two parts": [post("/runs", RUN)[:-5], RUN[-5:]],
    "a body in chunks": [
        b"POST /api/v1/runs HTTP/1.1\r\n%s%sTransfer-Encoding: chunked\r\n\r\n" % (HOST, JSON),
        b"%x\r\n%s\r\n0\r\n\r\n" % (len(RUN), RUN),
    ],
    "no body": [post("/runs", b"")],
    "a body that is not JSON": [post("/runs", b"{")],
    "a body that is too large": [post("/runs", b"x" * (BODY_BYTES_MAX + 1))],
    "one in chunks that is too large": [
        b"POST /api/v1/runs HTTP/1.1\r\n%s%sTransfer-Encoding: chunked\r\n\r\n" % (HOST, JSON),
        b"%x\r\n%s\r\n0\r\n\r\n" % (BODY_BYTES_MAX + 1, b" " * (BODY_BYTES_MAX + 1)),
    ],
    "a body of a compressed kind": [post("/runs", RUN, b"Content-Encoding: gzip\r\n")],
    "a header that is given twice": [GET + b"X-One: 1\r\nX-One: 2\r\n\r\n"],
}


async def talk(running: Running, said: Sequence[bytes]) -> bytes:
    """All that comes back, but for dates."""
    client = await running.connect()
    for data in (*said, LAST):
        await client.send(data)
    return _DATE.sub(b"date: now", await client.ended())


async def api_with_a_job() -> Any:
    """The application, which has answered to this name before."""
    api = Api()
    await api.add_job("job")
    return api.app


def without(app: Any) -> Any:
    """The application, to which its server offers nothing."""

    async def plain(scope: Any, receive: Any, send: Any) -> None:
        scope.pop("extensions", None)
        await app(scope, receive, send)

    return plain


@pytest.mark.parametrize("said", TALKS.values(), ids=TALKS)
async def test_both_ways_say_the_same(said: Sequence[bytes]) -> None:
    async with serving(await api_with_a_job()) as running:
        whole = await talk(running, said)
    async with serving(without(await api_with_a_job())) as running:
        assert whole == await talk(running, said)
    assert whole.startswith(b"HTTP/1.")


async def test_what_clients_ask_for_most_goes_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    offered: list[object] = []
    take_body, answer = WholeExchange.take_body, WholeExchange.answer

    def body_taken(self: WholeExchange, scope: Any) -> bytes | None:
        offered.append(body := take_body(self, scope))
        return body

    def answered(self: WholeExchange, *given: Any) -> bool:
        offered.append(sent := answer(self, *given))
        return sent

    monkeypatch.setattr(WholeExchange, "take_body", body_taken)
    monkeypatch.setattr(WholeExchange, "answer", answered)
    async with serving(await api_with_a_job()) as running:
        client = await running.connect()
        for request in (GET + b"\r\n", post("/runs", RUN), post("/runs/claim", CLAIM)):
            await client.send(request)
            assert (await client.answer())[0] < 300
    assert offered == [True, RUN, True, CLAIM, True]


@pytest.mark.parametrize("value", ["a\r\nset-cookie: b", "a\nb", "\x00", "a\x7f"])
def test_what_is_no_line_is_not_sent_as_one(value: str) -> None:
    with pytest.raises(ValueError, match="can't be sent in a header"):
        Ready(b"{}", media_type="application/json", headers=[("location", value)]).encode_lines()


def test_lines_say_what_headers_say() -> None:
    for answer in (Ready(b"{}", media_type="a/b", headers=[("location", "/x\t\xe9")]), Ready(status=204)):
        lines = b"".join(b"%s: %s\r\n" % header for header in answer.encode_headers())
        assert answer.encode_lines() == lines
