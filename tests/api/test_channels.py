"""Channels over the API: defined, shown without secrets, listed, tried, removed; and `on` in a job."""

from __future__ import annotations

from typing import Any

from horarium.delivery.signing import new_secret

from .conftest import Api, a_definition

SECRET = new_secret(bytes(range(24)))
OPS = {"type": "webhook", "url": "https://example.org/hook?token=t0p", "signing_secret": SECRET}


async def put(api: Api, name: str, channel: dict[str, Any], status: int = 201) -> dict[str, Any]:
    reply = await api.send("PUT", f"/channels/{name}", channel)
    assert reply.status == status, reply.body
    shown: dict[str, Any] = reply.json
    return shown


async def test_the_life_of_a_channel(api: Api) -> None:
    shown = await put(api, "ops", OPS)
    assert shown == {
        "name": "ops", "type": "webhook", "url": "https://example.org/hook?token=********",
        "signing_secret": "********", "group_seconds": 1.0, "quiet_seconds": 3600.0, "system": True,
    }  # fmt: skip
    assert SECRET not in str((await api.get("/channels/ops")).json)
    sent_back = {name: value for name, value in shown.items() if name != "name"}
    assert await put(api, "ops", {**sent_back, "quiet_seconds": 5}, 200) == {**shown, "quiet_seconds": 5.0}
    await put(api, "mail", {"type": "email", "to": ["ann@example.org"]})
    first = (await api.get("/channels?limit=1")).json
    rest = (await api.get(f"/channels?limit=1&cursor={first['next_cursor']}")).json
    assert [each["name"] for each in (*first["items"], *rest["items"])] == ["mail", "ops"]
    tried = await api.post("/channels/ops/test")
    assert (tried.status, tried.json["queue"], tried.json["cause"]) == (202, "notify", "follow_up")
    assert (await api.send("DELETE", "/channels/ops")).status == 204
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/test")):
        assert (await api.send(method, f"/channels/ops{path}")).code == "not_found"


async def test_notifications_are_listed_as_runs_of_their_queue(api: Api) -> None:
    await put(api, "ops", {"type": "webhook", "url": "https://example.org/hook"})
    sent = (await api.post("/channels/ops/test")).json
    assert sent["queue"] == "notify"
    assert [run["id"] for run in (await api.get("/runs?queue=notify")).json["items"]] == [sent["id"]]
    assert (await api.get("/runs?queue=pull/notify")).json["items"] == []


async def test_what_is_no_channel_is_refused_with_its_field(api: Api) -> None:
    for channel, field in (
        ({"type": "webhook"}, "url"),
        ({"type": "email", "to": []}, "to"),
        ({**OPS, "quiet_seconds": -1}, "quiet_seconds"),
        ({**OPS, "colour": "red"}, "colour"),
        ({"type": "email", "to": ["a@b.c"], "template": {"text": "{{job}}"}}, "template"),
    ):
        reply = await api.send("PUT", "/channels/ops", channel)
        assert (reply.status, reply.json["field"]) == (422, field), reply.body
    masked = await api.send("PUT", "/channels/ops", {**OPS, "signing_secret": "********"})
    assert masked.code == "invalid_request"
    assert (await api.send("PUT", "/channels/no%20name", OPS)).code == "invalid_request"


async def test_changes_of_channels_are_audited_without_secrets(locked_api: Api) -> None:
    key = {"authorization": "Bearer first-key-1234"}
    await locked_api.send("PUT", "/channels/ops", OPS, headers=key)
    await locked_api.send("DELETE", "/channels/ops", headers=key)
    lines = (await locked_api.get("/audit?object=channel/ops", headers=key)).json["items"]
    assert sorted(line["action"] for line in lines) == ["channel.create", "channel.delete"]
    assert SECRET not in str(lines)
    assert "t0p" not in str(lines)


async def test_what_follows_is_shown_as_it_was_written_and_patched_by_event(api: Api) -> None:
    await put(api, "ops", OPS)
    on = {"failed": [{"notify": "ops", "after": 3}], "late": [{"notify": "ops", "seconds": 60.0}]}
    shown = (await api.post("/jobs", a_definition("nightly", on=on))).json
    assert shown["on"] == on
    changed = await api.send("PATCH", "/jobs/nightly", {"on": {"late": None, "completed": [{"trigger": "next"}]}})
    assert changed.json["on"] == {"failed": on["failed"], "completed": [{"trigger": "next"}]}
    refused = await api.post("/jobs", a_definition("other", on={"late": [{"notify": "ops"}]}))
    assert (refused.status, refused.json["field"]) == (422, "on.late[0].seconds")


async def test_a_channel_that_is_not_there_is_refused(api: Api) -> None:
    """Nobody would hear of a failure: the alert could not be delivered, and died in silence."""
    await put(api, "ops", OPS)
    misspelled = a_definition("nightly", on={"failed": [{"notify": "opps"}, {"notify": "ops"}]})
    good = a_definition("nightly", on={"failed": [{"notify": "ops"}]})
    for refused in (
        await api.post("/jobs", misspelled),
        await api.send("PUT", "/jobs/nightly", misspelled),
        await api.post("/jobs", good) and await api.send("PATCH", "/jobs/nightly", {"on": misspelled["on"]}),
        await api.send("PUT", "/jobs/nightly", misspelled),
    ):
        assert (refused.status, refused.code, refused.json["field"]) == (422, "invalid_job", "on"), refused.body
        assert "'opps'" in refused.json["detail"]
    await api.send("DELETE", "/channels/ops")
    changed = await api.send("PATCH", "/jobs/nightly", {"title": "still to be changed"})
    assert changed.status == 200, "its channel went later: that keeps no change out"


async def test_a_channel_may_come_after_its_jobs_in_an_import_which_warns(api: Api) -> None:
    jobs = [a_definition("a", on={"failed": [{"notify": "ops"}]}), a_definition("b")]
    first, second = (await api.post("/import", {"jobs": jobs})).json
    assert first["outcome"] == "created"
    assert "'ops'" in first["warning"]
    assert "warning" not in second
    await put(api, "ops", OPS)
    (again, _) = (await api.post("/import", {"jobs": jobs})).json
    assert again == {"name": "a", "outcome": "unchanged"}
