"""OpenID Connect access tokens: from a text that anyone may have made to the caller it proves.

The order is that of RFC 8725: the shape and the header are judged before any key is touched, the algorithm comes from
our list and must fit the key, the key comes from the issuer alone, and only then is a claim believed. A token never
says where its key is to be had. A verified token is cached for a minute, while the issuer's keys stay as they are.

An ID token is signed by the same issuer with the same keys: it tells who signed in at another application, and opens
nothing here.
"""

from __future__ import annotations

import warnings
from base64 import urlsafe_b64decode
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.access.issuer import Issuer
from horarium.access.roles import SCOPES, Grant, Principal, Role, Scope, principal, with_grants
from horarium.clock import SECOND, Clock, Instant

TOKEN_BYTES_MAX = 16 * 1024
SKEW_SECONDS = 30
REMEMBERED_SECONDS = 60.0
REMEMBERED_MAX = 2_000
ANY_AUDIENCE = "any"
NAME_CHARS_MAX = 255

ALGORITHMS = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    **dict.fromkeys(("EdDSA", "Ed25519"), "OKP"),
}
"""Allowed signature algorithms, with the type of their keys: never a secret, never nothing."""

DOTS = 2
"""In a signed token. A text with fewer is a key."""
KEYS_OF_ITS_OWN = ("jku", "jwk", "x5u", "x5c", "x5t", "x5t#S256")
ACCESS_TYPES = ("at+jwt", "application/at+jwt")
TYPES = (*ACCESS_TYPES, "jwt")
OF_ID_TOKENS = ("nonce", "at_hash", "c_hash", "s_hash")
OF_ACCESS_TOKENS = ("scope", "scp", "client_id")


class TokenRefused(Exception):
    """A token that opens nothing, and why. The reason stays here, unless our issuer has signed the token."""

    said = "it is not signed by the issuer that this server trusts"
    """Why, for who sends it."""


class ClaimsRefused(TokenRefused):
    """Our issuer has signed it, or it is a key of ours, and it opens nothing: its bearer may know why."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.said = why


class OtherIssuer(ClaimsRefused):
    """It is signed by our issuer's keys, and says that it is another's."""


class BoundRole(Struct, frozen=True):
    """A role, and the labels to which it is bound."""

    role: Role
    labels: dict[str, str]


def role_of(text: str) -> Role | BoundRole:
    """What `ROLE`, or `ROLE;LABEL=TEXT;...`, says."""
    role, *labels = text.split(";")
    pairs = (label.partition("=") for label in labels)
    return BoundRole(Role(role), {name: value for name, _, value in pairs}) if labels else Role(role)


class TokenPolicy(Struct, frozen=True, kw_only=True):
    """The requirements for a token. `role_map`: what a value of the claim `roles_claim` means here (empty: our names).
    `scopes_only`: what it may open is said by `scope` alone, so that a token without one opens nothing; whom it names
    and when it was made is not looked at."""

    audience: str
    roles_claim: str = "roles"
    role_map: Mapping[str, Role | BoundRole] = {}
    scopes_only: bool = False


class Tokens:
    """Judges tokens of one issuer, its `source`, by the requirements of a `policy`."""

    def __init__(self, issuer: Issuer, policy: TokenPolicy, clock: Clock) -> None:
        self.source, self.policy, self._clock = issuer, policy, clock
        self._known: OrderedDict[bytes, tuple[float, Instant, int, Principal]] = OrderedDict()

    @property
    def issuer(self) -> str:
        """Whose tokens these are."""
        return self.source.url

    @property
    def audience(self) -> str | None:
        """Their audience; None: that is not looked at."""
        return None if self.policy.audience == ANY_AUDIENCE else self.policy.audience

    async def find(self, token: str, digest: bytes | None = None) -> Principal:
        """Who bears this token; `digest`: its SHA-256, where that is known. Raises TokenRefused, IssuerUnavailable."""
        if len(token) > TOKEN_BYTES_MAX:
            raise TokenRefused(f"it has more than {TOKEN_BYTES_MAX:,} bytes")
        if digest is None:
            digest = sha256(token.encode("utf-8", "surrogatepass")).digest()
        known = self._known.get(digest)
        if known is not None and self._stands(*known[:3]):
            return known[3]
        claims = await self._verified(token)
        found = to_principal(claims, self.policy)
        self._known[digest] = self._clock.monotonic(), _instant(claims["exp"]), self.source.generation, found
        if len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)
        return found

    def _stands(self, at: float, expires_at: Instant, generation: int) -> bool:
        fresh = self._clock.monotonic() - at < REMEMBERED_SECONDS
        return fresh and generation == self.source.generation and self._clock.now() < expires_at

    async def _verified(self, token: str) -> dict[str, Any]:
        header, claims = await self.signed(token)
        check_claims(claims, self.source.url, self.policy, self._clock.now())
        if not self.policy.scopes_only:
            check_kind(header, claims)
        return claims

    async def signed(self, token: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Header and claims of what the issuer signed; no claim is judged yet. Raises TokenRefused,
        IssuerUnavailable."""
        if len(token) > TOKEN_BYTES_MAX:
            raise TokenRefused(f"it has more than {TOKEN_BYTES_MAX:,} bytes")
        header = read_header(token)
        key = await self.source.key(header.get("kid"))
        if key is None:
            raise TokenRefused("its key is none of the issuer's")
        if key.key_type != ALGORITHMS[header["alg"]]:
            raise TokenRefused(f"its algorithm {header['alg']} does not fit its key")
        return header, _json_object(_payload(token, key, header["alg"]), "claims")


