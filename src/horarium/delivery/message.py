"""Headers and body of one request, made from the run, its job and the target.

Pure: the instant is passed in. What users may put into headers is decided here too, at definition, so that nothing they
write can change how a request is framed, routed or recognised as ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from horarium.clock import SECOND, Instant, to_text
from horarium.delivery.secrets import CONTROL
from horarium.delivery.signing import sign
from horarium.delivery.template import Values, render, render_text
from horarium.errors import InvalidJob
from horarium.model import HEADER_CHARS_MAX, HEADERS_MAX, Completion, HttpTarget, Run
from horarium.model.secrets import MaybeSecret, plain
from horarium.rules.tracing import handed_on

REPORT_PATH = "/api/v1/runs/"
REPORTS = ("heartbeat", "complete", "fail")
JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain; charset=utf-8"
_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_METHODS_UNSIZED = frozenset({"GET", "HEAD", "OPTIONS"})
_METHODS_REFUSED = frozenset({"CONNECT", "TRACE"})

_RESERVED_WORDS = """
    accept-encoding connection content-length expect host http2-settings idempotency-key keep-alive proxy-authenticate
    proxy-authorization proxy-connection te trailer transfer-encoding upgrade
"""
_RESERVED = frozenset(_RESERVED_WORDS.split())
_RESERVED_PREFIXES = ("webhook-", "horarium-")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_PATH_SAFE = "/?:@!$&'()*+,;=-._~%[]|"
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")

# The cancel message's id differs from the run's: a receiver that drops repeated ids must still see it.
CANCEL_ID_SUFFIX = "-cancel"


class Reporting(Struct, frozen=True):
    """Where an endpoint that calls back reports on a run: the URL to which `/heartbeat`, `/complete` or `/fail` is
    added, and the key that opens it (None: none is needed)."""

    url: str | None = None
    key: str | None = None


class Request(Struct, frozen=True):
    """All of a request but where it goes. `path`: percent-encoded, with the query."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None


@cache
def user_agent() -> str:
    try:
        return f"Horarium/{version('horarium')}"
    except PackageNotFoundError:
        return "Horarium"


# ---- at definition ----------------------------------------------------------------------------------------------


def check_method(method: str) -> None:
    """Raise InvalidJob for the two methods that speak to what lies between, not to an endpoint."""
    if method in _METHODS_REFUSED:
        why = f"{method} can't be sent; give GET, POST, PUT, PATCH or DELETE"
        raise InvalidJob(f"target.method: {why}", field="target.method")


def check_headers(headers: Mapping[str, MaybeSecret], *, field: str = "target.headers") -> None:
    """Raise InvalidJob for too many or too long headers, for names that are ours or the connection's, and for values
    that would break the request apart."""
    if len(headers) > HEADERS_MAX:
        raise InvalidJob(f"{field}: {len(headers)} headers; at most {HEADERS_MAX} are possible", field=field)
    seen: set[str] = set()
    for name, value in headers.items():
        reason = _header_fault(name, plain(value), seen)
        if reason is not None:
            raise InvalidJob(f"{field}: {name[:100]!r} {reason}", field=field)
        seen.add(name.lower())


def _header_fault(name: str, value: str, seen: set[str]) -> str | None:
    lower = name.lower()
    if not _HEADER_NAME.fullmatch(name):
        return "is not a header name; letters, digits and hyphens are possible"
    if lower in _RESERVED or lower.startswith(_RESERVED_PREFIXES):
        return "is set by Horarium; leave it out"
    if lower in seen:
        return "is given twice"
    if len(name) + len(value) > HEADER_CHARS_MAX:
        return f"is longer than {HEADER_CHARS_MAX} characters, name and value together"
    if CONTROL.search(value):
        return "has a line break or another control character in its value; leave it out"
    return None


# ---- at delivery ------------------------------------------------------------------------------------------------


def build(
    target: HttpTarget, path: str, run: Run, *, now: Instant, secret: str | None, reporting: Reporting
) -> Request:
    """The request of one attempt. `path`: the target's own, with placeholders."""
    if target.completion is not Completion.CALLBACK:
        reporting = Reporting()
    values = _Values(run, reporting)
    body, content_type = _body(target, run, values)
    headers = {name: render_text(plain(value), values) for name, value in target.headers.items()}
    given = {name.lower() for name in headers}
    if content_type is not None and "content-type" not in given:
        headers["Content-Type"] = content_type
    if "accept" not in given:
        headers["Accept"] = "*/*"
    headers.update(_own_headers(run, run.id, now, secret, body or b"", "user-agent" in given))
    if target.completion is Completion.CALLBACK:
        headers.update(_lease_headers(run, reporting))
    return Request(target.method, _escape(path, values), headers, body)


