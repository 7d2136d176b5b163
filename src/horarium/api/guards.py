"""Who may ask: API keys, the server's own names, and no page of another site. And the headers of every answer.

Keys are hashed when the application is made; only the hashes are kept, and all of them are compared, in constant time.
A key never appears in a log or an answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from hmac import compare_digest
from os import urandom
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from horarium.access.audit import Origin
from horarium.access.keys import Keys as NamedKeys
from horarium.access.roles import LOCAL, Principal, Scope
from horarium.access.sessions import Credential
from horarium.access.tokens import TokenRefused, Tokens
from horarium.api.access import API_KEY, NAMED, REPORTER, Callers, require_scope
from horarium.api.hosts import Hosts
from horarium.api.problems import CrossSite, MalformedRequest, TooManyFailures, Unauthorized, WrongHost
from horarium.api.reading import first_headers, header, peer_of
from horarium.api.refused import Part, RefusalLog
from horarium.api.sign_ins import SignIns, origin_of
from horarium.errors import Forbidden
from horarium.operations.facade import Operations
from horarium.operations.settling.report_keys import PREFIX, key_digest, report_key
from horarium.siblings import Siblings

Connection = HTTPConnection[Any]
Count = Callable[[str], None]
"""Takes the reason of a refusal."""


GUESSABLE_CHARS = 32
"""Of server keys those that are shorter are guarded against guessing."""
PATH_CHARS_SHOWN = 500
HOSTS_KNOWN_MAX = 1_000
"""Names that were found to be this server's, so that they are not read again with each request."""
PROBES = frozenset({"/healthz", "/readyz"})
"""Answered under any name: without a key they say nothing but a status."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_SITES = frozenset({b"same-origin", b"none"})
WORK = ("api/", "metrics")
"""Paths (without the first slash) at which a mere GET asks the store."""
REPORTS = frozenset({"heartbeatRun", "completeRun", "failRun"})
"""The routes that a key for one run's reports opens, for that run."""
_HOST = re.compile(r"[0-9A-Za-z!$&'()*+,;=\-._~:\[\]@%]*")


