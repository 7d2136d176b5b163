"""Requests to one server: connections kept and reused, failures distinguished, retries where they can do no harm.

Repeats: a request that never left (no connection) is always tried again. One that may have been carried out is tried
again only if doing it twice does the same as doing it once; the caller says so. `503` counts as the latter, as do `502`
and `504`, with which a proxy speaks; `429` was certainly not carried out. Their Retry-After is honoured. Silence beyond
the time limit is not retried: a caller that waited that long wants to hear of it.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import Clock, SystemClock
from horarium.errors import (
    CallerError,
    Conflict,
    HorariumError,
    InvalidRequest,
    InvalidSetting,
    InvalidTrigger,
    NotFound,
    Outage,
    OverBudget,
)

API = "/api/v1"
PAGE_SIZE = 200
TIMEOUT_SECONDS = 30.0
ATTEMPTS_MAX = 4
BACKOFF_SECONDS = 0.1
BACKOFF_SECONDS_MAX = 5.0
RETRY_AFTER_SECONDS_MAX = 30.0
ANSWER_BYTES_MAX = 128 * 1024 * 1024
IDLE_CONNECTIONS_MAX = 16
IDLE_SECONDS_MAX = 4.0
"""Servers close a connection that has been idle for five seconds or more; one that is older is not reused."""

UNKNOWN_SIGNERS = range(18, 22)  # OpenSSL's codes for them
Entropy = Callable[[int], bytes]
Wait = Callable[[float], object]
T = TypeVar("T")


class ServerResponse(Struct, frozen=True):
    """The server's answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Problem(Struct, frozen=True):
    """RFC 9457 problem details, with what Horarium adds."""

    title: str = ""
    detail: str = ""
    code: str = ""
    field: str | None = None
    position: int | None = None


