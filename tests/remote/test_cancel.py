"""Cancels that come from one process and concern work that another one gave away."""

from __future__ import annotations

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from standardwebhooks import Webhook

from tests.blackbox.outside import Receiver
from tests.remote.conftest import SECRET, Nodes
from tests.waiting import eventually

RACES = 40
LEASE_SECONDS = 900
"""So long that no lease ends on a busy machine: none is renewed once its run was asked to stop."""


def test_a_cancel_from_any_node_reaches_the_endpoint_once(nodes: Nodes, receiver: Receiver, name: str) -> None:
    """The cancel is asked of a node that delivers nothing, after the 202 was given to another."""
    path, stop = f"/{name}", f"/{name}/stop"
    receiver.answers[path] = lambda _: (202, {}, b"")
    receiver.answers[stop] = lambda before: (503 if before == 0 else 200, {}, b"")
    delivering, asking = nodes.whole, nodes.api
    target = {
        "type": "http", "url": receiver.url + path, "completion": "callback", "cancel_url": receiver.url + stop
    }  # fmt: skip
    asking.add(name, 3600, target, timeouts={"heartbeat_seconds": LEASE_SECONDS})
    run_id = asking("POST", f"/jobs/{name}/trigger")["id"]
    (request,) = receiver.wait(path)
    token = {"token": int(request.headers["horarium-token"])}
    asking.becomes(run_id, "running")
    assert asking("POST", f"/runs/{run_id}/cancel")["state"] == "cancelling"
    first, second = receiver.wait(stop, 2)
    for told in (first, second):
        assert told.headers["webhook-id"] == f"{run_id}-cancel"
        body = Webhook(SECRET).verify(told.body, dict(told.headers))
        assert body == {"run_id": run_id, "action": "cancel", "attempt": 1, **token}
    eventually(lambda: any("request taken" in event["message"] for event in asking.run(run_id)["history"]))
    assert delivering("POST", f"/runs/{run_id}/heartbeat", token)["cancel_requested"] is True
    assert asking("POST", f"/runs/{run_id}/cancel")["state"] == "cancelling"
    assert delivering("POST", f"/runs/{run_id}/fail", {**token, "error": "stopped"})["state"] == "cancelled"
    assert asking.refused("POST", f"/runs/{run_id}/cancel")["code"] == "state_conflict"
    assert (len(receiver.at(path)), len(receiver.at(stop))) == (1, 2), "503 was no answer; 200 was the last"


def test_a_cancel_during_the_request_ends_it(nodes: Nodes, receiver: Receiver, name: str) -> None:
    """Asked of another process, while the endpoint has not answered yet."""
    path, stop = f"/{name}", f"/{name}/stop"
    receiver.answers[path] = lambda _: (receiver.wait(stop), (200, {}, b""))[1]
    asking = nodes.api
    asking.add(name, 3600, {"type": "http", "url": receiver.url + path, "cancel_url": receiver.url + stop})
    run_id = asking("POST", f"/jobs/{name}/trigger")["id"]
    receiver.wait(path)
    asking("POST", f"/runs/{run_id}/cancel")
    asking.becomes(run_id, "cancelled")
    assert len(receiver.at(stop)) == 1


def test_of_a_cancel_and_a_report_one_wins(nodes: Nodes, name: str) -> None:
    """Each is sent to a process of its own at about the same moment; the answers and the end must agree."""
    chance = random.Random(1)
    one, other = nodes.whole, nodes.api
    with ThreadPoolExecutor(2) as threads:
        rule = {"type": "interval", "every_seconds": 3600, "anchor": "2020-01-01T00:00:00Z"}
        fields = {"starts_at": "2020-01-01T00:00:00Z", "timeouts": {"heartbeat_seconds": LEASE_SECONDS}}
        one.add(name, rule, catch_up={"policy": "none"}, **fields)
        period = {"start": "2020-01-01T00:00:00Z", "end": "2020-01-02T16:00:00Z"}
        assert len(one("POST", f"/jobs/{name}/backfill", period)["runs"]) == RACES
        seen: Counter[str] = Counter()
        for run in one.claim(name, limit=RACES):
            path, token = f"/api/v1/runs/{run['id']}", run["lease"]["token"]
            fails = chance.random() < 0.5
            report = ("/fail", {"token": token, "error": "no"}) if fails else ("/complete", {"token": token})
            calls = [(one, path + report[0], report[1]), (other, path + "/cancel", {})]
            chance.shuffle(calls)
            answers = {
                future[0]: future[1].result()
                for future in [(url[-6:], threads.submit(api.ask, "POST", url, body)) for api, url, body in calls]
            }
            cancelled = answers.pop("cancel")
            (reported,) = answers.values()
            state = one.run(run["id"])["state"]
            seen[_verdict(fails, cancelled.status, cancelled.json, reported.status, state)] += 1
            late = one.ask("POST", path + "/complete", {"token": token})
            repeated = not fails and state == "completed"  # a repeated report is answered as the first was
            assert (late.status, one.run(run["id"])["state"]) == (200 if repeated else 409, state)
    assert not seen["contradiction"], seen
    assert sum(seen.values()) == RACES


def _verdict(fails: bool, cancel_status: int, cancelled: Any, report_status: int, state: str) -> str:
    """Who won, if what was answered and what is so agree."""
    if cancel_status == 200 and cancelled["state"] == "cancelling":
        # Asked first: a failure then ends it, and work that was done is done.
        expected = "cancelled" if fails else "completed"
        return "asked first" if (report_status, state) == (200, expected) else "contradiction"
    if cancel_status == 200:
        # After a failure the run waited for its next attempt, and was cancelled there.
        good = fails and (cancelled["state"], report_status, state) == ("cancelled", 200, "cancelled")
        return "cancelled before the next attempt" if good else "contradiction"
    too_late = cancel_status == 409 and not fails and (report_status, state) == (200, "completed")
    return "reported first" if too_late and cancelled["code"] == "state_conflict" else "contradiction"


def test_a_worker_sees_a_cancel_in_its_next_heartbeat(nodes: Nodes, name: str) -> None:
    one, other = nodes.whole, nodes.api
    one.add(name, 3600)
    one("POST", f"/jobs/{name}/trigger")
    run_id, token = one.claim_one(name)
    assert one("POST", f"/runs/{run_id}/heartbeat", {"token": token})["cancel_requested"] is False
    other("POST", f"/runs/{run_id}/cancel", {"reason": "enough"})
    assert one("POST", f"/runs/{run_id}/heartbeat", {"token": token})["cancel_requested"] is True
    report = [{"id": run_id, "token": token, "outcome": "cancelled", "reason": "stopped at page 3"}]
    assert one("POST", "/runs/settle", report) == [{"id": run_id, "state": "cancelled"}]
    run = other.run(run_id)
    assert run["error"] == "stopped at page 3"
    assert "enough" in json.dumps(run["history"])
