"""Cookies of the dashboard behind a proxy that ends TLS: the server hears clear text, browsers must not speak it."""

from __future__ import annotations

import pytest

from tests.api.conftest import Api
from tests.dashboard.visitor import Visitor

pytestmark = pytest.mark.slow

KEY = "first-key-1234"


async def cookie_of_a_sign_in(public_url: str | None) -> str:
    visitor = Visitor(Api([KEY], pages=True, public_url=public_url))
    await visitor.open("/sign-in")
    reply = await visitor.post("/sign-in", key=KEY, next="/")
    assert reply.status == 303
    cookie: str = reply.headers["set-cookie"]
    assert cookie.startswith("horarium_session=")
    return cookie


@pytest.mark.parametrize("url", ["https://testserver", "https://testserver:8443/"])
async def test_cookies_behind_tls_are_for_tls_alone(url: str) -> None:
    """A proxy may pass `Host` on without the port."""
    assert "Secure" in (await cookie_of_a_sign_in(url)).split("; ")


@pytest.mark.parametrize("url", [None, "http://testserver", "https://jobs.example.com"])
async def test_who_comes_by_clear_text_can_sign_in(url: str | None) -> None:
    assert "Secure" not in await cookie_of_a_sign_in(url)
