"""rrule-scheduler's clients: what was recorded from the system itself, asked of ours."""

from __future__ import annotations

import re
from typing import Any

import pytest

from horarium.clock import DAY, SECOND, to_instant
from tests.blackbox.outside import Receiver
from tests.doors.conftest import House
from tests.waiting import until

GOOD: dict[str, Any] = {"name": "Daily Backup", "rrule": "FREQ=DAILY", "callback_url": "http://127.0.0.1:9/hook"}
UNREADABLE = {"error": "Invalid request body"}
UNKNOWN = "6" * 24


def failed(message: str, code: str = "validation_failed") -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


async def create(house: House, **changes: Any) -> str:
    reply = await house.ask("POST", "/api/schedules", {**GOOD, **changes})
    assert reply.status == 201, reply.body
    id: str = reply.json["id"]
    assert re.fullmatch(r"[0-9a-f]{24}", id)
    return id


async def test_a_schedule_comes_back_as_it_was_sent(house: House) -> None:
    id = await create(house)
    reply = await house.ask("GET", f"/api/schedules/{id}")
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert list(reply.json) == ["id", "name", "rrule", "callback_url", "created_at"]
    assert {**reply.json, "created_at": ""} == {"id": id, **GOOD, "created_at": ""}
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,3})?Z", reply.json["created_at"])


async def test_all_fields_in_their_order_and_in_any_case(house: House) -> None:
    sent = {"NAME": "x", "Rrule": "FREQ=DAILY", "CALLBACK_URL": "http://127.0.0.1:9/", "Method": "PUT",
            "headers": {"X-A": "b"}, "BODY": '{"a":1}', "unknown": [1], "id": "5"}  # fmt: skip
    id = (await house.ask("POST", "/api/schedules", sent, **{"content-type": "text/odd"})).json["id"]
    shown = (await house.ask("GET", f"/api/schedules/{id}")).json
    assert list(shown) == ["id", "name", "rrule", "callback_url", "method", "headers", "body", "created_at"]
    assert (shown["id"], shown["method"], shown["headers"], shown["body"]) == (id, "PUT", {"X-A": "b"}, '{"a":1}')


@pytest.mark.parametrize(
    "rrule",
    [
        "FREQ=DAILY",
        "RRULE:FREQ=WEEKLY;BYDAY=MO",
        "DTSTART:20250101T083000Z\nRRULE:FREQ=DAILY",
        "DTSTART;TZID=Europe/Berlin:20250101T083000\nRRULE:FREQ=DAILY;BYHOUR=9",
        "FREQ=DAILY;DTSTART=20250101T083000Z",
        "FREQ=SECONDLY;INTERVAL=7",
    ],
)
async def test_rules_that_are_taken_come_back_as_they_were_sent(house: House, rrule: str) -> None:
    id = await create(house, rrule=rrule)
    assert (await house.ask("GET", f"/api/schedules/{id}")).json["rrule"] == rrule


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (b"", (400, UNREADABLE)),
        (b"not json", (400, UNREADABLE)),
        ([], (400, UNREADABLE)),
        ({**GOOD, "name": 5}, (400, UNREADABLE)),
        ({**GOOD, "headers": {"X": 5}}, (400, UNREADABLE)),
        ({**GOOD, "body": {}}, (400, UNREADABLE)),
        ({**GOOD, "created_at": "nope"}, (400, UNREADABLE)),
        (b"null", (422, failed("Schedule name cannot be empty"))),
        ({}, (422, failed("Schedule name cannot be empty"))),
        ({**GOOD, "name": "", "rrule": ""}, (422, failed("Schedule name cannot be empty"))),
        ({**GOOD, "rrule": ""}, (422, failed("RRULE cannot be empty"))),
        ({**GOOD, "rrule": "nonsense", "callback_url": ""}, (422, failed("Invalid RRULE format"))),
        ({**GOOD, "rrule": "freq=daily"}, (422, failed("Invalid RRULE format"))),
        ({**GOOD, "rrule": "FREQ=DAILY;"}, (422, failed("Invalid RRULE format"))),
        ({**GOOD, "rrule": "RRULE:FREQ=DAILY\nEXDATE:20250101T000000Z"}, (422, failed("Invalid RRULE format"))),
        ({**GOOD, "rrule": "DTSTART:20250101T083000Z"}, (422, failed("Invalid RRULE format"))),
        ({**GOOD, "rrule": "FREQ=DAILY;NOPE=1"}, (422, failed("Invalid RRULE format"))),
        ({**GOOD, "rrule": "FREQ=DAILY;INTERVAL=-1"}, (422, failed("Invalid RRULE format"))),
        ({**GOOD, "callback_url": ""}, (422, failed("Invalid callback URL format"))),
        ({**GOOD, "callback_url": "example.com/x"}, (422, failed("Invalid callback URL format"))),
        ({**GOOD, "callback_url": "ftp://x/y"}, (422, failed("Invalid callback URL format"))),
        ({**GOOD, "callback_url": "http://x/%zz"}, (422, failed("Invalid callback URL format"))),
        ({**GOOD, "created_at": ""}, (400, UNREADABLE)),
        ({**GOOD, "name": "n" * 201}, (422, failed("name: expected str of length <= 200"))),
        ({**GOOD, "method": "get"}, (422, failed("method: expected a method in capitals, such as POST"))),
    ],
)
async def test_what_is_wrong_is_refused_as_it_was(house: House, body: Any, answer: tuple[int, Any]) -> None:
    assert (await house.ask("POST", "/api/schedules", body)).said == answer