class Keys:
    """The server's API keys, as hashes."""

    def __init__(
        self, api_keys: Sequence[str], callers: Callers, sign_ins: SignIns, refused: RefusalLog, count: Count
    ) -> None:
        self._known = [key_digest(key) for key in api_keys]
        self._has_short = any(map(is_guessable, api_keys))
        self._callers = callers
        self._sign_ins = sign_ins
        self._refused = refused
        self._count = count

    @property
    def needed(self) -> bool:
        """Whether callers must be known at all."""
        return bool(self._known) or self._callers.ask

    def open(self, connection: Connection) -> bool:
        """Whether the request carries one of the keys, or none is needed."""
        return not self.needed or self._fits(sha256(_bearer(connection)).digest())

    async def guard(self, connection: Connection, name: str, scope: Scope | None) -> None:
        """Let only bearers of one of the keys pass (and everyone, where there are none), who have the
        scope of the route of this name. The reports of one run are also open to the key sent with its request."""
        given = _bearer(connection)
        if not self.needed and not given.startswith(NAMED):
            connection.scope["user"] = LOCAL
            return
        address, digest = peer_of(connection.scope), sha256(given).digest()
        guess = self._is_guess(given)
        if guess:
            await self._slow_down(address, digest)
        refused = None
        try:
            caller = await self._caller(given, digest, connection, name)
        except TokenRefused as error:
            caller, refused = None, error.said
        if caller is None:
            raise self._refusal(connection, address, given, refused)
        if guess:
            self._sign_ins.succeeded(address, digest)
        connection.scope["user"] = caller
        try:
            require_scope(caller, scope)
        except Forbidden as refusal:
            self._count("forbidden")
            self.refuse(connection, refusal)
            raise
        connection.scope["user"] = caller.narrowed(scope)
        connection.scope["spend"] = await self._callers.count(caller, name)

    def refuse(self, connection: Connection, refusal: Forbidden, part: Part | None = None) -> None:
        """A caller who is known asked for what it may not do: audited, where that would have changed something. `part`:
        it was one thing of many that the request asked for."""
        method = str(connection.scope.get("method"))
        caller: Principal | None = connection.scope.get("user")
        if method not in SAFE_METHODS and caller is not None:
            origin = Origin(principal=caller, request_id=urandom(16).hex(), address=peer_of(connection.scope))
            self._refused.change(origin, method, connection.scope["path"][:PATH_CHARS_SHOWN], refusal, part)

    # ---- people in a browser

    async def sign_in(self, connection: Connection, given: bytes) -> tuple[Credential, str] | None:
        """What a typed key opens, and its digest. Raises TooManyFailures."""
        address, digest = peer_of(connection.scope), sha256(given).digest()
        guess = self._is_guess(given)
        if guess:
            await self._slow_down(address, digest)
        credential: Credential = "server-key" if self._fits(digest) else "key"
        if await self.bearer(credential, digest.hex()) is None:
            self._refusal(connection, address, given)
            return None
        if guess:
            self._sign_ins.succeeded(address, digest)
        return credential, digest.hex()

    async def slow_down(self, connection: Connection, proof: str) -> None:
        """Wait as long as the failures of this address ask for, before a proof of another kind is looked at. Raises
        TooManyFailures."""
        await self._slow_down(peer_of(connection.scope), sha256(proof.encode("utf-8", "replace")).digest())

    def sign_in_failed(self, connection: Connection, why: str, *, owes: bool) -> None:
        """Such a proof was worth nothing: logged, counted, audited, and, if it `owes`, a debt of its address."""
        self._failed(connection, peer_of(connection.scope), why, wrong=True, owes=owes)

    async def bearer(self, credential: Credential, digest: str) -> Principal | None:
        """Who bears the key of this digest, as things are now."""
        if credential == "person":
            return None  # has no key
        if credential == "key":
            return await self._callers.bearer(digest)
        known = sum(compare_digest(bytes.fromhex(digest), each) for each in self._known) > 0
        return API_KEY if known else None

    async def _caller(self, given: bytes, digest: bytes, connection: Connection, name: str) -> Principal | None:
        if self._fits(digest):
            return API_KEY
        if self._fits_run(given, connection, name):
            return REPORTER
        return await self._callers.find(given, digest) if given else None

    def _is_guess(self, given: bytes) -> bool:
        """Whether it could be meant to find out one of the short keys. What can't be guessed is looked at at once: no
        one else's failures keep its bearer out."""
        return self._has_short and bool(given) and is_guessable(given)

    async def _slow_down(self, address: str, digest: bytes) -> None:
        try:
            await self._sign_ins.slow_down(address, digest)
        except TooManyFailures:
            self._count("throttled")
            raise

    def _fits(self, digest: bytes) -> bool:
        return sum(compare_digest(digest, each) for each in self._known) > 0  # all are compared, in constant time

    def _fits_run(self, given: bytes, connection: Connection, name: str) -> bool:
        if not given.startswith(PREFIX.encode()) or name not in REPORTS:
            return False
        run_id = str(connection.path_params["id"])
        return sum(compare_digest(given, report_key(each, run_id).encode()) for each in self._known) > 0

    def _failed(self, connection: Connection, address: str, why: str, *, wrong: bool, owes: bool) -> None:
        self._count("unauthorized")
        request = _request(connection)
        self._sign_ins.failed(address, request, why, guess=owes)
        if wrong:
            self._refused.sign_in(origin_of(address), request, why)

    def _refusal(self, connection: Connection, address: str, given: bytes, token: str | None = None) -> Unauthorized:
        """`token`: why it is refused, where a token was sent."""
        wrong = bool(given)
        if token is not None:
            why = f"the access token that was sent is refused: {token}"
            self._failed(connection, address, why, wrong=True, owes=self._is_guess(given))
            return Unauthorized(why, wrong=True)
        why = "the API key that was sent is none of this server's" if wrong else "there is no API key in the request"
        self._failed(connection, address, why, wrong=wrong, owes=self._is_guess(given))
        return Unauthorized(f"{why}; send `Authorization: Bearer KEY` with one of the server's API keys", wrong=wrong)