def _payload(token: str, key: Any, algorithm: str) -> bytes:
    """The signed part. Raises TokenRefused."""
    from joserfc import jws
    from joserfc.errors import JoseError, SecurityWarning

    with warnings.catch_warnings():
        # EdDSA has two names now; issuers go on using the older one.
        warnings.simplefilter("ignore", SecurityWarning)
        try:
            return jws.deserialize_compact(token, key, algorithms=[algorithm]).payload
        except (JoseError, ValueError, TypeError) as error:
            raise TokenRefused(f"its signature does not hold ({type(error).__name__})") from None


def read_header(token: str) -> dict[str, Any]:
    """The header of a token, which promises what we can keep. Raises TokenRefused."""
    parts = token.split(".")
    if len(parts) != DOTS + 1:
        raise TokenRefused("it is not three parts: no signed token, or an encrypted one")
    try:
        text = urlsafe_b64decode(parts[0] + "=" * (-len(parts[0]) % 4))
    except ValueError:
        raise TokenRefused("its header is not base64") from None
    header = _json_object(text, "header")
    if not isinstance(alg := header.get("alg"), str) or alg not in ALGORITHMS:
        raise TokenRefused(f"its algorithm is {str(alg)[:40]!r}")
    if not isinstance(header.get("kid", ""), str):
        raise TokenRefused("its key id is no text")
    for name in (*KEYS_OF_ITS_OWN, "crit", "zip", "enc", "b64"):
        if name in header:
            raise TokenRefused(f"its header holds {name}")
    if "cty" in header or str(header.get("typ", "jwt")).lower() not in TYPES:
        raise TokenRefused("it is of another type, or holds another token")
    return header