OVER = "DTSTART:20250101T083000Z\nRRULE:FREQ=DAILY;COUNT=3"
ENDED = "FREQ=WEEKLY;BYDAY=MO,WE,FR;UNTIL=20251231T235959Z"


@pytest.mark.parametrize(
    "rrule",
    [OVER, "DTSTART:20250101T083000Z\nRRULE:FREQ=DAILY;UNTIL=20250201T000000Z", ENDED, f"RRULE:{ENDED}",
     "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29;UNTIL=20250101"],
)  # fmt: skip
async def test_a_rule_that_is_over_is_taken_and_shown_and_calls_nothing(house: House, rrule: str) -> None:
    """Two of the system's own examples are over by now."""
    id = await create(house, rrule=rrule)
    path = f"/api/schedules/{id}"
    assert (await house.ask("GET", path)).json["rrule"] == rrule
    assert (await house.ask("PUT", path, {"name": "renamed"})).status == 200, "it stays over"
    for which in ("pending", "history"):
        assert (await house.ask("GET", f"{path}/events/{which}")).json["events"] is None
    assert (await house.runtime.operations.jobs.get_job(id)).next_fire_at is None


async def test_a_rule_may_be_changed_to_one_that_is_over_and_back(house: House) -> None:
    id = await create(house)
    path = f"/api/schedules/{id}"
    for rrule, fires in (
        (OVER, False),
        ("FREQ=HOURLY", True),
        (ENDED, False),
        ("FREQ=HOURLY", True),
        (OVER, False),
        ("FREQ=DAILY;COUNT=2", True),
    ):
        assert (await house.ask("PUT", path, {"rrule": rrule})).status == 200
        assert (await house.ask("GET", path)).json["rrule"] == rrule
        assert ((await house.runtime.operations.jobs.get_job(id)).next_fire_at is not None) == fires, rrule
    await house.runtime.operations.jobs.pause_job(id)
    assert (await house.ask("PUT", path, {"rrule": "FREQ=HOURLY"})).status == 200
    assert not (await house.runtime.operations.jobs.get_job(id)).enabled, "paused here by a person: it stays so"


