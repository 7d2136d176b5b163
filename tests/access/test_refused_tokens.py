"""What an answer says of a token that is refused: why, where its issuer has signed it; else no more than that."""

from __future__ import annotations

from typing import Any

import pytest

from horarium.access.issuer import Issuer
from horarium.access.tokens import TokenPolicy, Tokens
from horarium.api.app import create_app
from tests.access.issuer_server import AUDIENCE, OTHER, RSA, SECONDS, claims, serving, signed
from tests.api.conftest import HOSTS, Api, ask


@pytest.mark.parametrize(
    ("changes", "key", "why"),
    [
        ({"exp": SECONDS - 60}, RSA, "its time is over (exp)"),
        ({"nbf": SECONDS + 60}, RSA, "its time has not come (nbf)"),
        ({"aud": "other"}, RSA, "it is for another audience (aud) than this server"),
        ({"iss": "https://evil.example"}, RSA, "it is of another issuer (iss)"),
        ({"exp": SECONDS - 60}, OTHER, "it is not signed by the issuer that this server trusts"),
    ],
)
async def test_a_token_is_refused_in_words(changes: dict[str, Any], key: Any, why: str) -> None:
    async with serving() as server:
        assert await refused(server.url, signed(claims(server.url, **changes), key)) == (
            f"the access token that was sent is refused: {why}"
        )


async def test_a_key_is_no_token() -> None:
    assert (await refused("http://127.0.0.1:9", "a-key")).startswith("the API key that was sent is none of this")


async def refused(issuer: str, given: str) -> str:
    api = Api()
    app = create_app(
        api.operations,
        api.claims,
        health=api.health,
        telemetry=api.telemetry,
        hosts=HOSTS,
        tokens=Tokens(Issuer(issuer, api.clock), TokenPolicy(audience=AUDIENCE), api.clock),
    )
    reply = await ask(app, "GET", "/api/v1/jobs", {"host": "testserver", "authorization": f"Bearer {given}"})
    assert reply.status == 401
    assert 'error="invalid_token"' in reply.headers["www-authenticate"]
    return str(reply.json["detail"])
