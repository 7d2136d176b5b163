"""Logs of runs, as workers report them and as readers follow them."""

from __future__ import annotations

from typing import Any

from horarium.model.logs import LOG_LINE_BYTES_MAX

from .conftest import Api


async def a_claimed_run(api: Api) -> tuple[str, int]:
    await api.add_job()
    await api.add_run(0)
    (claimed,) = await api.claim()
    return claimed["id"], claimed["lease"]["token"]


async def test_lines_are_reported_and_read(api: Api) -> None:
    id, token = await a_claimed_run(api)
    path = f"/runs/{id}/log"
    assert (await api.get(path)).json["items"] == []
    said: list[Any] = ["one", {"text": "two", "stream": "stderr", "at": "2027-01-15T07:00:00Z"}]
    reply = await api.post(path, {"token": token, "lines": said})
    assert (reply.status, reply.json) == (200, {"lines": 2})
    page = (await api.get(path)).json
    assert page["items"] == [
        {"at": "2027-01-15T08:00:00Z", "stream": "stdout", "text": "one"},
        {"at": "2027-01-15T07:00:00Z", "stream": "stderr", "text": "two"},
    ]
    rest = (await api.get(f"{path}?after={page['next_cursor']}")).json
    assert (rest["items"], rest["next_cursor"]) == ([], page["next_cursor"])
    await api.post(f"/runs/{id}/complete", {"token": token})
    assert (await api.get(f"{path}?after={page['next_cursor']}&wait_seconds=20")).json["next_cursor"] is None
    first = (await api.get(f"{path}?limit=1")).json
    assert [line["text"] for line in first["items"]] == ["one"]
    assert [line["text"] for line in (await api.get(f"{path}?after={first['next_cursor']}")).json["items"]] == ["two"]


async def test_what_is_wrong_is_refused(api: Api) -> None:
    id, token = await a_claimed_run(api)
    path = f"/runs/{id}/log"
    assert (await api.post(path, {"token": token + 1, "lines": ["x"]})).code == "lease_lost"
    assert (await api.post("/runs/0-0/log", {"token": 1, "lines": ["x"]})).code == "not_found"
    assert (await api.get("/runs/0-0/log")).code == "not_found"
    assert (await api.get(f"{path}?after=nonsense")).code == "invalid_cursor"
    assert (await api.post(path, {"token": token, "lines": ["x"] * 1_001})).status == 422
    assert (await api.post(path, {"token": token, "lines": [5]})).status == 422
    assert (await api.post(path, {"token": token, "lines": ["x" * 600_000]})).status == 413


async def test_a_long_line_and_a_nul_are_kept_as_far_as_they_can_be(api: Api) -> None:
    id, token = await a_claimed_run(api)
    await api.post(f"/runs/{id}/log", {"token": token, "lines": ["x" * 100_000, "a\0b"]})
    long, nul = (await api.get(f"/runs/{id}/log")).json["items"]
    assert (len(long["text"]), nul["text"]) == (LOG_LINE_BYTES_MAX, "a\N{REPLACEMENT CHARACTER}b")
