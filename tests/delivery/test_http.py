"""Delivery over real sockets: what is sent, what is made of the answer, and endpoints that misbehave."""

import asyncio
import gzip
import json
import socket
import struct
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

import msgspec
import pytest
import standardwebhooks

from horarium.clock import SECOND, SystemClock
from horarium.delivery import http as adapter
from horarium.delivery.answers import BODY_BYTES_MAX, RETRY_AFTER_SECONDS_MAX
from horarium.delivery.http import HttpDelivery, check_target
from horarium.delivery.signing import new_secret
from horarium.errors import InvalidJob, InvalidSetting, LeaseLost, StoreUnavailable
from horarium.model import (
    HEADER_CHARS_MAX,
    HEADERS_MAX,
    RESULT_BYTES_MAX,
    BusTarget,
    Cancelled,
    Completion,
    Deferred,
    Failed,
    HttpTarget,
    Job,
    Outcome,
    Run,
    RunPolicy,
    Succeeded,
    Target,
    run_id,
)
from horarium.ports import Delivery

NOW = 1_800_000_000 * SECOND
FIRE_AT = NOW - 5 * SECOND
SECRET = new_secret(bytes(range(32)))
OTHER_SECRET = new_secret(bytes(range(32, 64)))
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class StoppedClock:
    def now(self) -> int:
        return NOW

    def monotonic(self) -> float:
        return 0.0


class Asked:
    """A control that is cancelled when told so."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.beats = 0
        self.beat_fails: Exception | None = None

    @property
    def cancelled(self) -> bool:
        return self.event.is_set()

    async def wait_cancelled(self) -> None:
        await self.event.wait()

    async def heartbeat(self, progress: bytes | None = None) -> None:
        self.beats += 1
        if self.beat_fails is not None:
            raise self.beat_fails


@dataclass
class Request:
    line: str
    headers: dict[str, str]
    body: bytes


Reply = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Receiver:
    """A server on a free port that answers every request with the same bytes, or as `reply` does."""

    reply: bytes | Reply = OK
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.requests.append(await read_request(reader))
                self.arrived.set()
                if isinstance(self.reply, bytes):
                    writer.write(self.reply)
                    await writer.drain()
                else:
                    await self.reply(reader, writer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.left.set()
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    line, *rest = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (item.partition(":") for item in rest)}
    return Request(line, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


@asynccontextmanager
async def receiving(reply: bytes | Reply = OK) -> AsyncIterator[Receiver]:
    receiver = Receiver(reply)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await receiver.serve(reader, writer)
        except asyncio.CancelledError:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def delivering(**settings: Any) -> AsyncIterator[HttpDelivery]:
    delivery = HttpDelivery(StoppedClock(), **{"allow_private": True, **settings})
    try:
        yield delivery
    finally:
        await delivery.close()


def of(target: Target, **changes: Any) -> Delivery:
    run = Run(
        id=run_id("job", FIRE_AT),
        queue="http",
        fire_at=FIRE_AT,
        due_at=FIRE_AT,
        created_at=FIRE_AT,
        job="nightly",
        attempt=2,
        token=7,
    )
    job = Job(name="nightly", trigger={}, target=target, id="job")
    return Delivery(msgspec.structs.replace(run, **changes), job)


async def attempt(receiver: Receiver, delivery: HttpDelivery | None = None, **target: Any) -> Outcome | None:
    wanted = of(HttpTarget(**{"url": receiver.url(), **target}))
    if delivery is not None:
        return await delivery.deliver(wanted, Asked())
    async with delivering() as own:
        return await own.deliver(wanted, Asked())


def kept(outcome: Outcome | None) -> dict[str, Any]:
    assert isinstance(outcome, Succeeded | Failed)
    assert outcome.result is not None
    return json.loads(outcome.result)


def answer(status: str, *headers: str, body: bytes = b"") -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}"])
    return head.encode() + b"\r\n\r\n" + body


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer nothing until the client goes away."""
    if not await reader.read():
        raise ConnectionResetError


# ---- what is sent -----------------------------------------------------------------------------------------------


