"""The device grant at an issuer that keeps to PKCE, and at one that says no."""

from __future__ import annotations

import json
import threading
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

import pytest

from horarium.client.sign_in import ClientAtIssuer, SignInRefused, ask_for_device, discover, wait_for_device


class Issuer(ThreadingHTTPServer):
    """Gives a token for a device code after some `pending` asks, to who proves to be the one that asked for it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.pending: list[str] = []
        self.challenges: list[str] = []
        self.forms: list[dict[str, str]] = []

    def token(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.forms.append(form)
        if self.pending:
            return 400, {"error": self.pending.pop(0)}
        proof = urlsafe_b64encode(sha256(form.get("code_verifier", "").encode()).digest()).decode().rstrip("=")
        if proof != self.challenges[-1]:
            return 400, {"error": "invalid_grant", "error_description": "PKCE verification failed"}
        return 200, {"access_token": "good", "expires_in": 60}

    def device(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if form.get("code_challenge_method") != "S256":
            return 400, {"error": "invalid_request", "error_description": "Missing parameter: code_challenge_method"}
        self.challenges.append(form["code_challenge"])
        return 200, {"device_code": "d", "user_code": "A-B", "verification_uri": f"{self.url}/device", "interval": 5}


class Handler(BaseHTTPRequestHandler):
    server: Issuer

    def do_GET(self) -> None:
        url = self.server.url
        self._say(
            200,
            {"issuer": url, "token_endpoint": f"{url}/token", "device_authorization_endpoint": f"{url}/device"},
        )

    def do_POST(self) -> None:
        form = dict(parse_qsl(self.rfile.read(int(self.headers["content-length"])).decode()))
        self._say(*(self.server.token(form) if self.path == "/token" else self.server.device(form)))

    def _say(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


def test_who_ends_it_proves_to_be_who_began_it(issuer: Issuer) -> None:
    client = ClientAtIssuer(issuer=issuer.url, client_id="c", client_secret="s")
    found = discover(issuer.url)
    devices = [ask_for_device(client, found) for _ in range(2)]
    assert len(set(issuer.challenges)) == 2
    issuer.pending = ["authorization_pending", "slow_down", "authorization_pending"]
    waits: list[float] = []
    assert wait_for_device(client, found, devices[1], waits.append).access_token == "good"
    assert waits == [5, 5, 10, 10]
    assert {(form["client_id"], form["client_secret"], form["device_code"]) for form in issuer.forms} == {
        ("c", "s", "d")
    }
    with pytest.raises(SignInRefused, match="PKCE verification failed"):
        wait_for_device(client, found, devices[0], waits.append)


def test_a_sign_in_that_is_refused_or_never_ended_is_given_up(issuer: Issuer) -> None:
    client = ClientAtIssuer(issuer=issuer.url, client_id="c")
    found = discover(issuer.url)
    device = ask_for_device(client, found)
    issuer.pending = ["access_denied"]
    with pytest.raises(SignInRefused, match="access_denied"):
        wait_for_device(client, found, device, lambda seconds: None)
    issuer.pending = ["authorization_pending"] * 1_000
    with pytest.raises(SignInRefused, match="not entered in time"):
        wait_for_device(client, found, device, lambda seconds: None)
    assert len(issuer.forms) == 1 + 600 / 5
