"""Delivery over real sockets: what is sent, and what is made of the answer."""

import json
from email.utils import formatdate
from typing import Any

import pytest
import standardwebhooks

from horarium.clock import SECOND, SystemClock
from horarium.delivery.answers import BODY_BYTES_MAX, RETRY_AFTER_SECONDS_MAX
from horarium.delivery.http import HttpDelivery
from horarium.errors import LeaseLost, StoreUnavailable
from horarium.model import (
    RESULT_BYTES_MAX,
    BusTarget,
    Completion,
    Failed,
    HttpTarget,
    RunPolicy,
    Succeeded,
    run_id,
)
from horarium.ports import Assignment
from tests.delivery.receiver import (
    FIRE_AT,
    NOW,
    OTHER_SECRET,
    SECRET,
    Asked,
    answer,
    attempt,
    delivering,
    kept,
    of,
    receiving,
)

# ---- what is sent -------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("own", [None, OTHER_SECRET])
async def test_a_one_off_run_is_signed_with_a_secret_of_its_own_alone(own: str | None) -> None:
    """Who adds it chooses its address and its body: the server does not vouch for these."""
    async with receiving() as receiver:
        target = HttpTarget(receiver.url(), signing_secret=own)
        run = of(BusTarget(), job=None, policy=RunPolicy(target=target)).run
        async with delivering(signing_secret=SECRET) as delivery:
            await delivery.deliver(Assignment(run, None), Asked())
    (request,) = receiver.requests
    assert ("webhook-signature" in request.headers) == (own is not None)


async def test_a_one_off_run_brings_its_own_target() -> None:
    async with receiving() as receiver, delivering() as delivery:
        run = of(BusTarget(), job=None, policy=RunPolicy(target=HttpTarget(receiver.url()))).run
        assert isinstance(await delivery.deliver(Assignment(run, None), Asked()), Succeeded)
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


# ---- what is made of an answer ------------------------------------------------------------------------------------


async def test_a_result_keeps_status_some_headers_and_body() -> None:
    reply = answer("201 Created", "Content-Type: text/plain", "Set-Cookie: a=canary", body="grün\x00".encode())
    async with receiving(reply) as receiver:
        result = kept(await attempt(receiver))
    assert result == {"status": 201, "headers": {"content-type": "text/plain"}, "body": "grün\ufffd"}


@pytest.mark.parametrize(
    ("charset", "sent", "text"),
    [
        ("iso-8859-1", b"gr\xfcn", "gr\xfcn"), ('"ISO-8859-15"; x=y', b"\xa4", "\u20ac"),
        ("windows-1252", b"\x80", "\u20ac"), ("utf-8", b"gr\xc3\xbcn", "gr\xfcn"),
        ("Shift_JIS", b"\x93\xfa", "\u65e5"), ("utf-16", b"\xff\xfea\0\0\0", "a\ufffd"),
        ("us-ascii", b"gr\xfcn", "gr\ufffdn"), ("iso-8859-12", b"gr\xfcn", "gr\ufffdn"),
        ("idna", b"gr\xfcn", "gr\ufffdn"), ("zlib", b"a", "a"), ("", b"a", "a"),
    ],
)  # fmt: skip
async def test_a_body_is_read_in_the_charset_that_it_names(charset: str, sent: bytes, text: str) -> None:
    async with receiving(answer("200 OK", f"Content-Type: text/html; charset={charset}", body=sent)) as receiver:
        assert kept(await attempt(receiver))["body"] == text


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
        (formatdate(NOW / SECOND - 90, usegmt=True), None),
        ("0", None),
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
    assert outcome.throttled is (seconds is not None)  # no wait, no attempt and no end would be a storm


@pytest.mark.parametrize("filling", [b"x", b"\x01", b"\xff", "€".encode()])
async def test_a_result_fits_whatever_the_body_holds(filling: bytes) -> None:
    async with receiving(answer("200 OK", body=filling * (BODY_BYTES_MAX // len(filling)))) as receiver:
        outcome = await attempt(receiver)
    assert kept(outcome)["truncated"]
    assert isinstance(outcome, Succeeded)
    assert outcome.result is not None
    assert RESULT_BYTES_MAX - 64 < len(outcome.result) <= RESULT_BYTES_MAX
