"""The keys of an OpenID Connect issuer: fetched when first needed, kept, fetched again when they may have changed.

What an issuer answers is not trusted: no redirect is followed, time and size have limits, it must call itself what it
is configured as, and of its keys only public ones for signatures are taken. Nothing that a token says leads to a fetch
of anything else; and however many tokens name unknown keys, one fetch in ten seconds is all that they bring about.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from typing import Any
from urllib.parse import urlsplit

import msgspec

from horarium.access import fetching
from horarium.clock import Clock
from horarium.errors import IssuerUnavailable

log = logging.getLogger("horarium.access")

DISCOVERY_PATH = "/.well-known/openid-configuration"
FETCH_SECONDS = 5.0
"""How long both documents together may take."""
KEYS_MAX = 100
AGAIN_SECONDS = 10.0
"""How soon keys are fetched again."""
KEPT_SECONDS = 3600.0
"""After this time they are fetched again in any case."""
RSA_BITS_MIN = 2048
KEY_TYPES = ("RSA", "EC", "OKP")
CURVES = ("P-256", "P-384", "P-521", "Ed25519")


class Issuer:
    """An issuer, by its URL."""

    def __init__(self, url: str, clock: Clock) -> None:
        self.url = url
        self._clock = clock
        self._keys: dict[str | None, Any] = {}
        self._discovery: dict[str, Any] = {}
        self._fetched: float | None = None
        self._tried: float | None = None
        self._fetching: asyncio.Task[None] | None = None
        self.generation = 0
        """Grows when the keys change."""

    async def close(self) -> None:
        """Give up a fetch that is under way."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    async def key(self, kid: str | None) -> Any:
        """The key of this id; without an id, the only key there is. None: there is none. Raises IssuerUnavailable if
        no keys are known."""
        await self._have()
        found = self._find(kid)
        if found is None and kid is not None:
            await self._fetch_if_due()
            found = self._find(kid)
        return found

    async def discovery(self) -> dict[str, Any]:
        """What it says of itself. Raises IssuerUnavailable if nothing is known yet."""
        await self._have()
        return self._discovery

    async def _have(self) -> None:
        if self._fetched is None:
            await self._fetch_if_due()
            if self._fetched is None:
                raise IssuerUnavailable(f"the issuer {self.url} did not give its keys; try again in a few seconds")
        elif self._clock.monotonic() - self._fetched > KEPT_SECONDS:
            self._start_if_due()

    def _find(self, kid: str | None) -> Any:
        if kid is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(kid)

    async def _fetch_if_due(self) -> None:
        """Wait for a fetch: the one under way, or a new one unless the last is too fresh."""
        self._start_if_due()
        if self._fetching is not None:
            await asyncio.shield(self._fetching)

    def _start_if_due(self) -> None:
        now = self._clock.monotonic()
        if self._fetching is None and (self._tried is None or now - self._tried >= AGAIN_SECONDS):
            self._tried = now
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())
            self._fetching.add_done_callback(self._fetched_or_not)

    def _fetched_or_not(self, task: asyncio.Task[None]) -> None:
        self._fetching = None

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                discovery, keys = await fetch(self.url)
        except Exception as error:
            log.warning("the keys of the issuer %s can't be had: %s", self.url, str(error) or type(error).__name__)
            return
        if {kid: key.thumbprint() for kid, key in keys.items()} != {
            kid: key.thumbprint() for kid, key in self._keys.items()
        }:
            self._keys = keys
            self.generation += 1
        self._discovery = discovery
        self._fetched = self._clock.monotonic()


async def fetch(issuer: str) -> tuple[dict[str, Any], dict[str | None, Any]]:
    """What the issuer says of itself, and its keys for signatures, by id. Raises what goes wrong."""
    discovery = await _get(issuer.rstrip("/") + DISCOVERY_PATH)
    if discovery.get("issuer") != issuer:
        raise ValueError(f"it calls itself {str(discovery.get('issuer'))[:200]!r}")
    jwks_uri = discovery.get("jwks_uri")
    if not isinstance(jwks_uri, str) or not has_same_safety(jwks_uri, issuer):
        raise ValueError(f"its jwks_uri is {str(jwks_uri)[:200]!r}")
    return discovery, read_keys(await _get(jwks_uri))


async def ask(url: str, *, form: dict[str, str], headers: dict[str, str], seconds: float) -> tuple[int, dict[str, Any]]:
    """Status and JSON object that an endpoint of an issuer answers to a form. Raises what goes wrong."""
    async with asyncio.timeout(seconds):
        status, body = await fetching.fetch(url, form, headers)
    return status, _object(body, url)


def has_same_safety(url: str, issuer: str) -> bool:
    """HTTPS; plain HTTP only from an issuer that is reached that way itself."""
    scheme = urlsplit(url).scheme
    return scheme == "https" or (scheme == "http" and urlsplit(issuer).scheme == "http")


async def _get(url: str) -> dict[str, Any]:
    status, body = await fetching.fetch(url)
    if status != 200:
        raise ValueError(f"{url} answered {status}")
    return _object(body, url)


def _object(body: bytes, url: str) -> dict[str, Any]:
    value = msgspec.json.decode(body)
    if not isinstance(value, dict):
        raise ValueError(f"{url} gave no JSON object")
    return value


def read_keys(jwks: dict[str, Any]) -> dict[str | None, Any]:
    """The keys of a key set that can check signatures; other entries are passed over. Raises ValueError."""
    entries = jwks.get("keys")
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise ValueError(f"its key set holds no list of at most {KEYS_MAX} keys")
    keys: dict[str | None, Any] = {}
    for entry in entries:
        if isinstance(entry, dict) and (key := _read_key(entry)) is not None:
            kid = entry.get("kid")
            keys.setdefault(kid if isinstance(kid, str) else None, key)
    if not keys:
        raise ValueError("its key set holds no key for signatures")
    return keys


def _read_key(entry: dict[str, Any]) -> Any:
    from joserfc.errors import JoseError, SecurityWarning
    from joserfc.jwk import JWKRegistry

    if entry.get("kty") not in KEY_TYPES or entry.get("use", "sig") != "sig" or "d" in entry:
        return None
    if entry["kty"] != "RSA" and entry.get("crv") not in CURVES:
        return None
    with warnings.catch_warnings():
        # Of keys that are too short, which are passed over below.
        warnings.simplefilter("ignore", SecurityWarning)
        try:
            key = JWKRegistry.import_key({name: entry[name] for name in entry if name not in ("key_ops", "alg")})
        except (JoseError, ValueError, TypeError, KeyError):
            return None
    if entry["kty"] == "RSA" and key.raw_value.key_size < RSA_BITS_MIN:  # type: ignore[union-attr]
        return None
    return key
