"""Under which names the server answers: a page that gives its own host name our address gets nothing."""

from __future__ import annotations

import pytest

from horarium.api.hosts import Hosts, allowed_hosts, host_of

from .conftest import Api, a_definition, ask

HERE = Hosts()
BEYOND = allowed_hosts(["0.0.0.0", "jobs.example.com", "*.internal.example"], addresses=True)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8080",
        "LOCALHOST.",
        "app.localhost:1",
        "127.0.0.1",
        "127.9.9.9:8080",
        "[::1]",
        "[::1]:80",
        "[::ffff:127.0.0.1]:80",
    ],
)
def test_names_of_this_machine_are_answered_everywhere(host: str) -> None:
    assert HERE.allow(host)
    assert BEYOND.allow(host)


@pytest.mark.parametrize(
    "host",
    ["", " ", "evil.example", "evil.example:8080", "localhost.evil.example", "notlocalhost", "127.0.0.1.evil.example",
     "user@localhost", "localhost/x", "localhost#", "localhost,evil.example", "localhost:x", "[::1", "127.1", "0x7f.1",
     "2130706433", "[::ffff:127.0.0.1]x", "[::1]x", "[::1]80", "localhost\\evil", "..", "10.0.0.1", "0.0.0.0",
     "[fe80::1]", "[::]"],
)  # fmt: skip
def test_a_server_on_loopback_answers_to_nothing_else(host: str) -> None:
    assert not HERE.allow(host)


@pytest.mark.parametrize(
    "host",
    ["jobs.example.com:443", "Jobs.Example.Com.", "a.internal.example", "a.b.internal.example", "10.1.2.3:8080",
     "[2001:db8::1]"],
)  # fmt: skip
def test_a_server_beyond_loopback_answers_to_its_names_and_to_addresses(host: str) -> None:
    assert BEYOND.allow(host)


@pytest.mark.parametrize("host", ["example.com", "x.jobs.example.com", "internal.example", "evilinternal.example"])
def test_a_name_near_an_allowed_one_is_another(host: str) -> None:
    assert not BEYOND.allow(host)


def test_an_address_given_as_host_is_a_name_of_the_server_in_any_spelling() -> None:
    hosts = allowed_hosts(["fe80::0001"], addresses=False)
    assert hosts.allow("[fe80::1]:8080")
    assert not hosts.allow("[fe80::2]:8080")


def test_the_host_of_an_authority() -> None:
    assert host_of("[2001:DB8::1]:80") == "2001:db8::1"
    assert host_of("::1") == "::1"
    assert host_of(":80") is None


@pytest.mark.parametrize("key", [None, "first-key-1234"])
async def test_another_name_is_misdirected_whatever_is_asked(key: str | None) -> None:
    api = Api(api_keys=[key] if key else [])
    headers = {"host": "evil.example", **({"authorization": f"Bearer {key}"} if key else {})}
    for method, path in (
        ("GET", "/jobs"),
        ("POST", "/jobs"),
        ("GET", "//"),
        ("GET", "//metrics"),
    ):
        body = a_definition() if method == "POST" else None
        reply = await api.send(method, path, body, headers=headers)
        assert (reply.status, reply.code) == (421, "wrong_host")
    assert 'horarium_requests_refused_total{reason="host"} 4.0' in api.telemetry.render()[0].decode()


async def test_a_probe_by_the_name_of_a_service_is_answered_with_a_status_alone() -> None:
    api = Api(api_keys=["first-key-1234"])
    for path in ("//healthz", "//readyz"):
        assert (await api.get(path, headers={"host": "horarium.jobs.svc"})).status == 200
    assert (await api.get("//metrics", headers={"host": "horarium.jobs.svc"})).status == 421


async def test_a_page_that_took_our_address_is_not_its_own_server(api: Api) -> None:
    rebound = {"host": "evil.example:80", "origin": "http://evil.example:80", "sec-fetch-site": "same-origin"}
    assert (await api.post("/jobs", a_definition(), headers=rebound)).status == 421
    assert (await api.get("/jobs")).json["items"] == []


async def test_a_request_has_one_host(api: Api) -> None:
    assert (await ask(api.app, "GET", "/healthz", {})).code == "malformed_request"
    assert (await ask(api.app, "GET", "/healthz", {"host": "testserver", "Host": "testserver"})).status == 400