async def test_a_request_says_which_run_it_is() -> None:
    async with receiving() as receiver:
        assert isinstance(await attempt(receiver), Succeeded)
    (request,) = receiver.requests
    identity = run_id("job", FIRE_AT)
    sent = request.headers
    assert request.line == "POST / HTTP/1.1"
    assert sent["webhook-id"] == sent["idempotency-key"] == sent["horarium-run"] == identity
    assert sent["webhook-timestamp"] == "1800000000"
    assert (sent["horarium-job"], sent["horarium-attempt"]) == ("nightly", "2")
    assert sent["horarium-fire-at"] == "2027-01-15T07:59:55Z"
    assert sent["user-agent"].startswith("Horarium")
    assert sent["host"] == f"127.0.0.1:{receiver.port}"
    assert json.loads(request.body) == {
        "job": "nightly",
        "run_id": identity,
        "fire_at": "2027-01-15T07:59:55Z",
        "attempt": 2,
    }
    assert "webhook-signature" not in sent
    assert sent["horarium-token"] == "7"


@pytest.mark.parametrize(("own", "used"), [(None, SECRET), (OTHER_SECRET, OTHER_SECRET)])
async def test_the_exact_bytes_are_signed_and_the_target_s_secret_wins(own: str | None, used: str) -> None:
    # The reference verifier reads the machine's clock, and so must the sender here.
    async with receiving() as receiver:
        delivery = HttpDelivery(SystemClock(), allow_private=True, signing_secret=SECRET)
        await attempt(receiver, delivery, signing_secret=own, body={"text": "ü {{run.id}}"})
        await delivery.close()
    (request,) = receiver.requests
    standardwebhooks.Webhook(used).verify(request.body, request.headers)


@pytest.mark.parametrize(
    ("body", "sent", "content_type"),
    [
        ("run {{run.id}}\n{{7*7}}", f"run {run_id('job', FIRE_AT)}\n{{{{7*7}}}}", "text/plain; charset=utf-8"),
        ({"n": "{{run.attempt}}", "{{run.id}}": 1}, '{"n":"2","{{run.id}}":1}', "application/json"),
        (["{{job.name}}", 1.5, None], '["nightly",1.5,null]', "application/json"),
        (0, "0", "application/json"),
        ("", "", "text/plain; charset=utf-8"),
    ],
)
async def test_a_body_is_sent_with_its_placeholders_filled(body: Any, sent: str, content_type: str) -> None:
    async with receiving() as receiver:
        await attempt(receiver, body=body)
    (request,) = receiver.requests
    assert request.body.decode() == sent
    assert request.headers["content-type"] == content_type


@pytest.mark.parametrize(
    ("payload", "sent"),
    [
        (b'{"big": 123456789012345678901234567890}', b'{"big": 123456789012345678901234567890}'),
        (b'{"id":"{{run.attempt}}"}', b'{"id":"2"}'),
        (b'"plain"', b"plain"),
    ],
)
async def test_a_run_s_payload_stands_in_for_the_body(payload: bytes, sent: bytes) -> None:
    async with receiving() as receiver, delivering() as delivery:
        await delivery.deliver(of(HttpTarget(receiver.url(), body="not this"), payload=payload), Asked())
    assert receiver.requests[0].body == sent


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_method_without_a_body_sends_none(method: str) -> None:
    async with receiving() as receiver:
        await attempt(receiver, method=method)
    (request,) = receiver.requests
    assert request.line.startswith(f"{method} / ")
    assert request.body == b""
    assert "content-type" not in request.headers


async def test_placeholders_in_path_query_and_headers_are_filled() -> None:
    async with receiving() as receiver:
        url = receiver.url("/r/{{run.fire_at}}/%41/ü?job={{job.name}}&x={{none}}")
        headers = {"X-Run": "{{run.attempt}}", "content-type": "text/x-own", "User-Agent": "mine"}
        await attempt(receiver, url=url, headers=headers)
    (request,) = receiver.requests
    assert request.line == ("POST /r/2027-01-15T07%3A59%3A55Z/%41/%C3%BC?job=nightly&x=%7B%7Bnone%7D%7D HTTP/1.1")
    assert (request.headers["x-run"], request.headers["content-type"]) == ("2", "text/x-own")
    assert request.headers["user-agent"] == "mine"


