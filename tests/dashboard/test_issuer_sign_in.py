"""Sign-in of people at a real OpenID Connect provider, as their browser goes through it.

The dashboard is addressed as `localhost` and the provider as `127.0.0.1`: two sites, so cookies that stay at home do.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.async_api import Browser, Route, expect

from horarium.access.people import Attempt
from tests.dashboard.browsing import PATIENCE_MS, browser
from tests.dashboard.visitor import text_of
from tests.servers.live import LiveServer, live_server
from tests.servers.oidc import AUDIENCE, OidcProvider, Person, loopback_jar
from tests.waiting import eventually

pytestmark = pytest.mark.slow

__all__ = ["browser"]
KEY = "first-key-1234567890"


@pytest.fixture(scope="module")
def provider() -> Iterator[OidcProvider]:
    provider = OidcProvider()
    provider.start()
    try:
        yield provider
    finally:
        provider.stop()


@pytest.fixture(scope="module")
def server(provider: OidcProvider) -> Iterator[LiveServer]:
    with live_server(
        [KEY],
        issuer=provider.url,
        audience=AUDIENCE,
        pages=True,
        port=provider.dashboard_port,
        client=("dashboard", "dashboard-secret"),
    ) as server:
        server.url = f"http://localhost:{server.port}"
        yield server


class Stop(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class Tab:
    """A browser without a head, that follows no redirect by itself."""

    def __init__(self, server: LiveServer | str) -> None:
        self.jar = CookieJar()
        self._at = server if isinstance(server, str) else server.url
        self._open = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(self.jar), Stop()
        ).open

    def get(self, path: str, **headers: str) -> tuple[int, str, Any]:
        """Status, page and headers."""
        url = path if path.startswith("http") else self._at + path
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            with self._open(urllib.request.Request(url, headers=given), timeout=60) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(), error.headers

    def begin(self, to: str = "/") -> str:
        """To the issuer: its address."""
        status, _, headers = self.get(f"/sign-in/issuer?next={to}")
        assert status == 303
        return str(headers["location"])

    def cookie(self, name: str) -> str | None:
        return next((cookie.value for cookie in self.jar if cookie.name == name), None)


class Returning(Person):
    """Goes through the forms of the issuer, and stops where it sends them back."""

    def back(self, url: str) -> str:
        class Seen(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
                if "/sign-in/callback" in newurl:
                    raise _Back(newurl)
                return super().redirect_request(req, fp, code, msg, headers, newurl)

        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(loopback_jar()), Seen()
        )
        self._open = opener.open
        try:
            self.visit(url)
        except _Back as back:
            return back.url
        raise AssertionError("the issuer did not send anyone back")


class _Back(Exception):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


def test_the_issuer_is_asked_for_a_code_with_all_that_binds_it(server: LiveServer, provider: OidcProvider) -> None:
    tab = Tab(server)
    assert f"Sign in with 127.0.0.1:{provider.port}" in text_of(tab.get("/sign-in")[1])
    asked = {name: values[0] for name, values in parse_qs(urlsplit(tab.begin()).query).items()}
    secret = (tab.cookie("horarium_sign_in") or "").partition(".")[0]
    attempt = Attempt(secret)
    assert asked == {
        "response_type": "code",
        "client_id": "dashboard",
        "redirect_uri": f"{server.url}/sign-in/callback",
        "scope": "openid profile",
        "state": attempt.state,
        "nonce": attempt.nonce,
        "code_challenge": attempt.challenge,
        "code_challenge_method": "S256",
        "resource": AUDIENCE,
    }
    assert len({attempt.state, attempt.nonce, attempt.verifier, attempt.challenge, secret}) == 5
    assert Attempt("other").state != attempt.state
    second = Tab(server)
    second.begin()
    assert second.cookie("horarium_sign_in") != tab.cookie("horarium_sign_in")


def test_a_person_comes_back_signed_in_and_may_do_what_their_role_allows(
    server: LiveServer, provider: OidcProvider
) -> None:
    tab = Tab(server)
    back = Returning("viewer-ann").back(tab.begin("/runs%3Fstate%3Dfailed"))
    status, page, headers = tab.get(back)
    assert (status, "content=\"0; url='/runs?state=failed'\"" in page) == (200, True)
    given = {text.partition("=")[0]: text for text in headers.get_all("set-cookie")}
    assert all(part in given["horarium_session"] for part in ("HttpOnly", "SameSite=Strict", "Path=/"))
    assert tab.cookie("horarium_sign_in") is None
    assert tab.get("/runs?state=failed")[0] == 200
    assert tab.get("/audit")[0] == 403
    assert tab.get("/api/v1/me")[0] == 401, "the API takes no cookie"

    # The code is spent, and its attempt is forgotten.
    status, page, _ = tab.get(back)
    assert (status, "began no sign-in lately" in text_of(page)) == (401, True)


def test_signing_in_again_gives_another_session(server: LiveServer) -> None:
    tab, tokens = Tab(server), []
    for _ in range(2):
        tab.get(Returning("viewer-bob").back(tab.begin()))
        tokens.append(tab.cookie("horarium_session"))
    assert tokens[0] != tokens[1]
    assert None not in tokens


def test_an_answer_to_another_browser_signs_no_one_in(server: LiveServer) -> None:
    # An attacker signs in and hands the victim the address of the last step, or the victim's code is used elsewhere.
    attacker, victim = Tab(server), Tab(server)
    back = Returning("admin-eve").back(attacker.begin())
    victim.begin()
    status, page, _ = victim.get(back)
    assert (status, "belongs to no sign-in" in text_of(page)) == (401, True)
    assert victim.cookie("horarium_session") is None
    code = parse_qs(urlsplit(back).query)["code"][0]
    victim.begin()
    state = Attempt((victim.cookie("horarium_sign_in") or "").partition(".")[0]).state
    status, page, _ = victim.get(f"/sign-in/callback?code={code}&state={state}")
    assert (status, "refused" in text_of(page)) == (401, True), "the code was made for another verifier"
    assert victim.cookie("horarium_session") is None


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("error=access_denied&error_description=you+said+%3Cno%3E", "refused: you said <no>"),
        ("", "it gave no reason"),
        ("code=made-up", "refused"),
        ("code=x&iss=http://evil.example", "of another issuer"),
    ],
)
def test_a_failure_is_shown_beside_the_button(server: LiveServer, query: str, said: str) -> None:
    tab = Tab(server)
    asked = parse_qs(urlsplit(tab.begin("/jobs")).query)
    status, page, _ = tab.get(f"/sign-in/callback?{query}&state={asked['state'][0]}")
    assert (status, said in text_of(page)) == (401, True)
    button = page.index("Sign in with")
    assert button < page.index('id="issuer-error"') < page.index('name="key"')
    assert 'name="next" value="/jobs"' in page
    assert tab.cookie("horarium_session") is None


def test_who_has_no_role_is_told_so(server: LiveServer) -> None:
    tab = Tab(server)
    status, page, _ = tab.get(Returning("nobody-dot").back(tab.begin()))
    assert (status, "nobody-dot has no role here" in text_of(page)) == (401, True)


def test_failures_are_in_the_audit(server: LiveServer) -> None:
    assert Tab(server).get("/sign-in/callback?code=x&state=y")[0] == 401
    request = urllib.request.Request(
        f"{server.url}/api/v1/audit?action=sign-in", headers={"authorization": f"Bearer {KEY}"}
    )

    def told() -> bool:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return any("at the issuer failed" in item["after"]["why"] for item in json.load(answer)["items"])

    eventually(told, what="the entry of a failed sign-in")


def test_a_link_on_another_site_finds_the_person_signed_in(server: LiveServer) -> None:
    tab = Tab(server)
    status, page, _ = tab.get("/jobs/x?y='%22", sec_fetch_site="cross-site")
    assert status == 200
    assert "content=\"0; url='/jobs/x?y=%27%22'\"" in page
    assert tab.get("/jobs/x", sec_fetch_site="same-origin")[0] == 303
    assert tab.get("/jobs/x")[0] == 303


def test_an_issuer_that_is_away_is_said_to_be(provider: OidcProvider) -> None:
    with live_server([KEY], issuer="http://127.0.0.1:9", audience=AUDIENCE, pages=True, client=("x", None)) as away:
        status, page, _ = Tab(away).get("/sign-in/issuer")
    assert (status, "127.0.0.1:9 does not answer" in text_of(page)) == (401, True)


def test_where_no_client_is_set_there_is_no_button(provider: OidcProvider) -> None:
    with live_server([KEY], issuer=provider.url, audience=AUDIENCE, pages=True) as plain:
        assert "Sign in with" not in text_of(Tab(plain).get("/sign-in")[1])
        assert Tab(plain).get("/sign-in/issuer")[0] == 404


async def test_a_browser_goes_to_the_issuer_and_comes_back(
    browser: Browser, server: LiveServer, provider: OidcProvider
) -> None:
    context = await browser.new_context(base_url=server.url)
    page = await context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    await page.goto("/jobs?state=paused")
    await page.get_by_role("link", name="Sign in with").click()
    await page.locator("input[name=login]").fill("operator-cid")
    await page.locator("input[name=password]").fill("any")
    await page.get_by_role("button", name="Sign-in").click()
    await page.get_by_role("button", name="Continue").click()
    await page.wait_for_url("**/jobs?state=paused")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    (session,) = [cookie for cookie in await context.cookies() if cookie.get("name") == "horarium_session"]
    assert (session.get("httpOnly"), session.get("sameSite")) == (True, "Strict")

    # From a page of another site, by a link: the cookie does not come along at first.
    await page.goto(f"{provider.url}/none")
    await page.evaluate(f"location.href = '{server.url}/runs'")
    await page.wait_for_url("**/runs")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Runs")

    # The page finds its session ended before the answer to the form has come.
    looked = asyncio.Event()
    page.on("console", lambda said: looked.set() if said.text == "looked twice" else None)

    async def late(route: Route) -> None:
        await looked.wait()
        await route.continue_()

    await page.route("**/sign-out", late)
    await page.evaluate("""() => addEventListener("beforeunload", () => {
        let times = 0;
        window.fetch = async () => {
            if (++times === 2) console.log("looked twice");
            return { ok: false, type: "opaqueredirect", status: 0 };
        };
        setInterval(() => look(true), 50);
    })""")
    await page.get_by_role("button", name="Sign out").first.click()
    await page.wait_for_url("**/sign-in")
    await page.goto("/runs")
    await page.wait_for_url("**/sign-in?next=*")
    await context.close()
    assert wrong == []
