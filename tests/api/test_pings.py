"""Addresses for pings: who is shown them, and the trace that a ping leaves."""

from __future__ import annotations

import pytest

from .conftest import Api, a_definition

ADMIN = {"authorization": "Bearer first-key-1234"}


async def a_key(api: Api, role: str) -> dict[str, str]:
    made = await api.post("/keys", {"name": role, "roles": [role]}, headers=ADMIN)
    return {"authorization": f"Bearer {made.json['key']}"}


@pytest.mark.parametrize(("role", "shown"), [("viewer", False), ("operator", True), ("editor", True)])
async def test_the_address_is_shown_to_those_who_may_end_runs(locked_api: Api, role: str, shown: bool) -> None:
    made = await locked_api.post("/jobs", a_definition("job", target={"type": "external"}), headers=ADMIN)
    assert "/ping/" in made.json["ping_url"]
    key = await a_key(locked_api, role)
    one = await locked_api.get("/jobs/job", headers=key)
    (of_list,) = (await locked_api.get("/jobs", headers=key)).json["items"]
    for job in (one.json, of_list):
        assert job["target"] == {"type": "external"}
        assert ("ping_url" in job) is shown


async def test_pings_stand_in_the_history_with_their_address(api: Api) -> None:
    made = await api.post("/jobs", a_definition("job", target={"type": "external"}))
    path = made.json["ping_url"].partition("testserver")[2]
    for sign in ("/start", "/start", "/log", "/3"):
        assert (await api.get("/" + path + sign)).status == 200
    (run,) = (await api.get("/runs?job=job")).json["items"]
    history = (await api.get(f"/runs/{run['id']}")).json["history"]
    assert [event["message"] for event in history if event["message"].startswith("pinged")] == [
        "pinged from 127.0.0.1: it began",
        "pinged from 127.0.0.1: it began again",
        "pinged from 127.0.0.1: a note, in its log",
        "pinged from 127.0.0.1: it failed",
    ]
    assert history[-1]["state"] == "failed"