class Cut:
    """Ends one waiting request from another thread, and loses nothing that the server has already handed over: only
    our half of the connection is closed, so an answer that is under way still arrives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.is_cut = False

    def attach(self, sock: socket.socket | None) -> None:
        """The connection on which the request now waits; None: it waits no longer."""
        with self._lock:
            self._socket = sock
            if self.is_cut:
                self._shut()

    def cut(self) -> None:
        """End the request that waits now, and every later one at once."""
        with self._lock:
            self.is_cut = True
            self._shut()

    def _shut(self) -> None:
        if self._socket is None:
            return
        with suppress(OSError):  # of a socket with TLS too: its own `shutdown` would take the session from who reads
            socket.socket.shutdown(self._socket, socket.SHUT_WR)


class _NotSent(Exception):
    """The request did not leave."""


class _Broken(Exception):
    """The connection broke; the request may have been carried out."""


class _Asked(Struct, frozen=True):
    """One request. `seconds`: how long the server may be silent."""

    method: str
    target: str
    content: bytes | None
    headers: Mapping[str, str]
    seconds: float
    repeatable: bool
    cut: Cut | None
    also: tuple[int, ...] = ()


class Page(Struct, Generic[T]):
    """One page of a list."""

    items: list[T]
    next_cursor: str | None = None


class Transport:
    """Sends requests to one server. May be shared by threads."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        attempts_max: int = ATTEMPTS_MAX,
        clock: Clock | None = None,
        entropy: Entropy = os.urandom,
        wait: Wait | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._secure, self._host, self._port, self._base = _parts(url)
        self._headers = _headers(api_key)
        self._timeout_seconds = timeout_seconds
        self._attempts_max = attempts_max
        self._clock = clock or SystemClock()
        self._entropy = entropy
        self._wait: Wait = wait or threading.Event().wait
        self._idle: list[tuple[HTTPConnection, float]] = []
        self._lock = threading.Lock()

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = msgspec.UNSET,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
        timeout_seconds: float | None = None,
        attempts_max: int | None = None,
        cut: Cut | None = None,
        also: tuple[int, ...] = (),
    ) -> ServerResponse:
        """The answer, if its status is below 300 or among `also`. Raises the error of `errors` that the server's
        problem means, or Outage if there is no answer. `path` is quoted already (see `segment`)."""
        asked = _Asked(
            method,
            self._base + path + _query(query or {}),
            None if body is msgspec.UNSET else msgspec.json.encode(body),
            {**self._headers, **(headers or {})},
            timeout_seconds or self._timeout_seconds,
            repeatable,
            cut,
            also,
        )
        limit = attempts_max or self._attempts_max
        attempt = 1
        while True:
            answer, delay = self._attempt(asked, attempt)
            if isinstance(answer, ServerResponse):
                return answer
            if delay is None or attempt >= limit or (cut is not None and cut.is_cut):
                raise answer
            self._wait(delay)
            attempt += 1

    def call(self, method: str, path: str, kind: type[T], **how: Any) -> T:
        """The answer of the REST API to a request for a path of it, as this type."""
        return decoded(self.request(method, API + path, **how), kind)

    def put(self, path: str, body: Any, kind: type[T]) -> tuple[T, bool]:
        """The same for a thing that is defined under a name, and whether it is new."""
        answer = self.request("PUT", API + path, body=body)
        return decoded(answer, kind), answer.status == 201

    def delete(self, path: str) -> None:
        """Have a thing removed. Raises NotFound."""
        self.request("DELETE", API + path)

    def items(
        self, path: str, kind: type[T], query: Mapping[str, Any] | None = None, limit: int | None = None
    ) -> Iterator[T]:
        """The items of a list, page by page: all of them, or the first `limit`."""
        left, cursor = limit, None
        while left is None or left > 0:
            size = PAGE_SIZE if left is None else min(left, PAGE_SIZE)
            asked = {**(query or {}), "limit": size, "cursor": cursor}
            page: Page[T] = self.call("GET", path, Page[kind], query=asked)  # type: ignore[valid-type]
            yield from page.items
            if (cursor := page.next_cursor) is None:
                return
            left = None if left is None else left - len(page.items)

    def _attempt(self, asked: _Asked, attempt: int) -> tuple[ServerResponse | HorariumError, float | None]:
        """The answer or the error, and after how long to try again (None: never)."""
        try:
            answer = self._once(asked)
        except Outage as no_tls:
            return no_tls, None
        except _NotSent as failure:
            return self._outage(failure), self._backoff(attempt)
        except _Broken as failure:
            return self._outage(failure), self._backoff(attempt) if asked.repeatable else None
        except TimeoutError:
            what = f"{asked.method} {asked.target}"
            return Outage(f"{self.url} did not answer {what} within {asked.seconds:g} s; try again later"), None
        if answer.status < 300 or answer.status in asked.also:
            return answer, None
        error = error_of(answer, self.url)
        if isinstance(error, Outage):
            error.retry_after_seconds = _asked_wait(answer)
        again = answer.status == 429 or (answer.status in (502, 503, 504) and asked.repeatable)
        if not again or isinstance(error, OverBudget):
            return error, None
        return error, max(_asked_wait(answer), self._backoff(attempt))

    def _once(self, asked: _Asked) -> ServerResponse:
        connection = self._connection(asked.seconds)
        try:
            answer, reusable = _exchange(connection, asked)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError | HTTPException) and not isinstance(error, TimeoutError):
                raise _Broken(_reason(error)) from None
            raise
        self._keep(connection, reusable)
        return answer

    def _connection(self, seconds: float) -> HTTPConnection:
        """A kept connection that is still open, or a new one."""
        with self._lock:
            while self._idle:
                connection, since = self._idle.pop()
                if self._clock.monotonic() - since < IDLE_SECONDS_MAX and _is_quiet(connection):
                    connection.sock.settimeout(seconds)
                    return connection
                connection.close()
        kind = HTTPSConnection if self._secure else HTTPConnection
        connection = kind(self._host, self._port, timeout=seconds)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
                plain = self.url.replace("https:", "http:", 1)
                raise Outage(f"{self.url} does not speak TLS; name the server as {plain}") from None
            if isinstance(error, ssl.SSLCertVerificationError):
                own = "; set SSL_CERT_FILE for an authority of your own" if error.verify_code in UNKNOWN_SIGNERS else ""
                raise Outage(f"the certificate of {self.url} is not accepted: {error.verify_message}{own}") from None
            raise _NotSent(_reason(error)) from None
        return connection

    def _keep(self, connection: HTTPConnection, reusable: bool) -> None:
        with self._lock:
            if reusable and len(self._idle) < IDLE_CONNECTIONS_MAX:
                self._idle.append((connection, self._clock.monotonic()))
                return
        connection.close()

    def _outage(self, failure: Exception) -> Outage:
        return Outage(
            f"no answer from {self.url}: {failure}; start a server with `horarium serve`, or name another with --url "
            "or HORARIUM_URL"
        )

    def _backoff(self, attempt: int) -> float:
        """Doubling from a tenth of a second, half of it by chance, so that many clients do not come back as one."""
        chance = int.from_bytes(self._entropy(4), "big") / (1 << 32)
        return float(min(BACKOFF_SECONDS * 2 ** (attempt - 1), BACKOFF_SECONDS_MAX)) * (0.5 + chance / 2)

    def new_key(self) -> str:
        return self._entropy(16).hex()

    def close(self) -> None:
        """Close the connections that are kept. The transport may be used again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()


def _asked_wait(answer: ServerResponse) -> float:
    """`Retry-After`, in bounds."""
    text = answer.headers.get("retry-after", "").strip()
    asked = float(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0.0
    return min(asked, RETRY_AFTER_SECONDS_MAX)


def decoded(answer: ServerResponse, kind: type[T]) -> T:
    """The answer as this type. Raises HorariumError for one that is not of it."""
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.DecodeError as error:
        raise HorariumError(f"the server's answer is not what this client understands: {error}") from None


def segment(text: str) -> str:
    """A name or an id as one segment of a path."""
    return quote(text, safe=":@")


def _parts(url: str) -> tuple[bool, str, int, str]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _bad_url(url) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise _bad_url(url)
    secure = parts.scheme == "https"
    return secure, parts.hostname, port or (443 if secure else 80), parts.path.rstrip("/")


def _bad_url(url: str) -> InvalidSetting:
    return InvalidSetting(f"url: {url!r} is no server's address; give one such as http://127.0.0.1:8080", field="url")


def _headers(api_key: str | None) -> dict[str, str]:
    headers = {"Accept": "application/json", "User-Agent": "horarium-client"}
    if api_key is None:
        return headers
    if not api_key.isascii() or not api_key.isprintable() or not api_key.strip():
        raise InvalidSetting("api_key: it is empty, or holds what no header can carry", field="api_key")
    return {**headers, "Authorization": f"Bearer {api_key}"}


def _query(query: Mapping[str, Any]) -> str:
    given = {name: _as_text(value) for name, value in query.items() if value is not None}
    return "?" + urlencode(given, doseq=True) if given else ""


def _as_text(value: Any) -> Any:
    """Instants and truth values as the API reads them."""
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value).lower() if isinstance(value, bool) else value


def _is_quiet(connection: HTTPConnection) -> bool:
    """Whether a kept connection has neither been closed by the server nor received anything unasked."""
    try:
        return not select.select([connection.sock], [], [], 0)[0]
    except (OSError, ValueError):
        return False


def _exchange(connection: HTTPConnection, asked: _Asked) -> tuple[ServerResponse, bool]:
    """Send and receive; also whether the connection may be used again."""
    headers = asked.headers if asked.content is None else {**asked.headers, "Content-Type": "application/json"}
    connection.request(asked.method, asked.target, body=asked.content, headers=headers)
    if asked.cut is None:
        return _read(connection.getresponse())
    asked.cut.attach(connection.sock)
    try:
        answer, reusable = _read(connection.getresponse())
    finally:
        asked.cut.attach(None)
    return answer, reusable and not asked.cut.is_cut


def _read(response: HTTPResponse) -> tuple[ServerResponse, bool]:
    body = response.read(ANSWER_BYTES_MAX + 1)
    if len(body) > ANSWER_BYTES_MAX:
        raise HTTPException(f"the answer is longer than {ANSWER_BYTES_MAX:,} bytes")
    if response.length:
        raise HTTPException("the answer ended too early")
    headers = {name.lower(): value for name, value in response.getheaders()}
    return ServerResponse(response.status, headers, body), response.isclosed() and not response.will_close


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(error, TimeoutError):
        return "connecting took too long"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


# ---- problems ---------------------------------------------------------------------------------------------------


def _tree(root: type[HorariumError]) -> dict[str, type[HorariumError]]:
    """The errors by code; of several with one code, the most general."""
    found = {root.code: root}
    for branch in root.__subclasses__():
        if branch.__module__ == root.__module__:
            found = _tree(branch) | found
    return found


_BY_CODE = _tree(HorariumError)


def error_of(answer: ServerResponse, url: str) -> HorariumError:
    """The error that an answer means: by its `code`, and by its status where the code is not known here."""
    try:
        problem = msgspec.json.decode(answer.body, type=Problem, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = Problem()
    if not problem.detail:
        problem = replace(problem, detail=f"{url} answered {answer.status}, and not as a Horarium server does")
    return error_from(problem, answer.status)


def error_from(problem: Problem, status: int) -> HorariumError:
    message = problem.detail or problem.title
    kind = _BY_CODE.get(problem.code) or _by_status(status)
    if issubclass(kind, InvalidTrigger):
        return kind(message, field=problem.field, position=problem.position)
    error = kind(message, field=problem.field)
    if problem.code:
        error.code = problem.code
    return error


def _by_status(status: int) -> type[HorariumError]:
    if kind := {404: NotFound, 409: Conflict, 401: CallerError, 403: CallerError}.get(status):
        return kind
    return Outage if status >= 500 or status == 429 else InvalidRequest
