"""A browser reduced to what these tests need: cookies, forms with their hidden fields, and the text of a page."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from urllib.parse import urlencode

from tests.api.conftest import Api, Reply

FORM = "application/x-www-form-urlencoded"


class Visitor:
    """Keeps its cookies from page to page."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.cookies: dict[str, str] = {}
        self.page = ""

    async def open(self, path: str, **headers: str) -> Reply:
        """Ask for a page."""
        return self._seen(await self.api.send("GET", f"/{path}", headers=self._headers(headers)))

    async def post(self, path: str, csrf: str | None = None, **fields: str | list[str]) -> Reply:
        """Send a form of the last page; `csrf`: another token than that page's."""
        pairs = [("csrf", self.csrf if csrf is None else csrf)]
        for name, value in fields.items():
            pairs += [(name, each) for each in ([value] if isinstance(value, str) else value)]
        body = urlencode(pairs).encode()
        headers = self._headers({"content-type": FORM, "content-length": str(len(body))})
        return self._seen(await self.api.send("POST", f"/{path}", body, headers=headers))

    @property
    def csrf(self) -> str:
        """The token that the last page's forms carry."""
        found = re.search(r'name="csrf" value="([0-9a-f]+)"', self.page)
        return found[1] if found else ""

    @property
    def text(self) -> str:
        """The last page's text, as people see it."""
        return text_of(self.page)

    def _headers(self, more: dict[str, str]) -> dict[str, str]:
        given = {name.replace("_", "-"): value for name, value in more.items()}
        if self.cookies:
            given["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return given

    def _seen(self, reply: Reply) -> Reply:
        cookie = reply.headers.get("set-cookie", "")
        name, _, rest = cookie.partition("=")
        if name:
            self.cookies[name] = rest.partition(";")[0]
        if reply.headers.get("content-type", "").startswith("text/html"):
            self.page = reply.body.decode()
        return reply


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def text_of(page: str) -> str:
    """What stands on a page, white space joined."""
    reader = _Text()
    reader.feed(page)
    return " ".join(unescape(" ".join(reader.parts)).split())
