"""Sign-ins to the dashboard: an admin sees who is signed in, and ends it."""

from __future__ import annotations

from os import urandom

from horarium.access.keys import digest_of
from horarium.access.roles import Role, principal
from horarium.access.sessions import Sessions

from .conftest import Api

ADMIN = {"authorization": "Bearer first-key-1234"}


async def test_an_admin_lists_and_ends_sessions() -> None:
    api = Api(api_keys=["first-key-1234"], pages=True)
    sessions = Sessions(api.store, api.clock, urandom)
    made = (await api.post("/keys", {"name": "ann", "roles": ["viewer"]}, headers=ADMIN)).json["key"]
    token = await sessions.begin("key", digest_of(made))
    await sessions.begin("server-key", digest_of("first-key-1234"))
    await sessions.begin_of(principal("s", "Berta", "oidc", [Role.VIEWER]), "rules")
    cookie = {"cookie": f"horarium_session={token}"}
    assert (await api.get("//jobs", headers=cookie)).status == 200
    first = (await api.get("/sessions?limit=2", headers=ADMIN)).json
    rest = (await api.get(f"/sessions?limit=2&cursor={first['next_cursor']}", headers=ADMIN)).json
    found = {each["name"]: each for each in (*first["items"], *rest["items"])}
    assert {name: each["kind"] for name, each in found.items()} == {
        "ann": "key",
        "api-key": "server-key",
        "Berta": "person",
    }
    assert token not in str(found)
    ended = await api.send("DELETE", f"/sessions/{found['ann']['id']}", headers=ADMIN)
    assert ended.status == 204
    api.clock.advance(5)
    assert (await api.get("//jobs", headers=cookie)).status == 303
    assert len((await api.get("/sessions", headers=ADMIN)).json["items"]) == 2
    again = await api.send("DELETE", f"/sessions/{found['ann']['id']}", headers=ADMIN)
    assert again.code == "not_found"
    # Those that are over are not listed.
    api.clock.advance(13 * 3600)
    assert (await api.get("/sessions", headers=ADMIN)).json["items"] == []