def encode(request: Request, host: str) -> bytes:
    """The request as HTTP/1.1 sends it. Raises ValueError for a header that would break it apart."""
    body = request.body
    lines = [f"{request.method} {request.path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    elif request.method not in _METHODS_UNSIZED:
        lines.append("Content-Length: 0")
    head = "\r\n".join(lines)
    breaks = len(lines) - 1
    if head.count("\n") != breaks or head.count("\r") != breaks or "\0" in head:
        raise ValueError("a header has a line break in it")
    return b"%b\r\n\r\n%b" % (head.encode("utf-8", "replace"), body or b"")


def build_cancel(path: str, run: Run, *, now: Instant, secret: str | None) -> Request:
    """The request that tells an endpoint to stop what it does for this run."""
    body = msgspec.json.encode({"run_id": run.id, "action": "cancel", "attempt": run.attempt, "token": run.token})
    headers = {"Content-Type": JSON_TYPE, "Accept": "*/*"}
    headers.update(_own_headers(run, run.id + CANCEL_ID_SUFFIX, now, secret, body, False))
    return Request("POST", _escape(path, _Values(run, Reporting())), headers, body)


class _Values(dict[str, str]):
    """The placeholders' values for a run; each is made only when it is asked for."""

    def __init__(self, run: Run, reporting: Reporting) -> None:
        super().__init__()
        self._run = run
        self.reporting = reporting

    def __missing__(self, name: str) -> str:
        return _VALUES[name](self._run, self.reporting)


_VALUES: dict[str, Callable[[Run, Reporting], str]] = {
    "run.id": lambda run, _: run.id,
    "run.fire_at": lambda run, _: to_text(run.fire_at),
    "run.due_at": lambda run, _: to_text(run.due_since),
    "run.attempt": lambda run, _: str(run.attempt),
    "run.token": lambda run, _: str(run.token),
    "job.name": lambda run, _: run.job or "",
    "report.url": lambda _, reporting: reporting.url or "",
    "report.key": lambda _, reporting: reporting.key or "",
}


def _body(target: HttpTarget, run: Run, values: _Values) -> tuple[bytes | None, str | None]:
    payload = run.payload
    if payload is None:
        return _encode(target.body, target, run, values)
    if b"{{" not in payload and not payload.lstrip().startswith(b'"'):
        return payload, JSON_TYPE
    return _encode(msgspec.json.decode(payload), target, run, values)


def _encode(value: Any, target: HttpTarget, run: Run, values: _Values) -> tuple[bytes | None, str | None]:
    if value is None and target.method not in _METHODS_WITH_BODY:
        return None, None
    if value is None:
        envelope = {"job": run.job, "run_id": run.id, "fire_at": _text_of(run.fire_at), "attempt": run.attempt}
        if target.completion is Completion.CALLBACK:
            envelope |= _report_envelope(run, values.reporting)
        return msgspec.json.encode(envelope), JSON_TYPE
    if isinstance(value, str):
        return render_text(value, values).encode("utf-8", "replace"), TEXT_TYPE
    encoded = msgspec.json.encode(value)
    if b"{{" not in encoded:
        return encoded, JSON_TYPE
    return msgspec.json.encode(render(value, values)), JSON_TYPE


def _report_envelope(run: Run, reporting: Reporting) -> dict[str, Any]:
    """The fields for an endpoint that reports later, where the body is ours."""
    report: dict[str, Any] = {}
    if reporting.url is not None:
        report = {name: f"{reporting.url}/{name}" for name in REPORTS}
    if reporting.key is not None:
        report["key"] = reporting.key
    expires_at = None if run.lease_expires_at is None else to_text(run.lease_expires_at)
    return {"token": run.token, "lease_expires_at": expires_at, "report": report}


def _own_headers(
    run: Run, message_id: str, now: Instant, secret: str | None, body: bytes, named: bool
) -> dict[str, str]:
    timestamp = now // SECOND
    headers = {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "Idempotency-Key": message_id,
        "Horarium-Run": run.id,
        "Horarium-Attempt": str(run.attempt),
        "Horarium-Token": str(run.token),
        "Horarium-Fire-At": _text_of(run.fire_at),
        "Accept-Encoding": "identity",
    }
    if run.job is not None:
        headers["Horarium-Job"] = run.job
    if not named:
        headers["User-Agent"] = user_agent()
    if (traceparent := handed_on(run)) is not None:
        headers["traceparent"] = traceparent
    if secret:
        headers["webhook-signature"] = sign(secret, message_id, timestamp, body)
    return headers


def _lease_headers(run: Run, reporting: Reporting) -> dict[str, str]:
    headers: dict[str, str] = {}
    if reporting.url is not None:
        headers["Horarium-Report-Url"] = reporting.url
    if reporting.key is not None:
        headers["Horarium-Report-Key"] = reporting.key
    if run.lease_expires_at is not None:
        headers["Horarium-Lease-Expires-At"] = to_text(run.lease_expires_at)
    return headers


def _escape(path: str, values: Values) -> str:
    if "{{" not in path:
        return _quoted(path) if len(path) <= PATH_KEPT_MAX else _quote(path)
    # Values first, each made harmless for itself; what else is between braces is quoted with the rest.
    return _quote(render_text(path, _Quoted(values)))


def report_url(base: str, run_id: str) -> str:
    """Where reports on a run go, given the base of our API (scheme, host and port)."""
    return base.rstrip("/") + REPORT_PATH + run_id


class _Quoted(dict[str, str]):
    def __init__(self, values: Values) -> None:
        super().__init__()
        self._values = values

    def __missing__(self, name: str) -> str:
        return quote(self._values[name], safe="")


def _quote(path: str) -> str:
    return _STRAY_PERCENT.sub("%25", quote(path, safe=_PATH_SAFE, errors="replace"))


PATH_KEPT_MAX = 500
_quoted = lru_cache(maxsize=2048)(_quote)
_text_of = lru_cache(maxsize=128)(to_text)
