"""Who may ask."""

from __future__ import annotations

import logging

import pytest

from horarium.operations.settling.report_keys import key_digest, report_key
from horarium.testing.values import NOW

from .conftest import Api, Reply, a_definition


@pytest.mark.parametrize("key", ["first-key-1234", "second-key-5678"])
async def test_each_key_opens_the_api(locked_api: Api, key: str) -> None:
    assert (await locked_api.get("/jobs", headers={"authorization": f"Bearer {key}"})).status == 200
    assert (await locked_api.get("/jobs", headers={"authorization": f"bearer {key}"})).status == 200


@pytest.mark.parametrize(
    "given",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic first-key-1234", "first-key-1234", "Bearer first-key-123",
     "Bearer first-key-1234x", "Bearer \xe4"],
)  # fmt: skip
async def test_everything_else_is_unauthorized(refusing_locked: Api, given: str | None) -> None:
    headers = {} if given is None else {"authorization": given}
    for method, path in (("GET", "/jobs"), ("POST", "/runs/claim"), ("GET", "/stats"), ("DELETE", "/jobs/x")):
        reply = await refusing_locked.send(method, path, headers=headers)
        assert (reply.status, reply.code) == (401, "unauthorized")
        assert reply.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    "path", ["//api/v1/jobs", "///api/v1/jobs", "//api/v1/jobs/", "//api//v1//jobs", "//api/v1/stats/"]
)
async def test_no_spelling_of_a_path_goes_around_the_key(refusing_locked: Api, path: str) -> None:
    assert (await refusing_locked.get(path)).status in (401, 404)


@pytest.mark.parametrize("path", ["//healthz", "//readyz", "//metrics", "//docs/openapi.json", "//swagger-ui", "//"])
async def test_health_metrics_and_docs_are_open(refusing_locked: Api, path: str) -> None:
    assert (await refusing_locked.get(path)).status in (200, 302)


@pytest.mark.parametrize("key", ["first-key-1234", "second-key-5678"])
async def test_a_report_key_opens_the_reports_of_its_run_and_nothing_else(locked_api: Api, key: str) -> None:
    run, other = await locked_api.add_run(0), await locked_api.add_run(1)
    (first, second) = (await locked_api.store.claim_runs(["pull/work"], 2, "w", NOW, NOW, NOW)).runs
    headers = {"authorization": f"Bearer {report_key(key_digest(key), run.id)}"}

    async def post(path: str, **body: object) -> Reply:
        return await locked_api.post(path, body, headers=headers)

    assert (await post(f"/runs/{run.id}/heartbeat", token=first.token)).status == 200
    for path in (f"/runs/{other.id}/heartbeat", f"/runs/{other.id}/complete", f"/runs/{other.id}/fail"):
        assert (await post(path, token=second.token, error="x")).status == 401
    for path in ("/runs/claim", "/runs/settle", f"/runs/{run.id}/cancel", f"/runs/{run.id}/retry", "/jobs"):
        assert (await post(path)).status == 401
    for path in (f"/runs/{run.id}", "/runs", "/stats"):
        assert (await locked_api.get(path, headers=headers)).status == 401
    assert (await post(f"/runs/{run.id}/complete", token=first.token + 1)).code == "lease_lost"
    assert (await post(f"/runs/{run.id}/complete", token=first.token)).json["state"] == "completed"


@pytest.mark.parametrize("change", ["x", "\xe4", ""])
async def test_a_report_key_that_was_made_up_opens_nothing(locked_api: Api, change: str) -> None:
    run = await locked_api.add_run()
    made = [report_key(key_digest("first-key-1234"), run.id)[:-1] + change, report_key(b"", run.id), "hrk_" + change]
    for key in made:
        reply = await locked_api.post(
            f"/runs/{run.id}/complete", {"token": 1}, headers={"authorization": f"Bearer {key}"}
        )
        assert (reply.status, reply.code) == (401, "unauthorized")


async def test_a_request_without_a_key_is_not_read(refusing_locked: Api) -> None:
    reply = await refusing_locked.post("/jobs", b"{" * 5000)
    assert (reply.status, reply.unread) == (401, 1)


async def test_a_key_stands_in_no_answer_and_no_log(locked_api: Api, caplog: pytest.LogCaptureFixture) -> None:
    locked_api.failing.add("list_jobs")
    with caplog.at_level(logging.DEBUG):
        replies = [
            await locked_api.get("/jobs", headers={"authorization": "Bearer first-key-1234"}),
            await locked_api.get("/jobs", headers={"authorization": "Bearer canary-key-9999"}),
            await locked_api.get("//docs/openapi.json"),
        ]
    shown = b"".join(reply.body for reply in replies).decode() + caplog.text
    assert "first-key-1234" not in shown
    assert "canary" not in shown


FOREIGN = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "anything-else"},
    {"sec-fetch-site": "cross-site", "origin": "http://testserver"},
    {"origin": "https://evil.example"},
    {"origin": "null"},
]


@pytest.mark.parametrize("headers", FOREIGN)
async def test_a_page_of_another_site_changes_nothing(api: Api, headers: dict[str, str]) -> None:
    await api.add_job()
    for method, path in (
        ("POST", "/jobs/job/pause"),
        ("DELETE", "/jobs/job"),
        ("POST", "/jobs"),
        ("PATCH", "/jobs/job"),
    ):
        assert (await api.send(method, path, headers=headers)).code == "cross_site"
    assert (await api.get("/jobs/job")).json["enabled"] is True


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("path", ["/jobs/job/fires", "/jobs", "/stats", "//metrics", "///api/v1/jobs"])
async def test_a_page_of_another_site_asks_for_no_work(api: Api, headers: dict[str, str], path: str) -> None:
    await api.add_job()
    assert (await api.get(path, headers=headers)).status in (403, 404)
    assert 'horarium_requests_refused_total{reason="site"}' in api.telemetry.render()[0].decode() or path[:3] == "///"


@pytest.mark.parametrize("path", ["//", "//swagger-ui", "//docs/openapi.json", "//healthz"])
async def test_a_link_on_another_site_leads_to_our_pages(api: Api, path: str) -> None:
    assert (await api.get(path, headers={"sec-fetch-site": "cross-site"})).status in (200, 302)


@pytest.mark.parametrize(
    "headers",
    [{"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, {"origin": "http://testserver"},
     {"sec-fetch-site": "same-origin", "origin": "https://proxy.example"}],
)  # fmt: skip
async def test_our_own_page_may_change_things(api: Api, headers: dict[str, str]) -> None:
    assert (await api.post("/jobs", a_definition(), headers=headers)).status == 201
