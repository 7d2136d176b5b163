"""One whole way with a real Keycloak: roles in a nested claim, both grants of `horarium login`, the sign-in of the
dashboard, and keys that are changed while people work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_sign_in import Terminal
from tests.dashboard.test_issuer_sign_in import Returning, Tab
from tests.proof.harness import Node
from tests.servers.keycloak import REALM, Keycloak
from tests.servers.oidc import Person
from tests.servers.process import free_port
from tests.waiting import eventually

pytestmark = pytest.mark.proof

AUDIENCE = "horarium-api"
DEVICE = "oauth2.device.authorization.grant.enabled"
PKCE = "pkce.code.challenge.method"
"""With this, Keycloak gives nothing to a client that sends no challenge; in the device grant, too."""
ROLES = ("--oidc-roles-claim", "realm_access.roles", "--oidc-role-map", "ops-editors=editor,ops-viewers=viewer")


@pytest.fixture(scope="module")
def keycloak() -> Iterator[Keycloak]:
    server = Keycloak()
    server.start()
    try:
        yield server
    finally:
        server.stop()


def a_client(redirect: str, **fields: object) -> dict[str, object]:
    """A client whose tokens are for our API."""
    config = {"included.custom.audience": AUDIENCE, "access.token.claim": "true"}
    mapper = {
        "name": "api", "protocol": "openid-connect", "protocolMapper": "oidc-audience-mapper", "config": config,
    }  # fmt: skip
    return {"redirectUris": [redirect], "protocolMappers": [mapper], "standardFlowEnabled": True, **fields}


def set_up(keycloak: Keycloak, redirect_port: int) -> None:
    people = [
        {
            "username": name, "enabled": True, "email": f"{name}@example.org", "firstName": name, "lastName": name,
            "emailVerified": True, "realmRoles": [f"default-roles-{REALM}", *roles],
            "credentials": [{"type": "password", "value": "any", "temporary": False}],
        }
        for name, roles in (("ann", ["ops-editors"]), ("bob", ["ops-viewers"]), ("eve", []))
    ]  # fmt: skip
    command = a_client(
        f"http://localhost:{redirect_port}/callback", clientId="horarium", publicClient=True,
        attributes={DEVICE: "true", PKCE: "S256"},
    )  # fmt: skip
    dashboard = a_client(
        "http://localhost:*", clientId="dashboard", secret="dashboard-secret", publicClient=False,
        attributes={PKCE: "S256"},
    )  # fmt: skip
    keycloak.manage(
        "POST",
        "",
        {
            "realm": REALM,
            "enabled": True,
            "sslRequired": "none",
            "roles": {"realm": [{"name": "ops-editors"}, {"name": "ops-viewers"}]},
            "users": people,
            "clients": [command, dashboard],
        },
    )


def rotate(keycloak: Keycloak) -> None:
    """A new key, which is used from now on."""
    realm = keycloak.manage("GET", f"/{REALM}")
    keycloak.manage(
        "POST",
        f"/{REALM}/components",
        {
            "name": "newer", "providerId": "rsa-generated", "providerType": "org.keycloak.keys.KeyProvider",
            "parentId": realm["id"], "config": {"priority": ["1000"], "algorithm": ["RS256"]},
        },
    )  # fmt: skip


class KeycloakPerson(Person):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._answers |= {"username": name}


class KeycloakReturning(Returning):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._answers |= {"username": name}


def signed_in(terminal: Terminal, name: str) -> bool:
    try:
        terminal.login(KeycloakPerson(name))
    except AssertionError:
        return False
    return True


def test_people_of_a_keycloak_come_in_by_every_way(keycloak: Keycloak, tmp_path: Path) -> None:
    port = free_port()
    set_up(keycloak, port)
    common = ("--oidc-issuer", keycloak.url, "--oidc-audience", AUDIENCE, *ROLES)
    command = Node("command", "memory://", *common, "--oidc-client-id", "horarium")
    pages = Node(
        "pages", "memory://", *common, "--oidc-client-id", "dashboard", "--oidc-client-secret", "dashboard-secret"
    )
    try:
        terminal = Terminal(tmp_path, command.start().url, port)
        me = json.loads(terminal.login(KeycloakPerson("ann"), "--json"))
        assert (me["name"], me["kind"], me["roles"]) == ("ann", "oidc", ["editor"])
        terminal.run("job", "add", "nightly", "--every", "1h", "--queue", "reports")
        me = json.loads(terminal.login(KeycloakPerson("bob"), "--device", "--json"))
        assert (me["name"], me["roles"]) == ("bob", ["viewer"])
        assert "forbidden" in terminal.run("job", "pause", "nightly", "--json", status=1)

        rotate(keycloak)
        # The old token is still good. One of the new key makes the server fetch the keys, at most every ten seconds.
        assert terminal.json("whoami")["name"] == "bob"
        assert eventually(lambda: signed_in(terminal, "ann"), what="the new key")
        assert terminal.json("whoami")["name"] == "ann"

        at = pages.start().url.replace("127.0.0.1", "localhost")
        tab = Tab(at)
        assert tab.get(KeycloakReturning("ann").back(tab.begin("/jobs")))[0] == 200
        assert tab.get("/new-job")[0] == 200
        other = Tab(at)
        status, page, _ = other.get(KeycloakReturning("eve").back(other.begin()))
        assert (status, "no role here" in page) == (401, True)
    finally:
        for node in (command, pages):
            node.close()
