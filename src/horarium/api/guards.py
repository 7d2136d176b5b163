"""Who may ask: API keys, and no page of another site. And the headers that every answer carries.

Keys are hashed when the application is made; only the hashes are kept, and all of them are compared, in constant time.
A key never stands in a log or an answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import Any
from urllib.parse import urlsplit

from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler
from litestar.types import Message, Scope

from horarium.api.problems import CrossSite, Unauthorized
from horarium.report_keys import PREFIX, key_digest, report_key

Connection = ASGIConnection[Any, Any, Any, Any]
Guard = Callable[[Connection, BaseRouteHandler], Awaitable[None]]

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
CONTENT_SECURITY_POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


REPORTS = frozenset({"heartbeatRun", "completeRun", "failRun"})
"""The routes that a key for one run's reports opens, for that run."""


def require_key(api_keys: Sequence[str]) -> Guard:
    """A guard that lets only bearers of one of these keys pass (and everyone, where there are none). For the reports of
    one run, the key that was sent along with its request will do."""
    known = [key_digest(key) for key in api_keys]

    async def guard(connection: Connection, handler: BaseRouteHandler) -> None:
        if not known:
            return
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        given = given.strip()
        digest = sha256(given.encode("latin-1", "replace")).digest()
        fits = [compare_digest(digest, each) for each in known]
        if given.startswith(PREFIX) and handler.name in REPORTS:
            run_id = str(connection.path_params["id"])
            fits += [compare_digest(given.encode(), report_key(each, run_id).encode()) for each in known]
        if scheme.lower() != "bearer" or not any(fits):
            raise Unauthorized("send `Authorization: Bearer KEY` with one of the server's API keys")

    return guard


async def refuse_cross_site(connection: Connection, handler: BaseRouteHandler) -> None:
    """A browser says for which site it asks; another site's page may not change anything here. `Sec-Fetch-Site` is
    what counts; `Origin` where a browser sends only that. Clients that are no browsers send neither."""
    if connection.scope.get("method") in SAFE_METHODS:
        return
    site = connection.headers.get("sec-fetch-site")
    if site is not None:
        foreign = site == "cross-site"
    else:
        origin = connection.headers.get("origin")
        foreign = origin is not None and urlsplit(origin).netloc != connection.headers.get("host")
    if foreign:
        raise CrossSite("this request comes from a page of another site; open the page from this server itself")


async def add_security_headers(message: Message, scope: Scope) -> None:
    """Put our headers on an answer; a policy that a page brings along stays."""
    if message["type"] != "http.response.start":
        return
    headers = list(message.get("headers", ()))
    names = {name.lower() for name, _ in headers}
    headers += _HEADERS
    if b"content-security-policy" not in names:
        headers.append((b"content-security-policy", CONTENT_SECURITY_POLICY.encode()))
    if b"cache-control" not in names:
        headers.append((b"cache-control", b"no-store"))
    message["headers"] = headers
