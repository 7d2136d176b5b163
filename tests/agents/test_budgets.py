"""The budget of an agent's key on a real server: calls, runs, and what can't be counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from horarium.client import Client
from horarium.errors import Forbidden, OverBudget
from tests.agents.test_attacks import call
from tests.agents.test_official_client import KEY
from tests.blackbox.outside import Server, serving

pytestmark = pytest.mark.slow
JOB: dict[str, Any] = {
    "name": "nightly", "trigger": {"type": "cron", "expression": "0 3 * * *"},
    "target": {"type": "queue", "queue": "work"},
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(f"sqlite:///{tmp_path_factory.mktemp('budgets')}/horarium.db", "--mcp", "--api-key", KEY) as made:
        with Client(made.url, KEY) as client:
            client.put_job(JOB)
        yield made


def test_runs_are_counted_where_they_are_asked_for(server: Server) -> None:
    with Client(server.url, KEY) as admin:
        made = admin.create_key("agent", ["editor"], runs_per_day=4)
        assert made["runs_per_day"] == 4
        assert {key["name"]: key.get("runs_per_day") for key in list(admin.keys())}["agent"] == 4
        (entry,) = admin.audit(action="key.create", object="key/agent")
        assert entry["after"]["runs_per_day"] == 4
    with Client(server.url, made["key"]) as client:
        client.trigger_job("nightly")
        with pytest.raises(OverBudget, match="a budget of 4 runs a day, of which 3 are left"):
            list(client.add_runs([{"target": JOB["target"]}] * 4))
        assert len(list(client.add_runs([{"target": JOB["target"]}] * 2))) == 2
        with pytest.raises(Forbidden, match="one by one, or in a list"):
            client.retry_runs(job="nightly")
        assert not call(server, made["key"], "trigger", {"job": "nightly"})[2]
        status, text, is_error = call(server, made["key"], "trigger", {"job": "nightly"})
        assert (status, is_error, text[:13], "over_budget" in text) == (200, True, "Refused (429)", True)
        assert client.get_job("nightly").name == "nightly"


def test_calls_are_counted_and_a_tool_is_one(server: Server) -> None:
    with Client(server.url, KEY) as admin:
        key = admin.create_key("looks", ["viewer"], calls_per_hour=3)["key"]
    answers = [call(server, key, "jobs", {})[2] for _ in range(4)]
    assert answers == [False, False, False, True]
    with Client(server.url, key) as client, pytest.raises(OverBudget) as over:
        client.get_job("nightly")
    assert over.value.code == "over_budget"