async def test_a_one_off_run_brings_its_own_target() -> None:
    async with receiving() as receiver, delivering() as delivery:
        run = of(BusTarget(), job=None, policy=RunPolicy(target=HttpTarget(receiver.url()))).run
        assert isinstance(await delivery.deliver(Delivery(run, None), Asked()), Succeeded)
    assert "horarium-job" not in receiver.requests[0].headers


async def test_a_run_without_an_http_target_fails_for_good() -> None:
    async with delivering() as delivery:
        outcome = await delivery.deliver(of(BusTarget()), Asked())
    assert isinstance(outcome, Failed)
    assert not outcome.retryable


async def test_an_endpoint_that_calls_back_gets_the_lease() -> None:
    control = Asked()
    async with (
        receiving(answer("202 Accepted")) as receiver,
        delivering(report_url="http://me:8080/", report_key=lambda id: f"hrk_{id}") as delivery,
    ):
        target = HttpTarget(receiver.url(), completion=Completion.CALLBACK)
        assert await delivery.deliver(of(target, lease_expires_at=NOW), control) is None
    sent = receiver.requests[0].headers
    identity = run_id("job", FIRE_AT)
    url = f"http://me:8080/api/v1/runs/{identity}"
    assert (sent["horarium-token"], sent["horarium-report-url"]) == ("7", url)
    assert sent["horarium-lease-expires-at"] == "2027-01-15T08:00:00Z"
    assert sent["horarium-report-key"] == f"hrk_{identity}"
    body = json.loads(receiver.requests[0].body)
    assert (body["run_id"], body["token"], body["lease_expires_at"]) == (identity, 7, "2027-01-15T08:00:00Z")
    assert body["report"] == {
        "heartbeat": f"{url}/heartbeat", "complete": f"{url}/complete", "fail": f"{url}/fail", "key": f"hrk_{identity}"
    }  # fmt: skip
    assert control.beats == 1, "the endpoint's time begins with its 202"


async def test_a_body_of_one_s_own_may_hold_token_and_urls() -> None:
    async with receiving(answer("202 Accepted")) as receiver, delivering(report_url="http://me") as delivery:
        own = {"t": "{{run.token}}", "to": "{{report.url}}/complete", "key": "{{report.key}}"}
        await delivery.deliver(of(HttpTarget(receiver.url(), body=own, completion=Completion.CALLBACK)), Asked())
        await delivery.deliver(of(HttpTarget(receiver.url(), body=own)), Asked())
    later, at_once = (json.loads(request.body) for request in receiver.requests)
    assert later == {"t": "7", "to": f"http://me/api/v1/runs/{run_id('job', FIRE_AT)}/complete", "key": ""}
    assert at_once == {"t": "7", "to": "/complete", "key": ""}


@pytest.mark.parametrize("failure", [LeaseLost("reported already"), StoreUnavailable("down")])
async def test_a_lease_that_can_t_be_renewed_at_the_202_changes_nothing(failure: Exception) -> None:
    control = Asked()
    control.beat_fails = failure
    async with receiving(answer("202 Accepted")) as receiver, delivering() as delivery:
        target = HttpTarget(receiver.url(), completion=Completion.CALLBACK)
        assert await delivery.deliver(of(target), control) is None


@pytest.mark.parametrize(("status", "kind"), [("200 OK", Succeeded), ("500 No", Failed)])
async def test_an_endpoint_that_could_call_back_may_answer_at_once(status: str, kind: type) -> None:
    async with receiving(answer(status)) as receiver:
        assert isinstance(await attempt(receiver, completion=Completion.CALLBACK), kind)


# ---- what is made of an answer ----------------------------------------------------------------------------------


async def test_a_result_keeps_status_some_headers_and_body() -> None:
    reply = answer("201 Created", "Content-Type: text/plain", "Set-Cookie: a=canary", body="grün\x00".encode())
    async with receiving(reply) as receiver:
        result = kept(await attempt(receiver))
    assert result == {"status": 201, "headers": {"content-type": "text/plain"}, "body": "grün\ufffd"}


