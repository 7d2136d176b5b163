"""A restored copy: the server starts under a hold, and nothing begins until a person lifts it."""

from __future__ import annotations

import pytest

from tests.blackbox.outside import Server, serving

pytestmark = pytest.mark.slow


def claimed(server: Server, name: str, wait: float = 0) -> list[str]:
    answer = server("POST", "/runs/claim", {"queues": [name], "limit": 9, "worker": "w", "wait_seconds": wait})
    return [run["id"] for run in (answer or {"runs": []})["runs"]]


def test_a_server_that_is_started_held_begins_nothing_until_the_hold_is_lifted(store: str, name: str) -> None:
    with serving(store, "--roles", "api") as server:
        server.add(name, {"type": "once", "at": "2099-01-01T00:00:00Z"}, {"type": "queue", "queue": name})
        run = server("POST", f"/jobs/{name}/trigger")["id"]
    for time in ("first", "second"):
        with serving(store, "--held") as server:
            (hold,) = server("GET", "/holds?active=true")["items"]
            assert (hold["scope"], hold["reason"]) == ({"all": True}, "started with --held")
            assert claimed(server, name) == []
            if time == "second":
                server("DELETE", f"/holds/{hold['id']}")
                assert claimed(server, name, 30) == [run]