async def test_an_update_is_a_merge_and_is_checked(house: House) -> None:
    id = await create(house, body="old", headers={"Authorization": "Bearer secret", "X-A": "b"})
    path = f"/api/schedules/{id}"
    done = (200, {"message": "Schedule updated successfully."})
    shown = (await house.ask("GET", path)).json
    assert shown["headers"] == {"Authorization": "********", "X-A": "b"}
    assert (await house.ask("PUT", path, {"name": "new", "id": "7", "created_at": "x", "odd": 1})).said == done
    assert (await house.ask("PUT", path, {"headers": shown["headers"]})).said == done, "the mask keeps the secret"
    assert (await house.ask("PUT", path, {})).said == done
    after = (await house.ask("GET", path)).json
    assert {**after, "name": shown["name"]} == shown
    job = await house.runtime.operations.jobs.get_job(id)
    assert job.target.headers["Authorization"] == "Bearer secret"  # type: ignore[union-attr]
    assert (await house.ask("PUT", path, {"body": None})).said == done
    assert "body" not in (await house.ask("GET", path)).json
    assert (await house.ask("PUT", path, [])).said == (400, {"error": "Invalid JSON body for updates"})
    assert (await house.ask("PUT", path, {"rrule": "nope"})).said == (422, failed("Invalid RRULE format"))
    assert (await house.ask("PUT", path, {"rrule": 5})).said == (422, failed("Invalid RRULE format"))
    assert (await house.ask("PUT", path, {"name": ""})).said == (422, failed("Schedule name cannot be empty"))
    assert (await house.ask("GET", path)).json["rrule"] == "FREQ=DAILY"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_ids_that_are_none(house: House, method: str) -> None:
    body: Any = {} if method == "PUT" else None
    assert (await house.ask(method, f"/api/schedules/{UNKNOWN}", body)).said == (
        404, failed("Schedule not found", "not_found"))  # fmt: skip
    assert (await house.ask(method, "/api/schedules/5", body)).said == (
        400, failed("Invalid schedule ID format", "invalid_request"))  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("PATCH", "/" + UNKNOWN), ("OPTIONS", ""), ("GET", "/a/b/c")]
)
async def test_everything_else_is_not_found(house: House, method: str, path: str) -> None:
    reply = await house.ask(method, f"/api/schedules{path}")
    assert (reply.status, reply.body, reply.headers["content-type"]) == (404, b"404 page not found", "text/plain")


async def test_a_slash_too_many_is_redirected(house: House) -> None:
    got = await house.ask("GET", f"/api/schedules/{UNKNOWN}/")
    assert (got.status, got.headers["location"]) == (301, f"/api/schedules/{UNKNOWN}")
    posted = await house.ask("POST", "/api/schedules/", GOOD)
    assert (posted.status, posted.headers["location"]) == (307, "/api/schedules")


