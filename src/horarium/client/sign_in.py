"""Signing in at an OpenID Connect issuer, from a terminal: the authorization code with PKCE, or the device grant.

The code comes back to a listener on this machine, on both loopback addresses, since a browser may take either for
`localhost`. A request with a `state` that is not ours is refused, and the listener goes on waiting: another page must
not be able to end or to complete a sign-in. Nothing that the issuer answers is followed anywhere but to the endpoints
of its own discovery document.
"""

from __future__ import annotations

import socket
import ssl
import time
import urllib.error
import urllib.request
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from secrets import token_urlsafe
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import msgspec
from msgspec import Struct

from horarium.clock import SECOND, SystemClock
from horarium.errors import CallerError, InvalidSetting, Outage

REDIRECT_PORT = 5556
SCOPE_DEFAULT = "openid offline_access"
TIMEOUT_SECONDS = 15.0
ANSWER_BYTES_MAX = 256 * 1024
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
INTERVAL_SECONDS = 5.0
VERIFIER_BYTES = 48
SLOWER_SECONDS = 5.0

Wait = Callable[[float], object]


class SignInRefused(CallerError):
    """The issuer, or the person before it, said no."""

    code = "sign_in_refused"


class ClientAtIssuer(Struct, frozen=True, kw_only=True):
    """Who asks the issuer, and for what. `resource`: what the tokens are for, where the issuer wants to know."""

    issuer: str
    client_id: str
    client_secret: str | None = None
    scope: str = SCOPE_DEFAULT
    resource: str | None = None


class Tokens(Struct, frozen=True, kw_only=True):
    """The answer of an issuer. `expires_at`: of the access token, in seconds since 1970."""

    access_token: str
    expires_at: float
    refresh_token: str | None = None


class Discovery(Struct, frozen=True, kw_only=True):
    """Where an issuer answers."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    device_authorization_endpoint: str | None = None
    revocation_endpoint: str | None = None


class Device(Struct, frozen=True, kw_only=True):
    """The code that a person is asked to enter, and where. `verifier`: what proves that it was us who asked (RFC
    7636)."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None = None
    expires_in: float = 600.0
    interval: float = INTERVAL_SECONDS
    verifier: str = ""


def discover(issuer: str) -> Discovery:
    """Raises Outage, or InvalidSetting if it is no issuer."""
    status, answer = _ask(issuer.rstrip("/") + "/.well-known/openid-configuration")
    try:
        found = msgspec.convert(answer, Discovery)
    except msgspec.ValidationError:
        raise InvalidSetting(f"issuer: {issuer} answered {status}, and not as an OpenID Connect issuer does") from None
    if found.issuer != issuer:
        raise InvalidSetting(f"issuer: {issuer} calls itself {found.issuer!r}; give it exactly so", field="issuer")
    for name in ("token_endpoint", "authorization_endpoint", "device_authorization_endpoint", "revocation_endpoint"):
        url = getattr(found, name)
        if url is not None and urlsplit(url).scheme not in {"https", urlsplit(issuer).scheme}:
            raise InvalidSetting(f"issuer: its {name} is {url!r}, which is less safe than itself")
    return found


# ---- the code, with PKCE ----------------------------------------------------------------------------------------


class CodeFlow:
    """One sign-in in a browser. Open `url`, then wait for `code`."""

    def __init__(self, client: ClientAtIssuer, found: Discovery, port: int = REDIRECT_PORT) -> None:
        if found.authorization_endpoint is None:
            raise InvalidSetting(f"issuer: {client.issuer} has no authorization endpoint; try --device")
        self._client, self._found = client, found
        self._redirect_uri = f"http://localhost:{port}/callback"
        self._verifier = token_urlsafe(VERIFIER_BYTES)
        self.state = token_urlsafe(24)
        asked = {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": self._redirect_uri,
            "scope": client.scope,
            "state": self.state,
            **_challenge(self._verifier),
        }
        if "offline_access" in client.scope.split():
            asked["prompt"] = "consent"  # without it, OpenID Connect gives no refresh token
        joint = "&" if urlsplit(found.authorization_endpoint).query else "?"
        self.url = found.authorization_endpoint + joint + urlencode(asked | _for_resource(client))

    def tokens(self, code: str) -> Tokens:
        """The tokens for the code. Raises SignInRefused, Outage."""
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": self._redirect_uri}
        form["code_verifier"] = self._verifier
        status, answer = _ask_of(self._client, self._found.token_endpoint, form)
        if status != 200:
            raise _refused(answer)
        return _made(answer)


