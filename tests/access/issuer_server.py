"""A real issuer over HTTP, which misbehaves when told to; and the tokens that it, or an attacker, makes."""

from __future__ import annotations

import asyncio
import hmac
import json
import warnings
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256, sha384, sha512
from typing import Any

from aiohttp import web
from joserfc import jws
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, OKPKey, RSAKey

from horarium.clock import SECOND
from horarium.testing.values import NOW

AUDIENCE = "https://horarium.example"
RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"})
OTHER = RSAKey.generate_key(2048, {"kid": "other"})
SECONDS = NOW // SECOND


class IssuerServer:
    """Serves its discovery document and its keys. `hold`: until it is set, nothing is answered."""

    def __init__(self) -> None:
        self.keys: list[Any] = [RSA, EC, ED]
        self.fetches = 0
        self.paths: list[str] = []
        self.hold: asyncio.Event | None = None
        self.answers: dict[str, web.Response] = {}
        self.discovery: dict[str, Any] = {}
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        if self.hold is not None:
            await self.hold.wait()
        if (given := self.answers.get(request.path)) is not None:
            return web.Response(body=given.body, status=given.status, headers=given.headers)
        if request.path == "/.well-known/openid-configuration":
            return web.json_response({"issuer": self.url, "jwks_uri": f"{self.url}/jwks", **self.discovery})
        if request.path == "/jwks":
            self.fetches += 1
            return web.json_response({"keys": [key.as_dict(private=False) for key in self.keys]})
        if request.path == "/large":
            answer = web.StreamResponse()
            await answer.prepare(request)
            for _ in range(1_600):
                await answer.write(b" " * 65_536)
            return answer
        if request.path == "/slow":
            answer = web.StreamResponse()
            await answer.prepare(request)
            while True:
                await answer.write(b" ")
                await asyncio.sleep(0.02)
        return web.Response(status=404)


@asynccontextmanager
async def serving() -> AsyncIterator[IssuerServer]:
    server = IssuerServer()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        if server.hold is not None:
            server.hold.set()
        await runner.cleanup()


def claims(issuer: str, **changes: Any) -> dict[str, Any]:
    """Those of a good access token; None takes one away."""
    good = {
        "iss": issuer,
        "aud": AUDIENCE,
        "sub": "ann",
        "exp": SECONDS + 600,
        "iat": SECONDS,
        "client_id": "cli",
        "scope": "openid runs:read",
        **changes,
    }
    return {name: value for name, value in good.items() if value is not None}


def signed(payload: dict[str, Any] | bytes, key: Any = RSA, alg: str = "RS256", **header: Any) -> str:
    """A token. Header fields that are None are left out."""
    head = {"alg": alg, "typ": "at+jwt", "kid": key.kid, **header}
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    head = {name: value for name, value in head.items() if value is not None}
    registry = jws.JWSRegistry(algorithms=[alg], strict_check_header=False)
    registry.max_payload_length = 10_000_000
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)
        return jws.serialize_compact(head, body, key, registry=registry)


def signed_with_public_key(payload: dict[str, Any], key: RSAKey, alg: str) -> list[str]:
    """What an attacker makes who hopes that a public key is taken for a shared secret: with each of its forms."""
    public = key.as_dict(private=False)
    pem = key.as_pem(private=False)
    forms = [str(public["n"]).encode(), json.dumps(public).encode(), pem, pem.strip(), key.as_der(private=False)]
    head = {"alg": alg, "typ": "at+jwt", "kid": key.kid}
    said = f"{_text(json.dumps(head).encode())}.{_text(json.dumps(payload).encode())}"
    hashed = {"HS256": sha256, "HS384": sha384, "HS512": sha512}[alg]
    return [f"{said}.{_text(hmac.new(form, said.encode(), hashed).digest())}" for form in forms]


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")