async def test_an_occurrence_is_called_and_keeps_its_id(house: House) -> None:
    receiver = Receiver()
    try:
        id = await create(
            house, rrule="FREQ=SECONDLY", callback_url=f"{receiver.url}/hook", method="POST", body="{}",
            headers={"X-From": "door"},
        )  # fmt: skip
        pending = (await house.ask("GET", f"/api/schedules/{id}/events/pending?limit=200")).json
        assert (pending["limit"], pending["page"]) == (200, 1)
        times = [event["run_time"] for event in pending["events"]]
        assert times == sorted(times, reverse=True)
        assert list(pending["events"][0]) == ["_id", "created_at", "run_time", "schedule_id", "status"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", times[0])
        history: dict[str, Any] = {}

        async def called() -> bool:
            nonlocal history
            history = (await house.ask("GET", f"/api/schedules/{id}/events/history")).json
            return bool(history["events"])

        await until(called)
        event = history["events"][0]
        assert [step["status"] for step in event["status"]] == ["ready_queue", "worker_queue", "completed"]
        assert [step["message"] for step in event["status"]] == [
            "Event pre-queued for ready queue", "Event dispatched to worker queue", "Event successfully processed",
        ]  # fmt: skip
        assert event["schedule_id"] == id
        assert re.fullmatch(r"[0-9a-f]{24}", event["_id"])
        assert (await house.ask("DELETE", f"/api/schedules/{id}")).said == (
            200, {"message": "Schedule and associated events deleted."})  # fmt: skip
        assert (await house.ask("GET", f"/api/schedules/{id}/events/history")).json["events"]
        assert (await house.ask("GET", f"/api/schedules/{id}")).status == 404
        request = receiver.got[0]
        assert (request.method, request.path, request.body, request.headers["x-from"]) == (
            "POST",
            "/hook",
            b"{}",
            "door",
        )
    finally:
        receiver.close()


async def test_nothing_is_called_at_the_creation_of_a_schedule(house: House) -> None:
    id = await create(house)
    path = f"/api/schedules/{id}/events"
    assert (await house.ask("GET", f"{path}/pending")).json["events"] is None
    job = await house.runtime.operations.jobs.get_job(id)
    (begun, next_day), _ = await house.runtime.operations.jobs.fires(id, 2)
    assert 0 <= job.created_at + DAY - to_instant(begun) < SECOND, "a day later, in the phase of its creation"
    assert (next_day - begun).days == 1
    counting = await create(house, rrule="FREQ=DAILY;COUNT=2")
    fires, _ = await house.runtime.operations.jobs.fires(counting, 5)
    assert len(fires) >= 1
    done = (200, {"message": "Schedule updated successfully."})
    assert (await house.ask("PUT", f"/api/schedules/{id}", {"rrule": "FREQ=HOURLY;COUNT=1"})).said == done
    (only,), _ = await house.runtime.operations.jobs.fires(id, 5)
    assert to_instant(only) > job.created_at


async def test_headers_of_the_connection_are_taken_and_left_out(house: House) -> None:
    id = await create(house, headers={"Host": "other", "content-length": "5", "Connection": "close", "X-A": "b"})
    assert (await house.ask("GET", f"/api/schedules/{id}")).json["headers"] == {"X-A": "b"}


async def test_a_failing_endpoint_is_called_three_times(house: House) -> None:
    id = await create(house, rrule="FREQ=SECONDLY;COUNT=1", callback_url="http://127.0.0.1:9/none")
    history: dict[str, Any] = {}

    async def over() -> bool:
        nonlocal history
        history = (await house.ask("GET", f"/api/schedules/{id}/events/history?limit=x&page=0")).json
        return bool(history["events"])

    await until(over)
    assert (history["limit"], history["page"]) == (10, 1)
    last = history["events"][0]["status"][-1]
    assert last["status"] == "error"
    assert last["message"].startswith("Callback failed after max retries: ")
    assert (await house.ask("GET", f"/api/schedules/{id}/events/history?page=9")).json["events"] is None


@pytest.mark.parametrize("settings", [{"door_open": False, "api_keys": ("k" * 20,)}])
async def test_a_key_is_asked_for_unless_the_door_is_open(house: House) -> None:
    assert (await house.ask("POST", "/api/schedules", GOOD)).status == 401
    assert (await house.ask("POST", "/api/schedules", GOOD, authorization="Bearer " + "k" * 20)).status == 201


async def test_its_routes_stand_in_the_document(house: House) -> None:
    document = (await house.ask("GET", "/docs/openapi.json")).json
    assert "/api/schedules/{id}/events/pending" in document["paths"]


async def test_pages_of_other_sites_and_names_are_refused(house: House) -> None:
    assert (await house.ask("POST", "/api/schedules", GOOD, **{"sec-fetch-site": "cross-site"})).status == 403
    assert (await house.ask("GET", f"/api/schedules/{UNKNOWN}", host="evil.example")).status in (400, 403, 421)
