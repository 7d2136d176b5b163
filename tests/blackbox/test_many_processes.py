"""Several processes on one file: each role alone, whole servers side by side, workers that die or hang up."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from functools import partial
from urllib.parse import urlsplit

import pytest

from tests.blackbox.outside import Api, Receiver, Server, environment, instant, now, serving
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

ALL = {"policy": "all"}
"""So that a planner that is late on a busy machine leaves no fire time out."""


def test_each_role_alone_makes_a_whole(store: str, receiver: Receiver, name: str) -> None:
    flags = ("--store", store, "--allow-private-targets")
    roles = [
        subprocess.Popen(
            [sys.executable, "-m", "horarium", role, *flags], env=environment(), stderr=subprocess.PIPE, text=True
        )
        for role in ("planner", "dispatcher", "rescuer", "pruner")
    ]
    try:
        with serving(store, "--allow-private-targets", "--roles", "api") as api:
            api.add(name, 1, {"type": "http", "url": f"{receiver.url}/{name}"}, fires_max=2, catch_up=ALL)
            assert len({request.headers["webhook-id"] for request in receiver.wait(f"/{name}", 2)}) == 2
            nodes = eventually(lambda: len(found := api("GET", "/nodes")["items"]) == 5 and found)
            assert {role for node in nodes for role in node["roles"]} == {
                "api", "planner", "dispatcher", "rescuer", "pruner"
            }  # fmt: skip
    finally:
        for process in roles:
            process.terminate()
        assert [process.communicate(timeout=PATIENCE) and process.returncode for process in roles] == [0, 0, 0, 0]


def test_two_servers_plan_and_deliver_each_fire_once_and_one_may_die(store: str, receiver: Receiver, name: str) -> None:
    with serving(store, "--allow-private-targets") as stays:
        dies = Server(store, "--allow-private-targets")
        for number in range(10):
            target = {"type": "http", "url": f"{receiver.url}/{name}"}
            stays.add(f"{name}.{number}", 1, target, fires_max=3, catch_up=ALL)
        receiver.wait(f"/{name}", 15)
        dies.kill()
        receiver.wait(f"/{name}", 28)
        for number in range(10):
            job = f"{name}.{number}"
            eventually(partial(_fires_no_more, stays, job))
            assert len({run["fire_at"] for run in stays.runs(job)}) == len(stays.runs(job)) == 3


def test_a_worker_that_hangs_up_takes_no_run_with_it(server: Server, name: str) -> None:
    address = urlsplit(server.url)
    body = json.dumps({"queues": [name], "wait_seconds": 60, "worker": "leaves"}).encode()
    fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    head = f"POST /api/v1/runs/claim HTTP/1.1\r\n{fields}"
    server.add(name, 3600)
    waiting = server("GET", "/stats")["workers_waiting"]
    for _ in range(5):
        with socket.create_connection((address.hostname or "", address.port or 0)) as leaving:
            leaving.sendall(head.encode() + body)
            eventually(lambda: server("GET", "/stats")["workers_waiting"] > waiting)
        eventually(lambda: server("GET", "/stats")["workers_waiting"] == waiting)
    server("POST", f"/jobs/{name}/trigger")
    (run,) = server.claim(name)
    assert run["attempt"] == 1


def test_one_run_goes_to_one_of_many_workers_that_wait(server: Server, name: str) -> None:
    server.add(name, 3600)
    got: list[str] = []

    def wait_for_work() -> None:
        got.extend(run["id"] for run in server.claim(name, wait=60))

    waiting = [threading.Thread(target=wait_for_work) for _ in range(6)]
    for thread in waiting:
        thread.start()
    eventually(lambda: server("GET", "/stats")["workers_waiting"] >= 6)
    runs = [server("POST", f"/jobs/{name}/trigger")["id"]]
    eventually(lambda: got)
    runs += [server("POST", f"/jobs/{name}/trigger")["id"] for _ in waiting[1:]]
    for thread in waiting:
        thread.join(PATIENCE)
    assert got[0] == runs[0]
    assert sorted(got) == sorted(runs), "the others were left waiting, each for a run of its own"


def test_a_stop_answers_those_who_wait_and_exits_with_0(store: str, name: str) -> None:
    server = Server(store)
    answers: list[int] = []
    asked = {"queues": [name], "wait_seconds": 60, "worker": "w"}
    thread = threading.Thread(target=lambda: answers.append(server.ask("POST", "/api/v1/runs/claim", asked).status))
    thread.start()
    eventually(lambda: server("GET", "/stats")["workers_waiting"] == 1)
    begun = now()
    assert server.stop() == 0
    thread.join(PATIENCE)
    assert answers == [503]
    assert now() - begun < timedelta(seconds=55), "they would have waited for 60"


def test_what_was_acknowledged_is_there_after_a_kill(store: str, name: str) -> None:
    first = Server(store)
    first.add(name, 3600)
    run = first("POST", f"/jobs/{name}/trigger", {"payload": {"n": 1}})
    claimed, token = first.claim_one(name)
    first.kill()
    with serving(store) as second:
        assert second.run(run["id"])["state"] == "running"
        done = second("POST", f"/runs/{claimed}/complete", {"token": token, "result": "kept"})
        assert (done["state"], done["result"]) == ("completed", "kept")
        assert instant(second("GET", f"/jobs/{name}")["next_fire_at"]) > now()


def _fires_no_more(api: Api, job: str) -> bool:
    return api("GET", f"/jobs/{job}")["next_fire_at"] is None
