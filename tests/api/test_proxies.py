"""Behind trusted proxies a request comes from the last foreign address on its way."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest

from horarium.api.proxies import BehindProxies, client_of
from tests.waiting import until

from .conftest import Api

TRUSTED = [ip_network("10.0.0.0/8"), ip_network("127.0.0.1"), ip_network("fd00::/8")]
PROXY = "10.1.2.3"


@pytest.mark.parametrize(
    ("peer", "headers", "found"),
    [
        (PROXY, {"x-forwarded-for": "198.51.100.7"}, "198.51.100.7"),
        (PROXY, {"x-forwarded-for": "1.2.3.4, 198.51.100.7, 10.9.9.9"}, "198.51.100.7"),
        (PROXY, {"x-forwarded-for": "1.2.3.4,, 198.51.100.7"}, "198.51.100.7"),
        (PROXY, {"x-forwarded-for": "198.51.100.7:4711"}, "198.51.100.7"),
        (PROXY, {"x-forwarded-for": "[2001:db8::7]:4711"}, "2001:db8::7"),
        (PROXY, {"x-forwarded-for": "2001:db8::7"}, "2001:db8::7"),
        ("::ffff:10.1.2.3", {"x-forwarded-for": "198.51.100.7"}, "198.51.100.7"),
        (PROXY, {"x-forwarded-for": "10.2.2.2, 10.3.3.3"}, "10.2.2.2"),
        (PROXY, {"x-forwarded-for": "1.2.3.4, unknown, 10.3.3.3"}, "10.3.3.3"),
        (PROXY, {"x-forwarded-for": "<script>"}, PROXY),
        (PROXY, {"x-forwarded-for": ""}, PROXY),
        (PROXY, {}, PROXY),
        (PROXY, {"forwarded": "for=1.2.3.4, For=198.51.100.7;proto=https;by=10.9.9.9"}, "198.51.100.7"),
        (PROXY, {"forwarded": 'proto=https; for="[2001:db8::7]:4711"'}, "2001:db8::7"),
        (PROXY, {"forwarded": "for=_hidden"}, PROXY),
        (PROXY, {"forwarded": "by=198.51.100.7"}, PROXY),
        (PROXY, {"forwarded": "for=198.51.100.7", "x-forwarded-for": "1.2.3.4, 198.51.100.7"}, "198.51.100.7"),
        (PROXY, {"forwarded": "for=1.2.3.4", "x-forwarded-for": "198.51.100.7"}, PROXY),
        ("198.51.100.7", {"x-forwarded-for": "1.2.3.4"}, "198.51.100.7"),
        ("unix", {"x-forwarded-for": "1.2.3.4"}, "unix"),
    ],
)
def test_the_last_foreign_address_counts(peer: str, headers: dict[str, str], found: str) -> None:
    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert client_of(peer, given, TRUSTED) == found


def test_headers_of_one_name_are_one_list() -> None:
    lines = [(b"x-forwarded-for", b"1.2.3.4"), (b"x-forwarded-for", b"198.51.100.7")]
    assert client_of(PROXY, lines, TRUSTED) == "198.51.100.7"


@pytest.mark.parametrize(("trusted", "address"), [(["127.0.0.0/8"], "198.51.100.7"), (["10.0.0.0/8"], "127.0.0.1")])
async def test_the_audit_has_the_address_of_the_client(locked_api: Api, trusted: list[str], address: str) -> None:
    inner, admin = locked_api.app, {"authorization": "Bearer first-key-1234"}
    locked_api.app = BehindProxies(inner, trusted)  # type: ignore[assignment]
    await locked_api.get("/jobs", headers={"authorization": "Bearer wrong", "x-forwarded-for": "198.51.100.7"})

    async def told() -> list[Any]:
        return list((await locked_api.get("/audit?action=sign-in", headers=admin)).json["items"])

    await until(told)
    assert [line["address"] for line in await told()] == [address]
