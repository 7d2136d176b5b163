"""Single fire times of a job over the API: skipped, moved, listed, and as the rule has them again."""

from __future__ import annotations

from .conftest import Api, a_definition

DAILY = {"type": "cron", "expression": "0 9 * * *", "timezone": "Europe/Berlin"}


async def defined(api: Api) -> list[str]:
    assert (await api.send("POST", "/jobs", a_definition("payroll", trigger=DAILY))).status == 201
    found: list[str] = (await api.send("GET", "/jobs/payroll/fires?count=4")).json["fires"]
    return found


async def test_a_fire_time_is_skipped_and_moved_and_shown_everywhere(api: Api) -> None:
    first, second, third, fourth = await defined(api)
    told = await api.send("POST", f"/jobs/payroll/fires/{first}/skip", {"reason": "closed"})
    assert told.status == 200, told.body
    assert (told.json["action"], told.json["fire_at"], told.json["to"]) == ("skip", first, None)
    assert (told.json["by"], told.json["reason"]) == ("local", "closed")
    berlin = second.replace("T08:00:00Z", "T11:30:00+01:00")
    moved = await api.send("POST", f"/jobs/payroll/fires/{second}/move", {"to": berlin})
    assert (moved.status, moved.json["to"]) == (200, second.replace("08:00", "10:30"))
    fires = (await api.send("GET", "/jobs/payroll/fires?count=3")).json
    assert fires["fires"] == [moved.json["to"], third, fourth]
    assert fires["overrides"] == [told.json, moved.json]
    job = (await api.send("GET", "/jobs/payroll")).json
    assert (job["next_fire_at"], job["overrides"]) == (moved.json["to"], [told.json, moved.json])
    page = (await api.send("GET", "/jobs/payroll/overrides?limit=1")).json
    assert page["items"] == [told.json]
    rest = (await api.send("GET", f"/jobs/payroll/overrides?limit=1&cursor={page['next_cursor']}")).json
    assert rest == {"items": [moved.json], "next_cursor": None}
    why = (await api.send("GET", f"/jobs/payroll/explain?at={first}")).json
    assert (why["fires"], why["disposition"]) == (False, "skipped_override")
    assert "by local, because: closed" in why["reason"]
    coming = (await api.send("GET", f"/upcoming?until={third}")).json["items"]
    assert coming == [{"job": "payroll", "fire_at": moved.json["to"], "override": moved.json}]
    assert (await api.send("DELETE", f"/jobs/payroll/fires/{first}")).status == 204
    assert (await api.send("GET", "/jobs/payroll/fires?count=1")).json["fires"] == [first]


async def test_what_is_no_fire_time_names_those_around_it(api: Api) -> None:
    first, second, *_ = await defined(api)
    reply = await api.send("POST", f"/jobs/payroll/fires/{first.replace('08:00', '08:01')}/skip")
    assert (reply.status, reply.code) == (404, "no_such_fire")
    assert (reply.json["previous"], reply.json["next"]) == (first, second)
    plain = await api.send("DELETE", f"/jobs/payroll/fires/{second}")
    assert (plain.status, plain.code, plain.json["previous"]) == (404, "no_such_fire", first)
    assert plain.json["next"] > second
    assert (await api.send("POST", "/jobs/payroll/fires/tomorrow/skip")).code == "invalid_request"
    assert (await api.send("POST", f"/jobs/none/fires/{first}/skip")).code == "not_found"
    past = await api.send("POST", f"/jobs/payroll/fires/{first}/move", {"to": "2020-01-01T00:00:00Z"})
    assert (past.status, past.json["field"]) == (422, "to")


async def test_what_runs_has_begun(api: Api) -> None:
    await api.send("POST", "/jobs", a_definition("often", trigger={"type": "interval", "every_seconds": 60}))
    run = (
        await api.send("POST", "/jobs/often/backfill", {"start": "2020-01-01T00:00:00Z", "end": "2020-01-02T00:00:00Z"})
    ).json
    assert run["runs"] == []
    (fire,) = (await api.send("GET", "/jobs/often/fires?count=1")).json["fires"]
    api.clock.advance(61)
    await api.send("PATCH", "/jobs/often", {"priority": 1})  # plans what is owed
    claimed = await api.send("POST", "/runs/claim", {"queues": ["work"], "worker": "w", "limit": 1})
    assert claimed.status == 200, claimed.body
    reply = await api.send("POST", f"/jobs/often/fires/{fire}/skip")
    assert (reply.status, reply.code) == (409, "already_begun")


async def test_the_answer_of_an_edit_names_what_it_dropped(api: Api) -> None:
    first, second, *_ = await defined(api)
    for fire in (first, second):
        await api.send("POST", f"/jobs/payroll/fires/{fire}/skip")
    edited = await api.send("PATCH", "/jobs/payroll", {"trigger": {**DAILY, "expression": "0 9 16 * *"}})
    (kept,) = edited.json["overrides"]
    assert {kept["fire_at"], *edited.json["overrides_dropped"]} == {first, second}