class Listener:
    """Waits for the browser to come back, on 127.0.0.1 and ::1. Raises Outage where the port is taken."""

    def __init__(self, state: str, port: int = REDIRECT_PORT) -> None:
        self._answer: dict[str, str] = {}
        self._come = Event()
        handler = _handler(state, self._take)
        self._servers: list[HTTPServer] = []
        try:
            self._servers.append(_Server(("127.0.0.1", port), handler))
        except OSError as error:
            raise Outage(
                f"can't listen on http://localhost:{port}, to which the issuer sends the browser back: "
                f"{error.strerror or error}; is another sign-in under way? --device needs no listener"
            ) from None
        with suppress(OSError):  # a machine without IPv6
            self._servers.append(_ServerOnV6(("::1", self._servers[0].server_port), handler))
        for server in self._servers:
            Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def _take(self, answer: dict[str, str]) -> None:
        self._answer = answer
        self._come.set()

    def wait(self, seconds: float) -> str:
        """The code. Raises SignInRefused, or Outage if none came in time."""
        if not self._come.wait(seconds):
            raise Outage(f"no one signed in within {seconds:g} s")
        if "code" not in self._answer:
            why = self._answer.get("error_description") or self._answer.get("error") or "no code came back"
            raise SignInRefused(f"the issuer refused: {why[:500]}")
        return self._answer["code"]

    def close(self) -> None:
        """Listen no more."""
        for server in self._servers:
            server.shutdown()
            server.server_close()


class _Server(HTTPServer):
    allow_reuse_address = True


class _ServerOnV6(_Server):
    address_family = socket.AF_INET6


PAGE = b"<!doctype html><meta charset=utf-8><title>Horarium</title><p>%s You can close this window.</p>"


