"""The list of attacks on the tools: each argument of every wrong kind, texts that try to get out of their place, bodies
that are too large or too deep, keys that may not. A finding is an answer that is no refusal, or too much of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from horarium.agents.tools import TOOLS, Tool
from horarium.client import Client
from tests.agents.test_official_client import KEY, post
from tests.blackbox.outside import Server, serving

pytestmark = pytest.mark.slow
MIB = 1024 * 1024
TEXTS = (
    "\x00", "../../keys", "%2e%2e/keys", "a?api_key=1", "a#b", "a\r\nHost: evil", "'; DROP TABLE runs; --",
    '{"$gt": ""}', "${jndi:ldap://x}", "{{7*7}}", "<script>alert(1)</script>", "\u202e", "\ud800", "é" * 100,
    "x" * 100_000,
)  # fmt: skip
VALUES: dict[str, tuple[Any, ...]] = {
    "string": (None, True, 0, -1, 1.5, 10**30, [], ["nightly"], {}, {"$gt": ""}, ""),
    "integer": (None, "1", [], {}, 1.5, -1, 0, 10**30, True),
    "boolean": (None, "true", 1, [], {}),
    "array": (None, "all", 1, {}, [1], [None], [{}] * 101),
    "object": (None, "all", 1, [], {"type": None}, {"all": "yes"}, {"job": ["nightly"]}),
}
REACHED = ("Done.", "Refused (4", "The arguments are wrong", "There is no such tool")


def deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = {"x": [value]}
    return value


def good(tool: Tool) -> dict[str, Any]:
    """Arguments that fit the schema, for things that there are not."""
    fitting = {
        "trigger": {"type": "interval", "every_seconds": 60}, "scope": {"job": "none"}, "until": "2199-01-01T00:00:00Z",
        "decision": "approve",
    }  # fmt: skip
    return {name: fitting.get(name, "none") for name in tool.required}


def attacks() -> Iterator[tuple[str, Any, bool]]:
    """A tool, its arguments, and whether they must be refused."""
    for tool in TOOLS:
        for name, schema in tool.properties.items():
            kind = schema.get("type")
            for value in VALUES.get(kind, ()):
                yield tool.name, {**good(tool), name: value}, kind != "object"
            if kind == "string":
                for text in TEXTS:
                    yield tool.name, {**good(tool), name: text}, False
        yield tool.name, {**good(tool), "api_key": KEY}, True
        yield tool.name, {**good(tool), "__proto__": {}}, True
        others: tuple[Any, ...] = ([], "x", 5, None)
        for arguments in others:
            yield tool.name, arguments, bool(tool.required) or arguments is not None
    for levels in (100, 5_000):
        yield "trigger", {"job": "none", "payload": deep(levels)}, True
        yield "plan", {"jobs": [{"name": "deep", "labels": deep(levels)}]}, False
    yield "apply", {"id": "none", "documents": {"jobs": []}}, True


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(f"sqlite:///{tmp_path_factory.mktemp('attacks')}/horarium.db", "--mcp", "--api-key", KEY) as made:
        yield made


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, KEY) as made:
        made.put_job({"name": "nightly", "trigger": {"type": "cron", "expression": "0 3 * * *"},
                      "target": {"type": "queue", "queue": "work"}})  # fmt: skip
        yield made


def call(server: Server, key: str, tool: str, arguments: Any) -> tuple[int, str, bool]:
    """Status, text and whether it is an error."""
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    try:
        body = json.dumps(asked).encode()
    except RecursionError:
        head, tail = json.dumps({**asked, "params": {"name": tool, "arguments": {"job": "none", "payload": 0}}}).split(
            "0}"
        )
        body = f"{head}{'[' * 5_000}{']' * 5_000}}}{tail}".encode()
    status, said = post(server, body, Authorization=f"Bearer {key}")
    if status != 200:
        return status, said, True
    answer = json.loads(said)
    if "error" in answer:
        return status, f"Refused (4{answer['error']['code']}) {answer['error']['message']}", True
    return status, answer["result"]["content"][0]["text"], bool(answer["result"].get("isError"))


def said_too_much(status: int, text: str) -> bool:
    """A fault of ours, or more of an answer than a refusal needs."""
    return status >= 500 or "Traceback" in text or "Refused (5" in text or KEY in text or len(text) > 65_000


def test_the_list_of_attacks_has_no_finding(server: Server, client: Client) -> None:
    before = [run.id for run in client.list_runs()]
    findings = []
    tried = 0
    for tool, arguments, refused in attacks():
        status, text, is_error = call(server, KEY, tool, arguments)
        tried += 1
        if (
            said_too_much(status, text)
            or (status == 200 and not text.startswith(REACHED))
            or (refused and not is_error)
        ):
            findings.append((tool, str(arguments)[:200], status, text[:200]))
    assert (findings, tried > 400) == ([], True)
    assert [run.id for run in client.list_runs()] == before
    assert [job.name for job in client.list_jobs()] == ["nightly"]


def test_a_body_that_is_too_large_is_refused(server: Server, client: Client) -> None:
    arguments = {"job": "nightly", "payload": "x" * (10 * MIB)}
    assert call(server, KEY, "trigger", arguments)[0] == 413
    assert call(server, KEY, "trigger", {**arguments, "payload": "x" * (MIB // 2)})[2]
    assert call(server, KEY, "jobs", {})[0] == 200


def test_keys_that_may_not_change_nothing(server: Server, client: Client) -> None:
    viewer = str(client.create_key("looks", roles=["viewer"])["key"])
    bound = str(client.create_key("bound", roles=["editor"], queues=["other"])["key"])
    job = {
        "name": "new",
        "trigger": {"type": "interval", "every_seconds": 60},
        "target": {"type": "queue", "queue": "q"},
    }
    plan = json.loads(call(server, KEY, "plan", {"jobs": [job]})[1].split("\n")[2])["id"]
    writing = {
        "trigger": {"job": "nightly"}, "apply": {"id": plan}, "approve": {"id": plan, "decision": "approve"},
        "hold": {"scope": {"all": True}, "until": "2199-01-01T00:00:00Z", "reason": "x"},
    }  # fmt: skip
    assert set(writing) == {tool.name for tool in TOOLS if tool.writes}
    for key in (viewer, bound, "hk_" + "A" * 43):
        for tool, arguments in writing.items():
            status, text, is_error = call(server, key, tool, arguments)
            assert (status in (200, 401), is_error) == (True, True), (tool, status, text)
    for actor in ("looks", "bound"):
        assert [entry for entry in client.audit(actor=actor) if entry["outcome"] != "refused"] == []
    assert list(client.list_runs(job="nightly")) == []
