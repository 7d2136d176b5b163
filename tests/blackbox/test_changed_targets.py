"""A job may change its target at any time: what waits goes to the new one, what is claimed ends with the old one."""

from __future__ import annotations

import threading
from typing import Any

from tests.blackbox.outside import Api, Receiver
from tests.waiting import PATIENCE, eventually

HOURLY = 3600
SOON = {"attempts_max": 3, "backoff_seconds": 0.1}


def queue(name: str) -> dict[str, Any]:
    return {"type": "queue", "queue": name, "payload": {"of": name}}


def change(server: Api, job: str, target: dict[str, Any]) -> None:
    server("PATCH", f"/jobs/{job}", {"target": target}, 200)


def test_a_run_that_waits_goes_to_the_new_target(server: Api, receiver: Receiver, name: str) -> None:
    server.add(name, HOURLY, queue(f"{name}-old"))
    run = server("POST", f"/jobs/{name}/trigger", {}, 201)
    change(server, name, queue(f"{name}-new"))
    assert server.run(run["id"])["queue"] == f"pull/{name}-new"
    assert server.claim(f"{name}-old", wait=0) == []
    change(server, name, {"type": "http", "url": f"{receiver.url}/{name}"})
    (request,) = receiver.wait(f"/{name}")
    done = server.becomes(run["id"], "completed")
    assert (request.headers["horarium-run"], request.headers["horarium-attempt"]) == (run["id"], "1")
    assert [event["message"] for event in done["history"]][1:3] == [
        f"moved from pull/{name}-old to pull/{name}-new: the job's target was changed",
        f"moved from pull/{name}-new to http: the job's target was changed",
    ]


def test_a_run_that_is_claimed_ends_with_the_old_target(server: Api, name: str) -> None:
    server.add(name, HOURLY, queue(f"{name}-old"))
    run = server("POST", f"/jobs/{name}/trigger", {}, 201)
    run_id, token = server.claim_one(f"{name}-old")
    change(server, name, queue(f"{name}-new"))
    assert server("POST", f"/runs/{run_id}/heartbeat", {"token": token})["cancel_requested"] is False
    server("POST", f"/runs/{run_id}/complete", {"token": token, "result": "old"})
    assert (server.run(run["id"])["state"], server.run(run["id"])["result"]) == ("completed", "old")


def test_the_next_attempt_goes_to_the_new_target(server: Api, receiver: Receiver, name: str) -> None:
    server.add(name, HOURLY, queue(name), retry=SOON)
    run = server("POST", f"/jobs/{name}/trigger", {}, 201)
    run_id, token = server.claim_one(name)
    change(server, name, {"type": "http", "url": f"{receiver.url}/{name}"})
    server("POST", f"/runs/{run_id}/fail", {"token": token, "error": "not with me"})
    (request,) = receiver.wait(f"/{name}")
    assert (request.headers["horarium-run"], request.headers["horarium-attempt"]) == (run["id"], "2")
    server.becomes(run["id"], "completed")


def test_an_endpoint_that_fails_after_the_change_leaves_the_rest_to_a_worker(
    server: Api, receiver: Receiver, name: str
) -> None:
    changed = threading.Event()
    receiver.answers[f"/{name}"] = lambda before: (500 if changed.wait(PATIENCE) else 200, {}, b"")
    server.add(name, HOURLY, {"type": "http", "url": f"{receiver.url}/{name}"}, retry=SOON)
    run = server("POST", f"/jobs/{name}/trigger", {}, 201)
    receiver.wait(f"/{name}")
    change(server, name, queue(name))
    changed.set()
    (claimed,) = server.claim(name)
    assert (claimed["id"], claimed["attempt"], claimed["payload"]) == (run["id"], 2, {"of": name})
    server("POST", f"/runs/{run['id']}/complete", {"token": claimed["lease"]["token"]})


def test_what_a_silent_worker_had_goes_to_the_new_target(server: Api, receiver: Receiver, name: str) -> None:
    server.add(name, HOURLY, queue(name), timeouts={"heartbeat_seconds": 1})
    run = server("POST", f"/jobs/{name}/trigger", {}, 201)
    server.claim_one(name)
    change(server, name, {"type": "http", "url": f"{receiver.url}/{name}"})
    request, *_ = receiver.wait(f"/{name}")
    assert (request.headers["horarium-run"], request.headers["horarium-attempt"]) == (run["id"], "2")


def test_a_backlog_of_more_than_one_batch_moves_whole(server: Api, name: str) -> None:
    often = {"type": "interval", "every_seconds": 1, "anchor": "2026-01-01T00:00:00Z"}
    server.add(name, often, queue(f"{name}-old"), enabled=False)  # it has no fire times of its own
    for minute in (0, 16):
        span = {"start": f"2026-01-02T00:{minute:02}:00Z", "end": f"2026-01-02T00:{minute + 16}:00Z"}
        assert len(server("POST", f"/jobs/{name}/backfill", span, 201)["runs"]) == 960
    change(server, name, queue(f"{name}-new"))

    def waiting() -> dict[str, int]:
        stats = server("GET", "/stats")["queues"]
        return {queue["queue"].removeprefix(f"pull/{name}-"): queue["due"] for queue in stats if name in queue["queue"]}

    assert eventually(lambda: waiting() == {"new": 1920}), waiting()
    server("DELETE", f"/jobs/{name}")


def test_a_target_of_another_type_is_judged_by_itself(server: Api, name: str) -> None:
    """Not by what the old one left behind."""
    server.add(name, HOURLY, queue(name))
    problem = server.refused("PATCH", f"/jobs/{name}", {"target": {"type": "http"}})
    assert (problem["code"], problem["field"]) == ("invalid_job", "target.url")
    problem = server.refused("PATCH", f"/jobs/{name}", {"trigger": {"type": "cron"}})
    assert (problem["code"], problem["field"]) == ("invalid_trigger", "trigger.expression")


def test_a_pause_and_a_new_target_in_one_change_move_what_waits(server: Api, name: str) -> None:
    server.add(name, HOURLY, queue(f"{name}-old"))
    run = server("POST", f"/jobs/{name}/trigger", {"payload": "own"}, 201)
    server("PATCH", f"/jobs/{name}", {"enabled": False, "target": queue(f"{name}-new")})
    (claimed,) = server.claim(f"{name}-new")
    assert (claimed["id"], claimed["payload"]) == (run["id"], "own")
    server("POST", f"/runs/{run['id']}/complete", {"token": claimed["lease"]["token"]})
