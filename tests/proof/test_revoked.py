"""A key that is revoked opens nothing on any node after five seconds, nor does a session that began with it."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar
from typing import Any

import msgspec
import pytest

from tests.proof.harness import Node
from tests.servers.postgres import Postgres
from tests.servers.redis import Redis

pytestmark = pytest.mark.proof

ADMIN = "a" * 20
SECONDS = 5.0


class Browser:
    def __init__(self, url: str) -> None:
        self.url = url
        self._open = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar())
        ).open

    def ask(self, path: str, body: Any = None, key: str | None = None, method: str | None = None) -> tuple[int, Any]:
        """Status and text; where a redirect led, it is that page's."""
        headers = {} if key is None else {"authorization": f"Bearer {key}", "content-type": "application/json"}
        data = urllib.parse.urlencode(body).encode() if key is None and body else body and msgspec.json.encode(body)
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with self._open(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def sign_in(self, key: str) -> None:
        page = self.ask("/sign-in")[1]
        csrf = re.findall(r'name="csrf" value="([0-9a-f]+)"', page)[0]
        assert self.ask("/sign-in", {"csrf": csrf, "key": key, "next": "/runs"})[0] == 200
        assert self.is_in()

    def is_in(self) -> bool:
        return "Sign in to" not in self.ask("/runs")[1]


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_a_revoked_key_ends_within_five_seconds_on_every_node(kind: str) -> None:
    server = Postgres() if kind == "postgres" else Redis()
    server.start()
    nodes = [Node(name, server.url, "--api-key", ADMIN) for name in ("one", "other")]
    try:
        one, other = (Browser(node.start().url) for node in nodes)
        status, made = one.ask("/api/v1/keys", {"name": "gone", "roles": ["viewer"]}, ADMIN)
        assert status == 201
        key = msgspec.json.decode(made)["key"]
        other.sign_in(key)
        assert [each.ask("/api/v1/jobs", key=key)[0] for each in (one, other)] == [200, 200]
        assert one.ask("/api/v1/keys/gone", key=ADMIN, method="DELETE")[0] == 204
        revoked_at = time.monotonic()
        assert one.ask("/api/v1/jobs", key=key)[0] == 401, "at once where it was revoked"
        left = {"key", "session"}
        while left:
            asked_at = time.monotonic()
            if "key" in left and other.ask("/api/v1/jobs", key=key)[0] == 401:
                left.discard("key")
            if "session" in left and not other.is_in():
                left.discard("session")
            assert not left or asked_at - revoked_at < SECONDS, left
        print(f"{kind}: over {time.monotonic() - revoked_at:.1f} s after it was revoked")
    finally:
        for node in nodes:
            node.close()
        server.stop()