@pytest.mark.parametrize(
    ("status", "expected", "kind"),
    [
        (204, (), Succeeded),
        (304, (304,), Succeeded),
        (404, (200, 404), Succeeded),
        (200, (201,), Failed),
        (400, (), Failed),
        (404, (), Failed),
        (302, (), Failed),
        (599, (), Failed),
    ],
)
async def test_a_status_is_expected_or_it_fails(status: int, expected: tuple[int, ...], kind: type) -> None:
    async with receiving(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode()) as receiver:
        outcome = await attempt(receiver, expected_status=expected)
    assert isinstance(outcome, kind)
    assert kept(outcome)["status"] == status
    if isinstance(outcome, Failed):
        assert outcome.retryable
        assert str(status) in outcome.error


async def test_gone_is_not_tried_again() -> None:
    async with receiving(answer("410 Gone", body=b"bye")) as receiver:
        outcome = await attempt(receiver)
    assert isinstance(outcome, Failed)
    assert not outcome.retryable
    assert kept(outcome)["body"] == "bye"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        (formatdate(NOW / SECOND + 90, usegmt=True), 90.0),
        (formatdate(NOW / SECOND - 90, usegmt=True), 0.0),
        ("9" * 60, RETRY_AFTER_SECONDS_MAX),
        ("-1", None),
        ("soon", None),
        ("9" * 100, None),
        ("Fri, 31 Dec 9999 23:59:59 GMT", RETRY_AFTER_SECONDS_MAX),
        ("Fri, 99 Xxx 0000 99:99:99", None),
    ],
)
async def test_retry_after_is_heeded_in_both_forms_up_to_a_day(text: str, seconds: float | None) -> None:
    async with receiving(answer("503 X", f"Retry-After: {text}")) as receiver:
        outcome = await attempt(receiver)
    assert isinstance(outcome, Failed)
    assert outcome.retryable
    assert outcome.retry_after_seconds == seconds


