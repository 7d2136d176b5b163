"""People who sign in at the issuer with a browser: the authorization code with PKCE, from our side of the exchange.

All that one attempt needs is derived from a secret that its browser keeps in a cookie: `state`, which binds the answer
to that browser, `nonce`, which binds the ID token to the attempt, and the PKCE verifier, which binds the code. So no
node keeps anything, and any node may take the answer.

What a person may do is said by tokens of the issuer that pass the same judge as those of the API: the roles of the ID
token, and what the access token says where it is one that the API would take.
"""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

import msgspec
from msgspec import Struct

from horarium.access.issuer import Issuer, ask, has_same_safety
from horarium.access.roles import Principal
from horarium.access.tokens import (
    ACCESS_TYPES,
    TokenPolicy,
    TokenRefused,
    Tokens,
    check_claims,
    joined,
    to_principal,
)
from horarium.clock import Clock
from horarium.errors import IssuerUnavailable

SCOPE = "openid profile"
FETCH_SECONDS = 10.0
WHY_CHARS_MAX = 300


class SignInFailed(Exception):
    """No one was signed in; the reason, for the person who tried."""


class Attempt(Struct, frozen=True):
    """One sign-in that a browser began. `secret` stays between that browser and us."""

    secret: str

    @property
    def state(self) -> str:
        """The value that the issuer must send back."""
        return self._derived("state")

    @property
    def nonce(self) -> str:
        """The value that the ID token must hold."""
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        """The proof that the code is ours (RFC 7636)."""
        return self._derived("verifier")

    @property
    def challenge(self) -> str:
        """The challenge: the issuer's part of the verifier."""
        return _text(sha256(self.verifier.encode()).digest())

    def _derived(self, what: str) -> str:
        return _text(sha256(f"sign-in {what} {self.secret}".encode("utf-8", "surrogatepass")).digest())


class People:
    """Signs people in as one client of one issuer."""

    def __init__(self, tokens: Tokens, client_id: str, client_secret: str | None, clock: Clock) -> None:
        self._tokens, self._clock = tokens, clock
        self._client_id, self._client_secret = client_id, client_secret
        rules = msgspec.json.encode([self._issuer.url, client_id, tokens.policy], order="deterministic")
        self.stamp = sha256(rules).hexdigest()
        """Of the rules by which roles are given: a session that began under others is over."""

    @property
    def _issuer(self) -> Issuer:
        return self._tokens.source

    @property
    def place(self) -> str:
        """The issuer, as people know it."""
        return urlsplit(self._issuer.url).netloc

    async def address(self, attempt: Attempt, redirect_uri: str) -> str:
        """The issuer's page for this attempt. Raises SignInFailed."""
        endpoint = await self._endpoint("authorization_endpoint")
        asked = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": SCOPE,
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": attempt.challenge,
            "code_challenge_method": "S256",
        }
        return endpoint + ("&" if urlsplit(endpoint).query else "?") + urlencode(asked | self._for_resource())

    async def person(self, attempt: Attempt, answer: Mapping[str, str], redirect_uri: str) -> Principal:
        """Who signed in, by what the issuer's answer brought. Raises SignInFailed."""
        if not compare_digest(answer.get("state", "").encode(), attempt.state.encode()):
            raise SignInFailed("This answer belongs to no sign-in that this browser began lately. Begin again.")
        if answer.get("iss", self._issuer.url) != self._issuer.url:
            raise SignInFailed("This answer is of another issuer.")
        if "code" not in answer:
            why = answer.get("error_description") or answer.get("error") or "it gave no reason"
            raise SignInFailed(f"{self.place} refused: {why[:WHY_CHARS_MAX]}.")
        given = await self._exchange(attempt, answer["code"], redirect_uri)
        try:
            found = await self._known(attempt, given)
        except TokenRefused as refused:
            raise SignInFailed(f"What {self.place} said of you can't be believed: {refused}.") from None
        except IssuerUnavailable:
            raise SignInFailed(f"{self.place} does not answer. Try again in a few seconds.") from None
        if not found.scopes:
            claim = self._tokens.policy.roles_claim
            raise SignInFailed(f"{found.name} has no role here: {self.place} gives none that counts in {claim!r}.")
        return found

    async def _known(self, attempt: Attempt, given: Mapping[str, Any]) -> Principal:
        """By the ID token, and by the access token if the API would take it. Raises TokenRefused."""
        header, claims = await self._tokens.signed(str(given.get("id_token", "")))
        if str(header.get("typ", "")).lower() in ACCESS_TYPES:
            raise TokenRefused("its ID token is an access token")
        check_claims(claims, self._issuer.url, TokenPolicy(audience=self._client_id), self._clock.now())
        if claims.get("azp", self._client_id) != self._client_id:
            raise TokenRefused("its ID token was made for another client")
        if not compare_digest(str(claims.get("nonce", "")).encode(), attempt.nonce.encode()):
            raise TokenRefused("its ID token is of another sign-in")
        told = to_principal({**claims, "scope": None, "scp": None}, self._tokens.policy)
        try:
            allowed = await self._tokens.find(str(given.get("access_token", "")))
        except TokenRefused:
            return told  # for the issuer alone to read, as many are
        if allowed.subject != told.subject:
            raise TokenRefused("its two tokens are of two people")
        name = told.name if told.name != told.subject else allowed.name
        return joined(told, allowed, name)

    async def _exchange(self, attempt: Attempt, code: str, redirect_uri: str) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": attempt.verifier,
            **self._for_resource(),
        }
        endpoint = await self._endpoint("token_endpoint")
        headers: dict[str, str] = {}
        methods = (await self._issuer.discovery()).get("token_endpoint_auth_methods_supported")
        if self._client_secret is None:
            form["client_id"] = self._client_id
        elif isinstance(methods, list) and "client_secret_basic" not in methods:
            form |= {"client_id": self._client_id, "client_secret": self._client_secret}
        else:
            pair = f"{quote_plus(self._client_id)}:{quote_plus(self._client_secret)}"
            headers["authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        try:
            status, answer = await ask(endpoint, form=form, headers=headers, seconds=FETCH_SECONDS)
        except Exception as error:
            raise SignInFailed(
                f"{self.place} does not answer as it should: {str(error) or type(error).__name__}."
            ) from None
        if status != 200:
            why = answer.get("error_description") or answer.get("error") or f"status {status}"
            raise SignInFailed(f"{self.place} refused: {str(why)[:WHY_CHARS_MAX]}.")
        return answer

    async def _endpoint(self, name: str) -> str:
        try:
            url = (await self._issuer.discovery()).get(name)
        except IssuerUnavailable:
            raise SignInFailed(f"{self.place} does not answer. Try again in a few seconds.") from None
        if not isinstance(url, str) or not has_same_safety(url, self._issuer.url):
            raise SignInFailed(f"{self.place} names no {name} that can be used.")
        return url

    def _for_resource(self) -> dict[str, str]:
        """The audience of the access token: `resource` (RFC 8707), or `audience`, where that is no URL."""
        audience = self._tokens.audience
        if audience is None:
            return {}
        return {"resource" if "://" in audience else "audience": audience}


def _text(digest: bytes) -> str:
    return urlsafe_b64encode(digest).decode().rstrip("=")
