"""Signing in at a real OpenID Connect provider, and everything after that in one's own name."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from horarium.cli.signed_in import EARLY_SECONDS
from tests.blackbox.outside import environment
from tests.cli.test_processes import HORARIUM
from tests.servers.live import LiveServer, live_server
from tests.servers.oidc import AUDIENCE, OidcProvider, Person
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

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
    with live_server([KEY], issuer=provider.url, audience=AUDIENCE) as server:
        yield server


class Terminal:
    """A terminal with a home of its own."""

    def __init__(self, folder: Path, url: str, port: int) -> None:
        self.tokens = folder / "horarium" / "tokens.json"
        self._port = port
        self._environment = environment({"XDG_CONFIG_HOME": str(folder), "HORARIUM_URL": url})

    def run(self, *args: str, status: int = 0) -> str:
        done = subprocess.run(
            [*HORARIUM, *args], capture_output=True, text=True, timeout=PATIENCE, env=self._environment, check=False
        )
        assert done.returncode == status, (done.stdout, done.stderr)
        return done.stdout if status == 0 else done.stderr

    def json(self, *args: str) -> Any:
        return json.loads(self.run(*args, "--json"))

    def login(self, person: Person, *args: str, status: int = 0) -> str:
        """Begin to sign in, have the person do what the terminal asks for, and end it."""
        with subprocess.Popen(
            [*HORARIUM, "login", "--no-browser", "--port", str(self._port), *args],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self._environment,
        ) as begun:  # fmt: skip
            try:
                assert begun.stderr is not None
                told = ""
                while not re.search(r"sign in: http|or open http", told) and (line := begun.stderr.readline()):
                    told += line
                found = re.findall(r"(http\S+)", told)
                assert found, told
                person.visit(found[-1])
                out, error = begun.communicate(timeout=PATIENCE)
            finally:
                begun.kill()
        assert begun.returncode == status, error
        return out if status == 0 else told + error

    def age(self) -> None:
        """Make the access token be about to end."""
        kept = json.loads(self.tokens.read_text())
        for each in kept.values():
            each["tokens"]["expires_at"] -= 600 - EARLY_SECONDS
        self.tokens.write_text(json.dumps(kept))


@pytest.fixture
def terminal(tmp_path: Path, server: LiveServer, provider: OidcProvider) -> Terminal:
    return Terminal(tmp_path, server.url, provider.redirect_port)


def test_a_person_signs_in_and_acts_in_their_own_name(terminal: Terminal, server: LiveServer) -> None:
    assert "unauthorized" in terminal.run("job", "list", "--json", status=1)
    said = terminal.login(Person("editor-ann"))
    assert said == f"Signed in to {server.url} as editor-ann (editor).\n"
    assert stat.S_IMODE(os.stat(terminal.tokens).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(terminal.tokens.parent).st_mode) == 0o700
    me = terminal.json("whoami")
    assert (me["subject"], me["kind"], me["roles"]) == ("editor-ann", "oidc", ["editor"])

    terminal.run("job", "add", "nightly", "--every", "1h", "--queue", "reports")
    terminal.run("job", "pause", "nightly", "--reason", "moving")
    assert "forbidden" in terminal.run("audit", "list", "--json", status=1)
    admin = ("--api-key", KEY)
    (paused, made) = terminal.json("audit", "list", "--job", "nightly", *admin)
    assert (made["action"], made["actor"]) == ("job.create", "editor-ann")
    assert (paused["actor"], paused["kind"], paused["action"]) == ("editor-ann", "oidc", "job.pause")
    assert (paused["before"]["enabled"], paused["after"]["enabled"]) == (True, False)
    table = terminal.run("audit", "list", "--object", "job/nightly", "--action", "job.pause", *admin)
    assert re.search(r"editor-ann +job.pause +job/nightly +done +enabled true -> false", table)

    versions = terminal.json("job", "versions", "nightly")
    assert [each["action"] for each in versions] == ["job.pause", "job.create"]
    assert "enabled true -> false" in terminal.run("job", "versions", "nightly")
    terminal.run("job", "revert", "nightly")
    assert terminal.json("job", "show", "nightly")["enabled"] is True
    terminal.run("job", "revert", "nightly", str(versions[0]["version"]))
    assert terminal.json("job", "show", "nightly")["enabled"] is False
    assert "no version" in terminal.run("job", "revert", "nightly", "--version", "999", status=1)

    assert terminal.run("logout") == f"Signed out of {server.url}.\n"
    assert "unauthorized" in terminal.run("whoami", "--json", status=1)
    assert terminal.json("logout")["was_signed_in"] is False


def test_a_token_that_ends_is_refreshed_once_for_many_commands(terminal: Terminal) -> None:
    terminal.login(Person("viewer-bob"))
    first = json.loads(terminal.tokens.read_text())
    terminal.age()
    failures: list[BaseException] = []

    def command() -> None:
        try:
            terminal.run("whoami")
        except BaseException as failure:
            failures.append(failure)

    # A refresh token is taken once: with two that come at a time, the second would end the sign-in for good.
    at_once = [threading.Thread(target=command) for _ in range(3)]
    for each in at_once:
        each.start()
    for each in at_once:
        each.join(PATIENCE)
    assert failures == []
    second = json.loads(terminal.tokens.read_text())
    (before,), (after,) = first.values(), second.values()
    assert before["tokens"]["access_token"] != after["tokens"]["access_token"]
    assert stat.S_IMODE(os.stat(terminal.tokens).st_mode) == 0o600

    assert terminal.json("logout") | {"url": ""} == {"url": "", "was_signed_in": True, "revoked": True}
    terminal.tokens.write_text(json.dumps(second))
    terminal.age()
    assert "horarium login" in terminal.run("whoami", status=1)


def test_the_device_grant_needs_no_browser_here(terminal: Terminal) -> None:
    said = terminal.login(Person("operator-cid"), "--device", "--json")
    me = json.loads(said)
    assert (me["subject"], me["roles"]) == ("operator-cid", ["operator"])
    assert "jobs:write" not in terminal.json("whoami")["scopes"]


def test_scopes_that_are_asked_for_count(terminal: Terminal) -> None:
    said = json.loads(terminal.login(Person("nobody-dot"), "--scope", "openid runs:read", "--json"))
    assert (said["roles"], said["scopes"]) == ([], ["runs:read"])
    assert "forbidden" in terminal.run("job", "list", "--json", status=1)
    assert terminal.json("run", "list") == []


def test_another_page_can_neither_end_nor_complete_a_sign_in(terminal: Terminal, provider: OidcProvider) -> None:
    class Attacked(Person):
        def visit(self, url: str) -> str:
            for query in ("?code=stolen&state=guessed", "?error=access_denied", "?code=x", ""):
                back = f"http://127.0.0.1:{provider.redirect_port}/callback{query}"
                with pytest.raises(urllib.error.HTTPError):
                    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(back, timeout=10).close()
            return super().visit(url)

    assert "viewer-eve" in terminal.login(Attacked("viewer-eve"))


def test_what_is_wrong_with_a_sign_in_is_said(terminal: Terminal, provider: OidcProvider) -> None:
    assert "no answer from" in terminal.run("login", "--url", "http://127.0.0.1:9", status=1)
    assert "can't be reached" in terminal.run("login", "--issuer", "http://127.0.0.1:9", status=1)
    assert "calls itself" in terminal.run("login", "--issuer", provider.url + "/", status=2)
    assert "refused" in terminal.run("login", "--device", "--client-id", "none", status=1)
    with live_server() as open_server:
        assert "trusts no issuer" in terminal.run("login", "--url", open_server.url, status=2)
        assert terminal.json("whoami", "--url", open_server.url)["kind"] == "local"


def test_programs_take_tokens_of_their_own(terminal: Terminal, provider: OidcProvider) -> None:
    form = (
        "grant_type=client_credentials&client_id=robot&client_secret=robot-secret&scope=work%20runs:read"
        f"&resource={AUDIENCE}"
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{provider.url}/token", data=form.encode(), timeout=30) as answer:
        token = json.load(answer)["access_token"]
    me = terminal.json("whoami", "--api-key", token)
    assert (me["subject"], me["scopes"]) == ("robot", ["runs:read", "work"])


def test_the_keys_of_programs_are_made_listed_and_revoked(terminal: Terminal, server: LiveServer) -> None:
    admin = ("--api-key", KEY)
    made = terminal.json("key", "create", "images", "--role", "worker", "--queue", "images", "--expires", "90d", *admin)
    assert (made["roles"], made["queues"]) == (["worker"], ["images"])
    assert terminal.json("whoami", "--api-key", made["key"])["queues"] == ["images"]
    assert made["key"] not in terminal.run("key", "list", *admin)
    assert [key["name"] for key in terminal.json("key", "list", *admin)] == ["images"]
    shown = terminal.run("key", "create", "ci", "--role", "viewer", *admin).strip()
    assert shown.startswith("hk_")
    terminal.run("key", "revoke", "ci", *admin)
    eventually(lambda: _refused(server, shown), what="the revoked key")
    assert "no key" in terminal.run("key", "revoke", "ci", *admin, status=1)


def _refused(server: LiveServer, key: str) -> bool:
    request = urllib.request.Request(f"{server.url}/api/v1/me", headers={"authorization": f"Bearer {key}"})
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).close()
    except urllib.error.HTTPError as error:
        with error:
            return error.code == 401
    return False


@contextmanager
def telling(place: dict[str, Any]) -> Iterator[str]:
    """A server that says this of where it takes tokens from; `resource`, if it is left out, is its own address."""

    class Rogue(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said = json.dumps({"resource": url, **place}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Rogue) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield url
        finally:
            server.shutdown()


@pytest.mark.parametrize("resource", ["https://jobs.example.com", "http://127.0.0.1:1", "", "http://127.0.0.2:8080"])
def test_a_server_that_calls_itself_another_gets_no_token(
    terminal: Terminal, provider: OidcProvider, resource: str
) -> None:
    place = {"authorization_servers": [provider.url], "horarium_client_id": "horarium", "resource": resource}
    with telling({**place, "horarium_audience": AUDIENCE}) as url:
        said = terminal.run("login", "--no-browser", "--url", url, status=2)
    assert f"calls itself {resource!r}" in said
    assert "sign in: http" not in said


def test_a_sign_in_names_the_server_for_which_the_token_will_be_good(
    terminal: Terminal, provider: OidcProvider
) -> None:
    place = {"authorization_servers": [provider.url], "horarium_client_id": "horarium"}
    with telling({**place, "horarium_audience": "production-audience"}) as url:
        said = terminal.login(Person("viewer-fay"), "--url", url, status=1)
    assert f"The token will be good for production-audience, and is given to {url}." in said
