"""Sign-ins to the dashboard: an admin sees who is signed in, and ends it."""

from __future__ import annotations

from os import urandom

from msgspec.structs import replace

from horarium.access.keys import digest_of
from horarium.access.roles import Role, principal
from horarium.access.sessions import ROTATED_AFTER, Sessions, SignInSession
from horarium.clock import SECOND

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


async def rotated() -> tuple[Sessions, SignInSession, str, str]:
    """A session that was rotated: as it was, and its tokens."""
    api = Api(api_keys=["first-key-1234"], pages=True)
    sessions = Sessions(api.store, api.clock, urandom)
    token = await sessions.begin("key", "digest")
    api.clock.advance(ROTATED_AFTER / SECOND + 1)
    before = await sessions.find(token)
    assert before is not None
    after = await sessions.rotate(before)
    assert after is not None
    assert await sessions.find(token) is not None, "for pages that were under way"
    return sessions, before, token, after


async def test_a_session_ends_under_all_its_tokens() -> None:
    sessions, before, token, after = await rotated()
    assert {each.id for each in (await sessions.page(None, 9)).items} == {before.id}
    await sessions.end_by_id(before.id)
    assert [await sessions.find(each) for each in (token, after)] == [None, None]


async def test_to_sign_out_in_one_tab_ends_what_another_one_was_given() -> None:
    sessions, _, token, after = await rotated()
    await sessions.end(token)
    assert [await sessions.find(each) for each in (token, after)] == [None, None]


async def test_a_session_that_was_ended_just_then_gets_no_other_token() -> None:
    """Read on a node that has not heard of its end: the token that it would be given would outlive that."""
    sessions, before, _, after = await rotated()
    assert await sessions.rotate(before) is None, "it got one already"
    session = await sessions.find(after)
    assert session is not None
    await sessions.end_by_id(session.id)
    assert await sessions.rotate(replace(session, created_at=0)) is None
    assert (await sessions.page(None, 9)).items == ()