def _json_object(text: bytes, what: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise TokenRefused(f"its {what} is not JSON") from None
    if not isinstance(value, dict):
        raise TokenRefused(f"its {what} is no JSON object")
    return value


def check_claims(claims: Mapping[str, Any], issuer: str, policy: TokenPolicy, now: Instant) -> None:
    """Issuer, audience, subject and time. Raises TokenRefused."""
    audience = policy.audience
    if claims.get("iss") != issuer:
        raise OtherIssuer("it is of another issuer (iss)")
    given = claims.get("aud")
    audiences = given if isinstance(given, list) else [given]
    if audience != ANY_AUDIENCE and audience not in audiences:
        raise ClaimsRefused("it is for another audience (aud) than this server")
    subject = claims.get("sub", "" if policy.scopes_only else None)
    if not isinstance(subject, str) or not len(subject) <= NAME_CHARS_MAX or not (subject or policy.scopes_only):
        raise ClaimsRefused("it has no subject")
    for name, sign in (("exp", 1), ("nbf", -1), ("iat", -1)):
        value = claims.get(name)
        if (value is None and name != "exp") or (name == "iat" and policy.scopes_only):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
            raise ClaimsRefused(f"its {name} is no instant")
        if sign * (_instant(value) - now) <= -SKEW_SECONDS * SECOND:
            raise ClaimsRefused("its time is over (exp)" if name == "exp" else f"its time has not come ({name})")


def check_kind(header: Mapping[str, Any], claims: Mapping[str, Any]) -> None:
    """Refuse a token that was not made to open anything: an ID token. RFC 9068 gives access tokens a type of their own;
    issuers that don't are known by their claims. Raises TokenRefused."""
    if str(header.get("typ", "")).lower() in ACCESS_TYPES:
        return
    if any(name in claims for name in OF_ID_TOKENS) or not any(name in claims for name in OF_ACCESS_TOKENS):
        raise ClaimsRefused("it is an ID token, not an access token")
    if str(claims.get("typ", "bearer")).lower() != "bearer" or claims.get("token_use", "access") != "access":
        raise ClaimsRefused("it is no access token")


def to_principal(claims: Mapping[str, Any], policy: TokenPolicy) -> Principal:
    """Who a token speaks for, and what it allows here."""
    subject: str = claims.get("sub") or "unknown"
    names = (claims.get(name) for name in ("preferred_username", "name", "email"))
    name = next((name for name in names if isinstance(name, str) and name), subject)
    scopes = [Scope(text) for text in _words(claims.get("scope")) + _words(claims.get("scp")) if text in set(Scope)]
    given = [] if policy.scopes_only else list(_roles(claims, policy))
    free = [each for each in given if isinstance(each, Role)]
    bound = [each for each in given if isinstance(each, BoundRole)]
    found = principal(subject, name[:NAME_CHARS_MAX], "oidc", free, scopes=scopes)
    grants = [Grant(SCOPES[each.role], each.labels) for each in bound]
    roles = tuple(sorted({*free, *(each.role for each in bound)}))
    return with_grants(replace(found, roles=roles), grants) if grants else found


def joined(first: Principal, second: Principal, name: str) -> Principal:
    """One person, by what two tokens say of it."""
    both = principal(first.subject, name, first.kind, (), scopes=())
    grants = (*_grants_of(first), *_grants_of(second))
    roles = tuple(sorted({*first.roles, *second.roles}))
    return with_grants(replace(both, roles=roles), grants)


def _grants_of(found: Principal) -> tuple[Grant, ...]:
    if not found.scopes:
        return ()
    bounds: Sequence[dict[str, str] | None] = [None] if found.labels is None else found.labels
    return found.grants or tuple(Grant(found.scopes, labels) for labels in bounds)


def _roles(claims: Mapping[str, Any], policy: TokenPolicy) -> Iterable[Role | BoundRole]:
    value: Any = claims.get(policy.roles_claim)
    if value is None:
        value = claims
        for part in policy.roles_claim.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    known: Mapping[str, Role | BoundRole] = policy.role_map or {role.value: role for role in Role}
    return [known[text] for text in _words(value) if text in known]


def _words(value: Any) -> list[str]:
    """A claim that is a list of texts, or one text of several words."""
    if isinstance(value, str):
        return value.split()
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _instant(seconds: float) -> Instant:
    return round(seconds * SECOND)
