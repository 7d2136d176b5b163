"""Endpoints that answer 202 and report later, by what the request gave them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.blackbox.outside import Api, Received, Receiver, Reply, Server, instant, serving
from tests.servers.process import free_port
from tests.waiting import eventually

KEY = "api-key-that-endpoints-do-not-hold"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It asks for a key."""
    store = f"sqlite:///{tmp_path_factory.mktemp('callbacks')}/horarium.db"
    with serving(store, "--allow-private-targets", "--api-key", KEY, key=KEY) as server:
        yield server


class Endpoint:
    """What an endpoint knows: the body that it was sent."""

    def __init__(self, request: Received) -> None:
        self.given: dict[str, Any] = json.loads(request.body)
        self.token: int = self.given["token"]

    def report(self, kind: str, **body: Any) -> Reply:
        """To the URL, with the key and the token that came in the request."""
        url: str = self.given["report"][kind]
        root, path = url.split("/api/v1", 1)
        return Api(root, self.given["report"].get("key")).ask("POST", f"/api/v1{path}", {"token": self.token, **body})


def call(server: Api, receiver: Receiver, name: str, **fields: Any) -> str:
    """A job whose endpoint reports later, run now; the id of its run."""
    target = {"type": "http", "url": f"{receiver.url}/{name}", "completion": "callback"}
    retry = {"attempts_max": 3, "backoff_seconds": 0.1, "backoff_factor": 1}
    server.add(name, 3600, target, **{"retry": retry, **fields})
    run: dict[str, Any] = server("POST", f"/jobs/{name}/trigger")
    return str(run["id"])


def taken(receiver: Receiver, name: str, count: int = 1) -> Endpoint:
    """The endpoint, once it has been asked so often."""
    return Endpoint(receiver.wait(f"/{name}", count)[count - 1])


@pytest.fixture(autouse=True)
def accepting(receiver: Receiver, name: str) -> None:
    receiver.answers[f"/{name}"] = lambda _: (202, {}, b"")


def test_heartbeats_keep_the_lease_and_progress_is_seen(server: Server, receiver: Receiver, name: str) -> None:
    run_id = call(server, receiver, name, timeouts={"heartbeat_seconds": 600})
    endpoint = taken(receiver, name)
    ends = [instant(receiver.at(f"/{name}")[0].headers["horarium-lease-expires-at"])]
    for percent in (5, 10, 15):
        beat = endpoint.report("heartbeat", progress={"percent": percent})
        assert (beat.status, beat.json["cancel_requested"]) == (200, False)
        assert server.run(run_id)["progress"] == {"percent": percent}
        ends.append(instant(beat.json["expires_at"]))
    assert all(before < after for before, after in pairwise(ends))
    done = endpoint.report("complete", result={"pages": 12})
    assert (done.json["state"], done.json["attempt"], done.json["result"]) == ("completed", 1, {"pages": 12})
    assert len(receiver.at(f"/{name}")) == 1


def test_a_failure_is_tried_again_under_a_larger_token(server: Server, receiver: Receiver, name: str) -> None:
    run_id = call(server, receiver, name)
    first = taken(receiver, name)
    assert first.report("fail", error="no paper").json["state"] == "pending"
    second = taken(receiver, name, 2)
    assert second.token > first.token
    assert first.given["run_id"] == second.given["run_id"] == run_id
    for kind, body in (("heartbeat", {}), ("complete", {}), ("fail", {"error": "late"})):
        late = first.report(kind, **body)
        assert (late.status, late.problem["code"]) == (409, "lease_lost")
    assert second.report("fail", error="no printer", retryable=False).json["state"] == "failed"
    assert "no printer" in server.run(run_id)["error"]


def test_silence_loses_the_attempt(server: Server, receiver: Receiver, name: str) -> None:
    run_id = call(server, receiver, name, timeouts={"heartbeat_seconds": 9})
    first, second = taken(receiver, name), taken(receiver, name, 2)
    assert second.token > first.token
    assert first.report("complete").problem["code"] == "lease_lost"
    assert second.report("complete").json["attempt"] == 2
    assert any("no heartbeat" in event["message"] for event in server.run(run_id)["history"])


@pytest.mark.parametrize("status", [202, 200, 500])
def test_a_report_may_come_before_the_answer(server: Server, receiver: Receiver, name: str, status: int) -> None:
    """Whatever the endpoint answers then comes too late to matter."""
    reported: list[Reply] = []

    def report_first(before: int) -> tuple[int, dict[str, str], bytes]:
        reported.append(Endpoint(receiver.at(f"/{name}")[before]).report("complete", result="mine"))
        return status, {}, b"its answer"

    receiver.answers[f"/{name}"] = report_first
    run_id = call(server, receiver, name)
    run = server.becomes(run_id, "completed")
    eventually(lambda: reported)
    assert (reported[0].status, run["result"]) == (200, "mine")
    after = call(server, receiver, f"{name}.after")
    receiver.wait(f"/{name}.after")
    server.becomes(after, "completed")
    assert server.run(run_id) == run
    assert len(receiver.at(f"/{name}")) == 1


def test_a_failure_before_the_answer_is_a_failure(server: Server, receiver: Receiver, name: str) -> None:
    def report_first(before: int) -> tuple[int, dict[str, str], bytes]:
        kind = "fail" if before == 0 else "complete"
        more = {"error": "at once"} if before == 0 else {}
        assert Endpoint(receiver.at(f"/{name}")[before]).report(kind, **more).status == 200
        return 202, {}, b""

    receiver.answers[f"/{name}"] = report_first
    run = server.becomes(call(server, receiver, name), "completed")
    assert (run["attempt"], len(receiver.at(f"/{name}"))) == (2, 2)


def test_any_other_success_completes_the_run_at_once(server: Server, receiver: Receiver, name: str) -> None:
    receiver.answers[f"/{name}"] = lambda _: (200, {}, b"done")
    run = server.becomes(call(server, receiver, name), "completed")
    assert run["result"]["body"] == "done"
    assert taken(receiver, name).report("complete").problem["code"] == "lease_lost"


def test_without_an_api_key_no_key_is_sent(receiver: Receiver, store: str, name: str) -> None:
    with serving(store, "--allow-private-targets", "--public-url", "http://elsewhere:99/base/") as own:
        run_id = call(own, receiver, name)
        endpoint = taken(receiver, name)
        base = f"http://elsewhere:99/base/api/v1/runs/{run_id}"
        assert endpoint.given["report"] == {kind: f"{base}/{kind}" for kind in ("heartbeat", "complete", "fail")}
        headers = receiver.at(f"/{name}")[0].headers
        assert headers["horarium-report-url"] == base
        assert "horarium-report-key" not in headers


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_the_server_may_be_restarted_between_the_202_and_the_report(
    receiver: Receiver, store: str, name: str, end: str
) -> None:
    flags = ("--allow-private-targets", "--api-key", KEY, "--port", str(free_port()))
    with serving(store, *flags, key=KEY) as first:
        run_id = call(first, receiver, name, timeouts={"heartbeat_seconds": 120})
        endpoint = taken(receiver, name)
        first.becomes(run_id, "running")
        eventually(lambda: endpoint.report("heartbeat").status == 200)
        first.kill() if end == "kill" else first.stop()
    with serving(store, *flags, key=KEY) as second:
        assert second.run(run_id)["state"] == "running"
        assert endpoint.report("heartbeat", progress=1).status == 200
        done = endpoint.report("complete", result="after all")
        assert (done.json["state"], done.json["attempt"], done.json["result"]) == ("completed", 1, "after all")
    assert len(receiver.at(f"/{name}")) == 1
