"""Access tokens: what is let in, what is kept out, and how often the issuer is asked."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from joserfc import jwe
from joserfc.errors import SecurityWarning
from joserfc.jwk import RSAKey

from horarium.access import issuer as issuer_module
from horarium.access.fetching import BYTES_MAX
from horarium.access.issuer import AGAIN_SECONDS, KEPT_SECONDS, Issuer
from horarium.access.roles import Role, Scope
from horarium.access.tokens import ALGORITHMS, ANY_AUDIENCE, SKEW_SECONDS, TokenPolicy, TokenRefused, Tokens
from horarium.clock import SECOND
from horarium.errors import IssuerUnavailable
from horarium.testing.clock import ManualClock
from horarium.testing.values import NOW
from tests.waiting import until

from .issuer_server import (
    AUDIENCE,
    EC,
    ED,
    OTHER,
    RSA,
    SECONDS,
    IssuerServer,
    claims,
    serving,
    signed,
    signed_with_public_key,
)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[IssuerServer]:
    async with serving() as server:
        yield server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


class Door:
    """Tokens, judged as a node does."""

    def __init__(self, url: str, clock: ManualClock, **policy: Any) -> None:
        self.issuer = Issuer(url, clock)
        self.tokens = Tokens(self.issuer, TokenPolicy(**{"audience": AUDIENCE, **policy}), clock)

    async def lets_in(self, token: str) -> bool:
        try:
            await self.tokens.find(token)
        except TokenRefused:
            return False
        return True


@pytest.fixture
def door(server: IssuerServer, clock: ManualClock) -> Door:
    return Door(server.url, clock)


# -- what is let in


@pytest.mark.parametrize("alg", ALGORITHMS)
async def test_each_algorithm_of_the_list_is_taken(server: IssuerServer, door: Door, alg: str) -> None:
    from joserfc.jwk import ECKey

    curve = {"ES384": "P-384", "ES512": "P-521"}.get(alg)
    key = ECKey.generate_key(curve, {"kid": "k"}) if curve else {"RSA": RSA, "EC": EC, "OKP": ED}[ALGORITHMS[alg]]
    server.keys = [key]
    assert await door.lets_in(signed(claims(server.url), key, alg))


async def test_a_token_says_who_asks_and_what_it_may(server: IssuerServer, clock: ManualClock) -> None:
    door = Door(server.url, clock, roles_claim="realm.roles", role_map={"staff": Role.OPERATOR})
    found = await door.tokens.find(
        signed(
            claims(
                server.url,
                scope="openid jobs:write",
                scp=["work", "nonsense"],
                realm={"roles": ["staff", "admin"]},
                preferred_username="Ann",
            )
        )
    )
    assert (found.subject, found.name, found.kind, found.roles) == ("ann", "Ann", "oidc", (Role.OPERATOR,))
    assert found.scopes == frozenset(Scope) - {Scope.ADMIN, Scope.RUNS_DEFINE}
    assert found.queues is None


async def test_our_own_names_are_roles_where_no_map_is_given(server: IssuerServer, door: Door) -> None:
    found = await door.tokens.find(signed(claims(server.url, roles=["viewer", "root", 7], scope="")))
    assert found.roles == (Role.VIEWER,)
    assert found.scopes == {Scope.JOBS_READ, Scope.RUNS_READ}


async def test_a_token_without_roles_and_scopes_may_nothing(server: IssuerServer, door: Door) -> None:
    assert (await door.tokens.find(signed(claims(server.url, scope="openid")))).scopes == frozenset()


@pytest.mark.parametrize("audience", [AUDIENCE, ["x", AUDIENCE]])
async def test_the_audience_may_be_one_of_several(server: IssuerServer, door: Door, audience: Any) -> None:
    assert await door.lets_in(signed(claims(server.url, aud=audience)))


async def test_any_audience_is_taken_if_that_is_said(server: IssuerServer, clock: ManualClock) -> None:
    door = Door(server.url, clock, audience=ANY_AUDIENCE)
    assert await door.lets_in(signed(claims(server.url, aud=None)))


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({"exp": SECONDS - SKEW_SECONDS + 1}, True),
        ({"exp": SECONDS - SKEW_SECONDS}, False),
        ({"nbf": SECONDS + SKEW_SECONDS - 1}, True),
        ({"nbf": SECONDS + SKEW_SECONDS}, False),
        ({"iat": SECONDS + SKEW_SECONDS - 1}, True),
        ({"iat": SECONDS + SKEW_SECONDS}, False),
        ({"nbf": None}, True),  # may be left out, as RFC 7519 says; so may this one
        ({"iat": None}, True),
    ],
)
async def test_clocks_may_differ_by_the_skew(
    server: IssuerServer, door: Door, changes: dict[str, Any], taken: bool
) -> None:
    assert await door.lets_in(signed(claims(server.url, **changes))) is taken


async def test_a_token_that_is_known_ends_all_the_same(server: IssuerServer, door: Door, clock: ManualClock) -> None:
    token = signed(claims(server.url, exp=SECONDS + 10))
    assert await door.lets_in(token)
    clock.advance(10 + SKEW_SECONDS)
    assert not await door.lets_in(token)


# -- what is kept out


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": None}, {"iss": "https://evil.example"}, {"aud": None}, {"aud": "other"}, {"aud": []}, {"aud": {"a": 1}},
        {"exp": None}, {"exp": "tomorrow"}, {"exp": True}, {"exp": SECONDS - 60}, {"exp": 1e300}, {"exp": -1},
        {"nbf": SECONDS + 60}, {"nbf": "x"}, {"iat": SECONDS + 600}, {"sub": None}, {"sub": ""}, {"sub": 7},
        {"sub": "x" * 256},
    ],
)  # fmt: skip
async def test_wrong_claims_are_refused(server: IssuerServer, door: Door, changes: dict[str, Any]) -> None:
    assert await door.lets_in(signed(claims(server.url)))
    assert not await door.lets_in(signed(claims(server.url, **changes)))


@pytest.mark.parametrize(
    "header",
    [
        {"jku": "http://127.0.0.1:1/jwks"}, {"x5u": "http://127.0.0.1:1/"}, {"jwk": OTHER.as_dict(private=False)},
        {"x5c": ["MIIB"]}, {"crit": ["exp"]}, {"b64": False}, {"zip": "DEF"}, {"cty": "JWT"}, {"typ": "JWE"},
        {"typ": "logout+jwt"},
    ],
)  # fmt: skip
async def test_a_token_says_nothing_of_its_key_and_is_nothing_else(
    server: IssuerServer, door: Door, header: dict[str, Any]
) -> None:
    if header.keys() & {"b64", "crit"}:
        whole = {"alg": "RS256", "kid": "rsa", **header}
        token = ".".join((_text(whole), *signed(claims(server.url)).split(".")[1:]))
    else:
        token = signed(claims(server.url), RSA, **header)
    assert not await door.lets_in(token)
    assert server.paths == []


async def test_an_embedded_key_is_never_used(server: IssuerServer, door: Door) -> None:
    public = OTHER.as_dict(private=False)
    assert not await door.lets_in(signed(claims(server.url), OTHER, jwk=public, kid="rsa"))
    assert not await door.lets_in(signed(claims(server.url), OTHER, kid="rsa"))


@pytest.mark.parametrize("name", ["jku", "x5u", "kid"])
async def test_nothing_is_fetched_that_a_token_names(server: IssuerServer, door: Door, name: str) -> None:
    """There is something there, and the token is signed with it."""
    server.answers["/evil"] = web.json_response({"keys": [OTHER.as_dict(private=False)]})
    relative = ["/evil", "../evil", f"//{server.url.removeprefix('http://')}/evil"] if name == "kid" else []
    for address in (f"{server.url}/evil", *relative):
        assert not await door.lets_in(signed(claims(server.url), OTHER, **{name: address}))
    assert "/evil" not in server.paths


def _text(value: Any) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "", None, "HS256", "hs256", "RS1", "ES256K", ["RS256"], 7])
async def test_no_other_algorithm_is_taken(server: IssuerServer, door: Door, alg: Any) -> None:
    good = signed(claims(server.url)).split(".")
    for signature in ("", good[2]):
        token = f"{_text({'alg': alg, 'typ': 'at+jwt', 'kid': 'rsa'})}.{good[1]}.{signature}"
        assert not await door.lets_in(token)
    assert server.paths == []


@pytest.mark.parametrize("alg", ["HS256", "HS384", "HS512"])
async def test_a_public_key_is_no_secret_to_sign_with(server: IssuerServer, door: Door, alg: str) -> None:
    for token in signed_with_public_key(claims(server.url), RSA, alg):
        assert not await door.lets_in(token)
    assert server.paths == []


async def test_an_algorithm_must_fit_its_key(server: IssuerServer, door: Door) -> None:
    assert not await door.lets_in(signed(claims(server.url), EC, "ES256", kid="rsa"))
    assert not await door.lets_in(signed(claims(server.url), RSA, "RS256", kid="ec"))


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_token_that_was_changed_is_refused(server: IssuerServer, door: Door, place: int) -> None:
    parts = signed(claims(server.url)).split(".")
    other = signed(claims(server.url, sub="eve"), RSA, "RS512").split(".")
    parts[place] = other[place]
    assert not await door.lets_in(".".join(parts))


@pytest.mark.parametrize(
    "token",
    ["", ".", "..", "...", "a.b.c", "e30.e30.e30", "\u00e4.b.c", "\ud800..", f"{_text([])}.x.y", f"{_text('x')}.e30.",
     "A" * 1_000_000, ("A" * 300_000 + ".") * 3, urlsafe_b64encode(b"[" * 9_000).decode() + ".e30.e30"],
)  # fmt: skip
async def test_what_is_no_token_is_refused_cheaply(server: IssuerServer, door: Door, token: str) -> None:
    assert not await door.lets_in(token)
    assert server.paths == []


async def test_a_megabyte_of_claims_is_refused(server: IssuerServer, door: Door) -> None:
    assert not await door.lets_in(signed(claims(server.url, more="x" * 1_000_000)))
    assert server.paths == []


async def test_encrypted_and_nested_tokens_are_refused(server: IssuerServer, door: Door) -> None:
    inner = signed(claims(server.url)).encode()
    sealing = {"alg": "RSA-OAEP-256", "enc": "A256GCM"}
    assert not await door.lets_in(jwe.encrypt_compact(sealing, inner, RSA, algorithms=list(sealing.values())))
    assert not await door.lets_in(signed(inner))
    assert not await door.lets_in(signed(b'"text"'))


@pytest.mark.parametrize(
    "changes",
    [{"nonce": "n", "scope": None}, {"scope": None, "client_id": None}, {"at_hash": "x"}, {"c_hash": "x"},
     {"typ": "ID"}, {"typ": "Refresh"}, {"token_use": "id"}],
)  # fmt: skip
async def test_an_id_token_opens_nothing(server: IssuerServer, door: Door, changes: dict[str, Any]) -> None:
    for typ in ("JWT", None):
        assert await door.lets_in(signed(claims(server.url), typ=typ))
        assert not await door.lets_in(signed(claims(server.url, **changes), typ=typ))


# -- keys of the issuer


async def test_keys_are_fetched_when_first_needed_and_kept(server: IssuerServer, door: Door) -> None:
    assert server.fetches == 0
    for _ in range(3):
        assert await door.lets_in(signed(claims(server.url)))
        assert await door.lets_in(signed(claims(server.url), EC, "ES256"))
    assert server.fetches == 1


async def test_many_who_come_at_once_cause_one_fetch(server: IssuerServer, door: Door) -> None:
    tokens = [signed(claims(server.url, jti=number)) for number in range(20)]
    assert all(await asyncio.gather(*map(door.lets_in, tokens)))
    assert server.fetches == 1


async def test_a_thousand_unknown_keys_cause_one_fetch(server: IssuerServer, door: Door, clock: ManualClock) -> None:
    assert await door.lets_in(signed(claims(server.url)))
    clock.advance(AGAIN_SECONDS)
    parts = signed(claims(server.url), OTHER).split(".")
    odd = ["../../etc/passwd", "http://127.0.0.1:1/", "\x00", "' OR 1=1", *(f"kid-{number}" for number in range(1_000))]
    tokens = [".".join((_text({"alg": "RS256", "kid": kid}), *parts[1:])) for kid in odd]
    assert not any([await door.lets_in(token) for token in tokens])
    assert server.fetches == 2
    assert set(server.paths) == {"/.well-known/openid-configuration", "/jwks"}


async def test_a_rotated_key_is_found_and_the_old_one_forgotten(
    server: IssuerServer, door: Door, clock: ManualClock
) -> None:
    old, new = signed(claims(server.url)), signed(claims(server.url), OTHER)
    assert await door.lets_in(old)
    server.keys = [OTHER]
    assert not await door.lets_in(new)
    clock.advance(AGAIN_SECONDS)
    assert await door.lets_in(new)
    assert not await door.lets_in(old)


async def test_while_new_keys_are_fetched_the_old_ones_are_good(
    server: IssuerServer, door: Door, clock: ManualClock
) -> None:
    """Those who come with the new one wait for it, all of them for the same fetch; others wait for nothing."""
    assert await door.lets_in(signed(claims(server.url)))
    clock.advance(AGAIN_SECONDS)
    server.keys, server.hold = [RSA, OTHER], asyncio.Event()
    asked = len(server.paths)
    news = [asyncio.create_task(door.lets_in(signed(claims(server.url, jti=n), OTHER))) for n in range(5)]
    await until(lambda: len(server.paths) == asked + 1)
    assert await door.lets_in(signed(claims(server.url, jti="other")))
    assert not any(each.done() for each in news)
    server.hold.set()
    assert await asyncio.gather(*news) == [True] * 5
    assert server.fetches == 2
    assert await door.lets_in(signed(claims(server.url)))


async def test_keys_are_fetched_again_every_hour(server: IssuerServer, door: Door, clock: ManualClock) -> None:
    token = signed(claims(server.url, exp=SECONDS + 9_000))
    assert await door.lets_in(token)
    clock.advance(KEPT_SECONDS + 1)
    assert await door.lets_in(token)
    await until(lambda: server.fetches == 2)


async def test_known_keys_outlive_an_issuer_that_is_away(server: IssuerServer, door: Door, clock: ManualClock) -> None:
    assert await door.lets_in(signed(claims(server.url, exp=SECONDS + 9_000)))
    server.answers["/jwks"] = web.Response(status=500)
    clock.advance(KEPT_SECONDS + 1)
    assert await door.lets_in(signed(claims(server.url, exp=SECONDS + 9_000, jti=2)))
    assert not await door.lets_in(signed(claims(server.url, exp=SECONDS + 9_000), OTHER))
    await door.issuer.close()


async def test_a_token_without_a_key_id_takes_the_only_key_there_is(server: IssuerServer, clock: ManualClock) -> None:
    assert not await Door(server.url, clock).lets_in(signed(claims(server.url), kid=None))
    server.keys = [RSA]
    assert await Door(server.url, clock).lets_in(signed(claims(server.url), kid=None))


@pytest.mark.parametrize(
    "answers",
    [
        {"/.well-known/openid-configuration": web.json_response({"issuer": "https://evil.example", "jwks_uri": "x"})},
        {"/.well-known/openid-configuration": web.Response(body=b"not json")},
        {"/.well-known/openid-configuration": web.Response(body=b"[" * 100_000)},
        {"/jwks": web.Response(body=b" " * (BYTES_MAX + 1))},
        {"/jwks": web.json_response([])},
        {"/jwks": web.json_response({"keys": "x"})},
        {"/jwks": web.json_response({"keys": []})},
        {"/jwks": web.json_response({"keys": [RSA.as_dict(private=False)] * 101})},
        {
            "/jwks": web.json_response(
                {"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "rsa"}, {"kty": "RSA", "n": "x"}]}
            )
        },
        {"/jwks": web.json_response({"keys": [{**RSA.as_dict(private=False), "use": "enc"}]})},
        {"/jwks": web.json_response({"keys": [RSA.as_dict(private=True)]})},
    ],
)
async def test_an_issuer_that_lies_is_not_believed(
    server: IssuerServer, door: Door, answers: dict[str, web.Response], caplog: pytest.LogCaptureFixture
) -> None:
    server.answers = answers
    with pytest.raises(IssuerUnavailable):
        await door.tokens.find(signed(claims(server.url)))
    assert server.url in caplog.text


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("document", ["/.well-known/openid-configuration", "/jwks"])
async def test_an_issuer_that_redirects_is_not_followed(
    server: IssuerServer, door: Door, document: str, status: int
) -> None:
    """What it leads to would be good."""
    server.answers["/elsewhere"] = web.json_response(
        {"issuer": server.url, "jwks_uri": f"{server.url}/jwks"}
        if "well-known" in document
        else {"keys": [RSA.as_dict(private=False)]}
    )
    server.answers[document] = web.Response(status=status, headers={"location": f"{server.url}/elsewhere"})
    with pytest.raises(IssuerUnavailable):
        await door.tokens.find(signed(claims(server.url)))
    assert "/elsewhere" not in server.paths


@pytest.mark.parametrize("uri", ["/jwks", "file:///etc/passwd", "ftp://127.0.0.1/jwks", 7, None, "gopher://x"])
async def test_keys_come_over_http_only(server: IssuerServer, door: Door, uri: Any) -> None:
    server.discovery = {"jwks_uri": uri}
    with pytest.raises(IssuerUnavailable):
        await door.tokens.find(signed(claims(server.url)))
    assert server.fetches == 0


@pytest.mark.parametrize(("path", "seconds"), [("/large", 60.0), ("/slow", 0.2)])
async def test_an_issuer_that_serves_a_hundred_megabytes_or_drips_is_cut_off(
    server: IssuerServer, door: Door, monkeypatch: pytest.MonkeyPatch, path: str, seconds: float
) -> None:
    monkeypatch.setattr(issuer_module, "FETCH_SECONDS", seconds)
    server.discovery = {"jwks_uri": f"{server.url}{path}"}
    with pytest.raises(IssuerUnavailable):
        await door.tokens.find(signed(claims(server.url)))


async def test_an_issuer_that_hangs_is_given_up_and_asked_again_later(
    server: IssuerServer,
    door: Door,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.hold = asyncio.Event()
    tokens = [signed(claims(server.url, jti=number)) for number in range(5)]
    with monkeypatch.context() as hasty:
        hasty.setattr(issuer_module, "FETCH_SECONDS", 0.2)
        answers = await asyncio.gather(*map(door.tokens.find, tokens), return_exceptions=True)
        assert [type(answer) for answer in answers] == [IssuerUnavailable] * 5
        with pytest.raises(IssuerUnavailable):
            await door.tokens.find(tokens[0])
    assert caplog.messages == [f"the keys of the issuer {server.url} can't be had: TimeoutError"], "asked once"
    server.hold.set()
    clock.advance(AGAIN_SECONDS)
    monkeypatch.setattr(issuer_module, "FETCH_SECONDS", 60.0)
    assert await door.lets_in(tokens[0])


async def test_short_keys_are_passed_over(server: IssuerServer, door: Door) -> None:
    with pytest.warns(SecurityWarning):
        weak = RSAKey.generate_key(1024, {"kid": "weak"}, auto_kid=False)
    server.keys = [weak, RSA]
    assert not await door.lets_in(signed(claims(server.url), weak))
    assert await door.lets_in(signed(claims(server.url)))


def test_the_skew_is_what_is_promised() -> None:
    assert SKEW_SECONDS == 30
    assert round(AGAIN_SECONDS) * SECOND == 10 * SECOND
