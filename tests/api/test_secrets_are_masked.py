"""No answer of the API and no page shows a secret of a target, in whatever shape and place it was given."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import Api, a_definition

pytestmark = pytest.mark.slow

CANARY = "hunter2"
COMMAND = {
    "type": "command", "queue": "work", "command": ["pg_dump"],
    "env": {"PGPASSWORD": CANARY, "GITHUB_PAT": CANARY, "KEY_PASSPHRASE": CANARY, "SESSION_JWT": CANARY,
            "DATABASE_URL": f"postgresql://me:{CANARY}@db/x", "HOOK": f"https://h/?token={CANARY}"},
}  # fmt: skip
HTTP = {
    "type": "http", "url": f"https://me:{CANARY}@h.example/?access_token={CANARY}",
    "signing_secret": f"{CANARY}{CANARY}", "cancel_url": f"https://h.example/?key={CANARY}",
    "headers": {"Authorization": CANARY, "X-Vault-Key": CANARY, "X-Jwt": CANARY, "Private-Token": CANARY,
                "X-Passphrase": CANARY, "X-Auth": CANARY, "X-Credential": CANARY},
}  # fmt: skip


def with_canary(value: Any, canary: str) -> Any:
    """The same target with another secret in its place."""
    if isinstance(value, dict):
        return {name: with_canary(each, canary) for name, each in value.items()}
    return value.replace(CANARY, canary) if isinstance(value, str) else value


@pytest.mark.parametrize("target", [COMMAND, HTTP], ids=["command", "http"])
async def test_no_answer_shows_a_secret(target: dict[str, Any]) -> None:
    api = Api(pages=True)
    replies = [await api.post("/jobs", a_definition(target=target))]
    assert replies[0].status == 201, replies[0].body
    replies.append(await api.send("PUT", "/jobs/job", a_definition(target=with_canary(target, f"{CANARY}-2"))))
    replies.append(await api.send("PATCH", "/jobs/job", {"title": "t"}))
    replies.append(await api.post("/jobs/job/trigger"))
    replies.append(await api.post("/runs", {"target": target}))
    replies.append(await api.post("/runs/batch", {"runs": [{"target": target}]}))
    replies.append(await api.post("/import", {"jobs": [a_definition("other", target=target)]}))
    replies.append(await api.post("/jobs/job/revert", {"version": 1}))
    assert all(reply.status < 300 for reply in replies), [reply.body for reply in replies if reply.status >= 300]
    runs = [run["id"] for run in (await api.get("/runs")).json["items"]]
    assert len(runs) == 3
    paths = [
        "/jobs", "/jobs/job", "/jobs/job/versions", "/audit", "/runs", "/stats", *(f"/runs/{each}" for each in runs),
        "///", "//jobs", "//jobs/job", "//jobs/job/edit", "//audit", "//runs", *(f"//runs/{each}" for each in runs),
    ]  # fmt: skip
    replies += [await api.get(path) for path in paths]
    assert {reply.status for reply in replies} == {200, 201}
    assert [reply.body for reply in replies if CANARY.encode() in reply.body] == []
    again = await api.send(
        "PUT", "/jobs/other", {**a_definition("other"), "target": (await api.get("/jobs/other")).json["target"]}
    )
    assert again.status == 200, again.body
