"""The meaning of an answer: the outcome of an attempt, from a status, a few headers and the beginning of a body.

Pure. All that a receiver sends is data: it is cut to size, kept as text, and never part of an error message. Every
status that was not expected may be retried, for the owner said how often, except 410: that receiver asked for an end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from horarium.clock import SECOND, Instant, to_instant
from horarium.model import RESULT_BYTES_MAX, Completion, Failed, HttpTarget, Outcome, Succeeded

BODY_BYTES_MAX = 64 * 1024
RETRY_AFTER_SECONDS_MAX = 24 * 3600
HEADER_KEPT_CHARS_MAX = 256
_THROTTLING = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHARSET = re.compile(
    r';\s*charset\s*=\s*"?(iso-8859-(?:[1-9]|1[013-6])|latin1|us-ascii|(?:windows-|cp)125[0-8]|utf-16(?:le|be)?|'
    r'koi8-[ru]|big5|shift_jis|euc-(?:jp|kr)|gb(?:2312|k|18030))"?\s*(?:;|$)',
    re.IGNORECASE | re.ASCII,
)
"""Those in which bodies are read beside UTF-8: their decoders take time in proportion to the text, as not all do."""
KEPT = ("content-type", "content-encoding", "date", "retry-after", "request-id", "x-request-id")


class EndpointResponse(Struct, frozen=True):
    """The answer of an endpoint. `headers`: those of `KEPT`, by lower-case name; `body` is at most its first 64 KiB,
    `truncated` if there was more."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    truncated: bool = False


def outcome(target: HttpTarget, answer: EndpointResponse, now: Instant) -> Outcome | None:
    """None: the endpoint took the run over, and reports later."""
    if target.completion is Completion.CALLBACK and answer.status == HTTPStatus.ACCEPTED:
        return None
    result = _result(answer)
    if _expected(target, answer.status):
        return Succeeded(result)
    error = _words(answer.status)
    if answer.status == HTTPStatus.GONE:
        return Failed(f"{error}: the receiver wants no more requests", retryable=False, result=result)
    if answer.status in _REDIRECTS:
        error += ": redirects are not followed; give the final URL"
    pause = retry_after(answer.headers.get("retry-after"), now)
    throttled = pause is not None and answer.status in _THROTTLING
    return Failed(error, retry_after_seconds=pause, result=result, throttled=throttled)


def _expected(target: HttpTarget, status: int) -> bool:
    return status in target.expected_status if target.expected_status else 200 <= status < 300


def _words(status: int) -> str:
    # The standard phrase, not the receiver's: that is text from outside.
    try:
        return f"answered {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"answered {status}"


def retry_after(text: str | None, now: Instant) -> float | None:
    """Seconds to wait, from `Retry-After` (RFC 9110, 10.2.3: seconds, or a date); a day at most. None: not given, not
    readable, or no wait at all; the policy of the job decides."""
    if text is None or len(text) > 64:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(min(int(text), RETRY_AFTER_SECONDS_MAX)) or None
    try:
        seconds = (to_instant(parsedate_to_datetime(text)) - now) / SECOND
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return min(seconds, float(RETRY_AFTER_SECONDS_MAX)) if seconds > 0 else None


def _result(answer: EndpointResponse) -> bytes:
    """JSON text of at most RESULT_BYTES_MAX. An encoded (compressed) body is not opened, only mentioned."""
    value: dict[str, Any] = {"status": answer.status, "headers": answer.headers, "body": _text(answer)}
    if answer.truncated:
        value["truncated"] = True
    encoded = msgspec.json.encode(value)
    return encoded if len(encoded) <= RESULT_BYTES_MAX else _shortened(value)


def _text(answer: EndpointResponse) -> str | None:
    if answer.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        return None
    charset = _CHARSET.search(answer.headers.get("content-type", ""))
    text = answer.body.decode(charset[1] if charset else "utf-8", "replace")
    return text.replace("\x00", "\ufffd")  # not every store can keep NUL


def _shortened(value: dict[str, Any]) -> bytes:
    """The longest beginning of the body that fits: JSON may need up to six bytes for one."""
    text = value["body"]
    fits, beyond = 0, len(text)
    value["truncated"] = True
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        if len(msgspec.json.encode({**value, "body": text[:middle]})) <= RESULT_BYTES_MAX:
            fits = middle
        else:
            beyond = middle
    return msgspec.json.encode({**value, "body": text[:fits]})