@pytest.mark.parametrize("filling", [b"x", b"\x01", b"\xff", "€".encode()])
async def test_a_result_fits_whatever_the_body_holds(filling: bytes) -> None:
    async with receiving(answer("200 OK", body=filling * (BODY_BYTES_MAX // len(filling)))) as receiver:
        outcome = await attempt(receiver)
    assert kept(outcome)["truncated"]
    assert isinstance(outcome, Succeeded)
    assert outcome.result is not None
    assert RESULT_BYTES_MAX - 64 < len(outcome.result) <= RESULT_BYTES_MAX


# ---- endpoints that misbehave -----------------------------------------------------------------------------------


async def test_a_redirect_is_not_followed() -> None:
    async with receiving() as other, receiving(answer("302 Found", f"Location: {other.url()}")) as receiver:
        outcome = await attempt(receiver)
    assert isinstance(outcome, Failed)
    assert "not followed" in outcome.error
    assert other.connections == 0


async def test_an_endpoint_that_hangs_times_out() -> None:
    async with receiving(hang) as receiver:
        outcome = await attempt(receiver, timeout_seconds=0.05)
        assert isinstance(outcome, Failed)
        assert outcome.retryable
        assert outcome.error.startswith("timed out after 0.05 s")
        await asyncio.wait_for(receiver.left.wait(), 2)


async def test_the_execution_limit_ends_a_request_before_its_own() -> None:
    async with receiving(hang) as receiver, delivering() as delivery:
        run = of(HttpTarget(receiver.url()), execution_seconds=5.05, started_at=NOW - 5 * SECOND)
        outcome = await asyncio.wait_for(delivery.deliver(run, Asked()), 2)
    assert isinstance(outcome, Failed)
    assert "0.05 s" in outcome.error


@pytest.mark.parametrize(
    "beginning", [b"", b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n"]
)
async def test_an_endpoint_that_drips_times_out(beginning: bytes) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(beginning)
        gone = asyncio.ensure_future(reader.read())
        while beginning and not gone.done():
            writer.write(b"x")
            await asyncio.wait([gone], timeout=0.005)
        await gone
        raise ConnectionResetError

    async with receiving(drip) as receiver:
        outcome = await attempt(receiver, timeout_seconds=0.1)
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("timed out")


@pytest.mark.parametrize("head", ["Content-Length: 1000000000", "X-No-Length: 1"])
async def test_an_endless_body_is_read_only_at_its_beginning(head: str) -> None:
    written = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode())
        while written < 1_000_000_000:
            writer.write(b"x" * 65_536)
            written += 65_536
            await writer.drain()

    async with receiving(flood) as receiver, delivering() as delivery:
        outcome = await attempt(receiver, delivery)
        await asyncio.wait_for(receiver.left.wait(), 5)
    assert isinstance(outcome, Succeeded)
    assert kept(outcome)["truncated"]
    assert written < 20_000_000


async def test_a_compressed_body_is_not_opened() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    async with receiving(answer("200 OK", "Content-Encoding: gzip", body=bomb)) as receiver:
        outcome = await attempt(receiver)
    assert receiver.requests[0].headers["accept-encoding"] == "identity"
    assert kept(outcome)["body"] is None
    assert kept(outcome)["headers"]["content-encoding"] == "gzip"


def reset(writer: asyncio.StreamWriter) -> None:
    """Make closing send RST."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def test_a_reset_connection_is_a_failure_to_retry() -> None:
    async def slam(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reset(writer)
        raise ConnectionResetError

    async with receiving(slam) as receiver:
        outcome = await attempt(receiver)
    assert isinstance(outcome, Failed)
    assert outcome.retryable
    assert f"127.0.0.1:{receiver.port}" in outcome.error
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    "reply",
    [
        b"garbage\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x16\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_not_http_is_a_failure_to_retry(reply: bytes) -> None:
    async with receiving(reply) as receiver:
        outcome = await attempt(receiver, timeout_seconds=2)
    assert isinstance(outcome, Failed)
    assert outcome.retryable
    assert "timed out" not in outcome.error
    assert "garbage" not in outcome.error


async def test_an_answer_that_breaks_off_is_a_failure_to_retry() -> None:
    async def stop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        raise ConnectionResetError

    async with receiving(stop) as receiver:
        outcome = await attempt(receiver)
    assert isinstance(outcome, Failed)
    assert "broke off" in outcome.error


async def test_an_endpoint_that_speaks_no_tls_is_a_failure_to_retry() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with delivering() as delivery:
        outcome = await delivery.deliver(of(HttpTarget(f"https://127.0.0.1:{port}/")), Asked())
    server.close()
    assert isinstance(outcome, Failed)
    assert outcome.retryable
    assert "TLS" in outcome.error


async def test_a_refused_connection_says_so_without_the_path() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        async with delivering() as delivery:
            target = HttpTarget(f"http://127.0.0.1:{port}/canary?canary=1", headers={"Authorization": "canary"})
            outcome = await delivery.deliver(of(target), Asked())
    assert isinstance(outcome, Failed)
    assert outcome.error == f"connection refused by 127.0.0.1:{port}"


async def test_an_unknown_name_is_a_failure_to_retry() -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with delivering(lookup=unknown) as delivery:
        outcome = await delivery.deliver(of(HttpTarget("http://nowhere.example/?canary")), Asked())
    assert outcome == Failed("the host of nowhere.example:80 can't be resolved: Name or service not known")


async def test_a_cookie_is_not_sent_back() -> None:
    async with receiving(answer("200 OK", "Set-Cookie: a=b")) as receiver, delivering() as delivery:
        await attempt(receiver, delivery)
        await attempt(receiver, delivery)
    assert "cookie" not in receiver.requests[1].headers


# ---- addresses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "2130706433", "0x7f.1", "017700000001", "127.1", "localhost", "localhost.", "127。0。0。1", "0"],
)
async def test_a_private_address_gets_no_packet(host: str) -> None:
    async with receiving() as receiver, delivering(allow_private=False) as delivery:
        outcome = await attempt(receiver, delivery, url=receiver.url(host=host))
    assert isinstance(outcome, Failed)
    assert not outcome.retryable
    assert "127.0.0.1" in outcome.error or "0.0.0.0" in outcome.error
    assert receiver.connections == 0


@pytest.mark.parametrize(
    "answers", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::ffff:127.0.0.1"], ["127.0.0.1", "::1"]]
)
async def test_a_name_of_a_private_address_gets_no_packet(answers: list[str]) -> None:
    async def lookup(host: str, port: int) -> Sequence[str]:
        return answers

    async with receiving() as receiver, delivering(allow_private=False, lookup=lookup) as delivery:
        outcome = await attempt(receiver, delivery, url=receiver.url(host="rebound.example"))
    assert isinstance(outcome, Failed)
    assert not outcome.retryable
    assert "--allow-private-targets" in outcome.error
    assert receiver.connections == 0


async def test_a_name_is_resolved_once_for_a_connection_and_sent_as_host() -> None:
    asked: list[str] = []

    async def lookup(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

    close = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    async with receiving(close) as receiver, delivering(lookup=lookup) as delivery:
        url = receiver.url(host="changing.example")
        assert isinstance(await attempt(receiver, delivery, url=url), Succeeded)
        second = await attempt(receiver, delivery, url=url)
    assert asked == ["changing.example"] * 2
    assert receiver.requests[0].headers["host"] == f"changing.example:{receiver.port}"
    assert isinstance(second, Failed)
    assert "169.254.169.254" in second.error


async def test_a_proxy_in_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as proxy, receiving() as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url())
        assert isinstance(await attempt(receiver), Succeeded)
    assert (proxy.connections, receiver.connections) == (0, 1)


# ---- connections ------------------------------------------------------------------------------------------------


async def test_a_connection_is_used_again() -> None:
    async with receiving() as receiver, delivering() as delivery:
        for _ in range(3):
            await attempt(receiver, delivery)
    assert (len(receiver.requests), receiver.connections) == (3, 1)


async def test_a_host_that_hangs_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "PATIENCE_SECONDS", 0.01)
    async with receiving(hang) as bad, receiving() as good, delivering(per_host_max=2, total_max=3) as delivery:
        hanging = [asyncio.ensure_future(attempt(bad, delivery)) for _ in range(5)]
        outcomes = [await attempt(good, delivery) for _ in range(10)]
        done, waiting = await asyncio.wait(hanging, timeout=2, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 3:
            more, waiting = await asyncio.wait(waiting, timeout=2, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(outcome, Succeeded) for outcome in outcomes)
        assert bad.connections == 2
        put_off = [task.result() for task in done]
        assert all(isinstance(outcome, Deferred) and outcome.until > NOW for outcome in put_off)
        monkeypatch.setattr(bad, "reply", OK)
        assert isinstance(await attempt(bad, delivery), Succeeded)


async def test_close_may_come_first_and_twice() -> None:
    delivery = HttpDelivery(StoppedClock())
    await delivery.close()
    await delivery.close()


# ---- cancel -----------------------------------------------------------------------------------------------------


async def test_a_cancel_aborts_the_request_and_tells_the_endpoint() -> None:
    async with receiving(hang) as receiver, receiving() as told, delivering(signing_secret=SECRET) as delivery:
        control = Asked()
        target = HttpTarget(receiver.url(), cancel_url=told.url("/stop/{{run.attempt}}"))
        task = asyncio.ensure_future(delivery.deliver(of(target), control))
        await asyncio.wait_for(receiver.arrived.wait(), 2)
        control.event.set()
        assert isinstance(await asyncio.wait_for(task, 2), Cancelled)
        await asyncio.wait_for(receiver.left.wait(), 2)
    (request,) = told.requests
    identity = run_id("job", FIRE_AT)
    assert request.line == "POST /stop/2 HTTP/1.1"
    assert json.loads(request.body) == {"run_id": identity, "action": "cancel", "attempt": 2, "token": 7}
    assert request.headers["webhook-id"] == f"{identity}-cancel"
    assert request.headers["webhook-signature"].startswith("v1,")


async def test_a_cancel_that_can_t_be_told_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with receiving(hang) as receiver, delivering() as delivery:
        control = Asked()
        target = HttpTarget(receiver.url(), cancel_url="http://169.254.169.254/?canary")
        task = asyncio.ensure_future(delivery.deliver(of(target), control))
        await asyncio.wait_for(receiver.arrived.wait(), 2)
        control.event.set()
        assert isinstance(await asyncio.wait_for(task, 2), Cancelled)
    assert "did not take the cancel" in caplog.text
    assert "canary" not in caplog.text


@pytest.mark.parametrize(
    ("status", "taken"), [("204 No", True), ("404 No", True), ("429 No", False), ("500 No", False)]
)
async def test_a_cancel_request_is_taken_unless_the_endpoint_asks_for_another(status: str, taken: bool) -> None:
    async with receiving(answer(status)) as told, delivering() as delivery:
        target = HttpTarget("http://example.com", cancel_url=told.url("/stop"))
        run = of(target).run
        assert await delivery.notify_cancel(target, run) is taken
        assert await delivery.notify_cancel(HttpTarget("http://example.com"), run) is True


async def test_a_run_cancelled_beforehand_sends_nothing() -> None:
    async with receiving() as receiver, delivering() as delivery:
        control = Asked()
        control.event.set()
        assert isinstance(await delivery.deliver(of(HttpTarget(receiver.url())), control), Cancelled)
    assert receiver.connections == 0


async def test_the_dispatcher_s_cancel_passes_through() -> None:
    async with receiving(hang) as receiver, delivering() as delivery:
        task = asyncio.ensure_future(attempt(receiver, delivery))
        await asyncio.wait_for(receiver.arrived.wait(), 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(receiver.left.wait(), 2)


# ---- at definition ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Host": "x"}, "set by Horarium"),
        ({"content-LENGTH": "1"}, "set by Horarium"),
        ({"Transfer-Encoding": "chunked"}, "set by Horarium"),
        ({"Webhook-Signature": "x"}, "set by Horarium"),
        ({"horarium-token": "x"}, "set by Horarium"),
        ({"Idempotency-Key": "x"}, "set by Horarium"),
        ({"X": "a\r\nHost: b"}, "line break"),
        ({"X": "a\x00"}, "line break"),
        ({"X": "\ud800"}, "line break"),
        ({"X Y": "a"}, "not a header name"),
        ({"": "a"}, "not a header name"),
        ({"X:": "a"}, "not a header name"),
        ({"X": "a", "x": "b"}, "twice"),
        ({"X": "a" * HEADER_CHARS_MAX}, "longer"),
        ({f"X{number}": "" for number in range(HEADERS_MAX + 1)}, "at most"),
    ],
)
def test_a_header_that_is_not_the_user_s_is_refused(headers: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidJob, match=reason) as caught:
        check_target(HttpTarget("http://example.com", headers=headers), False)
    assert caught.value.field == "target.headers"


@pytest.mark.parametrize(
    ("target", "field_name"),
    [
        (HttpTarget("http://10.0.0.1"), "target.url"),
        (HttpTarget("http://example.com", cancel_url="http://10.0.0.1"), "target.cancel_url"),
        (HttpTarget("http://example.com", method="CONNECT"), "target.method"),
        (HttpTarget("http://example.com", signing_secret=b64encode(bytes(32)).decode()), "target.signing_secret"),
    ],
)
def test_each_part_of_a_target_is_checked(target: HttpTarget, field_name: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        check_target(target, False)
    assert caught.value.field == field_name


def test_a_full_set_of_headers_passes() -> None:
    headers = {f"X-{number:02}": "ü\t" * 10 for number in range(HEADERS_MAX - 1)}
    check_target(HttpTarget("http://example.com", headers={**headers, "X": "a" * (HEADER_CHARS_MAX - 1)}), False)


def test_a_server_secret_is_checked_at_the_start() -> None:
    with pytest.raises(InvalidSetting):
        HttpDelivery(StoppedClock(), signing_secret="short")