def keys_of(
    operations: Operations, api_keys: Sequence[str], tokens: Tokens | None, count: Count, siblings: Siblings
) -> tuple[Keys, NamedKeys]:
    """Who may ask a server with these keys, and the named ones among them."""
    store, clock = operations.store, operations.clock
    named, refused = NamedKeys(store, clock, siblings), RefusalLog(store, clock, siblings)
    return Keys(api_keys, Callers(named, tokens), SignIns(clock, siblings=siblings), refused, count), named


def is_guessable(key: str | bytes) -> bool:
    """Whether a key may be short enough to be found by trying. (Named keys have 256 bits, tokens are signed.)"""
    return len(key) < GUESSABLE_CHARS


def _bearer(connection: Connection) -> bytes:
    """The key that was sent, if any. Credentials of another scheme are a wrong key (none begins with a space)."""
    if b"authorization" not in first_headers(connection.scope):
        return b""
    text = (header(connection.scope, b"authorization") or "").strip()
    if not text:
        return b""
    scheme, _, given = text.partition(" ")
    key = given.strip() if scheme.lower() == "bearer" else f" {text}"
    return key.encode("latin-1", "replace")


def _request(connection: Connection) -> str:
    return f"{connection.scope.get('method')} {connection.scope['path'][:PATH_CHARS_SHOWN]}"


class KnownHosts:
    """A guard against DNS rebinding: only requests to the server's own names are answered."""

    def __init__(self, hosts: Hosts, count: Count) -> None:
        self._hosts = hosts
        self._count = count
        self._known: set[bytes] = set()

    def guard(self, connection: Connection) -> None:
        """Raises WrongHost, MalformedRequest."""
        given = [value for name, value in connection.scope["headers"] if name == b"host"]
        if not given and connection.scope["http_version"] == "1.0":
            return  # sent by no browser
        if len(given) != 1:
            raise MalformedRequest("a request has exactly one Host header", field="host")
        if given[0] in self._known:
            return
        host = given[0].decode("latin-1")
        if not _HOST.fullmatch(host):
            raise MalformedRequest("Invalid host header")
        if not self._hosts.allow(host):
            if connection.scope["path"] in PROBES:
                return
            self._count("host")
            raise WrongHost(
                f"{host[:200]!r} is not a name of this server; if it should be one, add it with "
                "--allowed-host (or HORARIUM_ALLOWED_HOSTS)",
                field="host",
            )
        if len(self._known) < HOSTS_KNOWN_MAX:
            self._known.add(given[0])


def refuse_cross_site(count: Count, *, pages: bool = True) -> Callable[[Connection], None]:
    """A guard against pages of other sites: they may change nothing here, and ask nothing that costs work. A browser
    says for which site it asks: `Sec-Fetch-Site` is what counts; `Origin` where a browser sends only that. A port is no
    part of a site, so `same-site` is foreign too. Clients that are no browsers send neither. Without `pages` there is
    nothing to which another site may lead."""

    def guard(connection: Connection) -> None:
        if _is_foreign(connection) and (not pages or _costs(connection)):
            count("site")
            raise CrossSite("this request comes from a page of another site; open the page from this server itself")

    return guard


def _is_foreign(connection: Connection) -> bool:
    headers = first_headers(connection.scope)
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site is not None:
        return site not in OWN_SITES
    return origin is not None and urlsplit(origin.decode("latin-1")).netloc != header(connection.scope, b"host")


def _costs(connection: Connection) -> bool:
    if connection.scope.get("method") not in SAFE_METHODS:
        return True
    return str(connection.scope["path"]).lstrip("/").startswith(WORK)