def _handler(state: str, take: Callable[[dict[str, str]], None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            given = {name: values[0] for name, values in parse_qs(parts.query).items()}
            if parts.path != "/callback" or given.get("state") != state:
                self._say(404, b"This is no answer to the sign-in that is under way.")
                return
            self._say(200, b"You are signed in." if "code" in given else b"The sign-in was refused.")
            take(given)

        def _say(self, status: int, text: bytes) -> None:
            body = PAGE % text
            self.send_response(status)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.send_header("cache-control", "no-store")
            self.send_header("content-security-policy", "default-src 'none'")
            self.send_header("referrer-policy", "no-referrer")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: the request holds the code."""

    return Handler


# ---- the device grant -------------------------------------------------------------------------------------------


def ask_for_device(client: ClientAtIssuer, found: Discovery) -> Device:
    """The code for another device. Raises SignInRefused, InvalidSetting, Outage."""
    if found.device_authorization_endpoint is None:
        raise InvalidSetting(f"issuer: {client.issuer} knows no device grant; leave out --device")
    # The standard of this grant knows no PKCE; some issuers ask for it all the same, and others pass over it.
    verifier = token_urlsafe(VERIFIER_BYTES)
    form = {"scope": client.scope, **_challenge(verifier)}
    status, answer = _ask_of(client, found.device_authorization_endpoint, form)
    if status != 200:
        raise _refused(answer)
    device: Device = _read(answer, Device)
    return msgspec.structs.replace(device, verifier=verifier)


def wait_for_device(client: ClientAtIssuer, found: Discovery, device: Device, wait: Wait = time.sleep) -> Tokens:
    """Ask until the person has signed in. Raises SignInRefused, Outage."""
    interval, left = max(device.interval, 1.0), device.expires_in
    form = {"grant_type": DEVICE_GRANT, "device_code": device.device_code}
    if device.verifier:
        form["code_verifier"] = device.verifier
    while left > 0:
        wait(interval)
        left -= interval
        status, answer = _ask_of(client, found.token_endpoint, form)
        if status == 200:
            return _made(answer)
        match answer.get("error"):
            case "authorization_pending":
                continue
            case "slow_down":
                interval += SLOWER_SECONDS
            case _:
                raise _refused(answer)
    raise SignInRefused("the code was not entered in time; sign in again")


# ---- later ------------------------------------------------------------------------------------------------------


def refresh(client: ClientAtIssuer, token_endpoint: str, refresh_token: str) -> Tokens:
    """New tokens for a refresh token. Raises SignInRefused where it is worth nothing any more, Outage."""
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token}
    status, answer = _ask_of(client, token_endpoint, form)
    if status >= 500 or status == 429:
        raise Outage(f"{client.issuer} answered {status}; try again later")
    if status != 200:
        raise _refused(answer)
    made = _made(answer)
    return made if made.refresh_token is not None else msgspec.structs.replace(made, refresh_token=refresh_token)


def revoke(client: ClientAtIssuer, revocation_endpoint: str, refresh_token: str) -> bool:
    """Have the issuer revoke the sign-in. Whether it did."""
    form = {"token": refresh_token, "token_type_hint": "refresh_token"}
    return _ask(revocation_endpoint, _with_secret(client, form))[0] == 200


class _TokenAnswer(Struct):
    access_token: str
    token_type: str = "Bearer"
    expires_in: float = 300.0
    refresh_token: str | None = None


def _made(answer: Mapping[str, Any]) -> Tokens:
    given = _read(answer, _TokenAnswer)
    if given.token_type.lower() != "bearer":
        raise SignInRefused(f"the issuer gave a token of the type {given.token_type!r}; Bearer is needed")
    expires_at = SystemClock().now() / SECOND + given.expires_in
    return Tokens(access_token=given.access_token, expires_at=expires_at, refresh_token=given.refresh_token)


def _read(answer: Mapping[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(answer, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Outage(f"the issuer's answer is not what the standard says: {error}") from None


def _refused(answer: Mapping[str, Any]) -> SignInRefused:
    why = answer.get("error_description") or answer.get("error") or "it gave no reason"
    return SignInRefused(f"the issuer refused: {str(why)[:500]}")


def _challenge(verifier: str) -> dict[str, str]:
    """The challenge: the issuer's part of the verifier."""
    challenge = urlsafe_b64encode(sha256(verifier.encode()).digest()).decode().rstrip("=")
    return {"code_challenge": challenge, "code_challenge_method": "S256"}


def _for_resource(client: ClientAtIssuer) -> dict[str, str]:
    """The audience of the token: `resource` (RFC 8707), or `audience`, where that is no URL."""
    if client.resource is None:
        return {}
    return {"resource" if "://" in client.resource else "audience": client.resource}


def _with_secret(client: ClientAtIssuer, form: Mapping[str, str]) -> dict[str, str]:
    secret = {} if client.client_secret is None else {"client_secret": client.client_secret}
    return {"client_id": client.client_id, **secret, **form}


def _ask_of(client: ClientAtIssuer, endpoint: str, form: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """Ask for a token, or for what leads to one. Raises as `_ask`."""
    return _ask(endpoint, _with_secret(client, {**form, **_for_resource(client)}))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _ask(url: str, form: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    """Status and JSON object. Raises Outage, InvalidSetting."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise InvalidSetting(f"issuer: {url!r} is no http:// or https:// URL", field="issuer")
    data = None if form is None else urlencode(form).encode()
    request = urllib.request.Request(url, data=data, headers={"Accept": "application/json"})
    handlers = [urllib.request.ProxyHandler({}), _NoRedirects()] if _is_here(url) else [_NoRedirects()]
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT_SECONDS) as answer:
            status, text = answer.status, answer.read(ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        with error:
            status, text = error.code, error.read(ANSWER_BYTES_MAX)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise Outage(f"{url} can't be reached: {getattr(error, 'reason', error)}") from None
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = {}
    return status, value if isinstance(value, dict) else {}


def _is_here(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
