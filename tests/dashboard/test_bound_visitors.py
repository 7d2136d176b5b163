"""A visitor that is bound to queues or labels sees its own in the pages, and nothing of others: each page is asked."""

from __future__ import annotations

import json
from os import urandom
from urllib.parse import urlencode

import pytest

from horarium.access.keys import digest_of
from horarium.access.sessions import Sessions
from horarium.dashboard.site import csrf_of
from tests.api.test_bound_keys import SECRET, THEIRS, Two
from tests.dashboard.visitor import FORM

QUERIES = ("", "?q=zan", "?show=failing", "?show=paused", "?show=late", "?sort=next", "?span=day", "?action=retry")
FORMS = (
    {"rule": "every 5 minutes", "timezone": "UTC", "editing": f"{SECRET}-0"},
    {"action": "cancel"}, {"action": "retry"}, {"do": "pause", "name": f"{SECRET}-0"}, {"name": f"{SECRET}-0"},
    {"decision": "approve"}, {"at": "2027-01-15T09:00"}, {"action": "pause", "job": f"{SECRET}-0"},
)  # fmt: skip


@pytest.fixture(params=["queues", "labels"])
async def two(request: pytest.FixtureRequest) -> Two:
    made = Two(request.param)
    await made.set_up()
    await made.admin("POST", "/holds", {"scope": {"job": f"{SECRET}-1"}, "reason": f"{SECRET} is moved"})
    return made


async def session_of(two: Two) -> str:
    sessions = Sessions(two.api.store, two.api.clock, urandom)
    return await sessions.begin("key", digest_of(two.token))


@pytest.mark.slow
async def test_no_page_shows_or_changes_what_others_have(two: Two) -> None:
    token = await session_of(two)
    cookie = {"cookie": f"horarium_session={token}"}
    before = await two.theirs()
    statuses: dict[str, set[int]] = {}
    for route in two.api.app.routes:
        page = route.page
        if page is None or page.open or page.scope is None or page.name == "events":
            continue
        for run in two.runs.values() if "{id}" in route.path else ("",):
            if run and SECRET not in next(name for name, id in two.runs.items() if id == run) and page.method == "POST":
                continue
            path = route.path.replace("{name}", f"{SECRET}-0").replace("{id}", run)
            path = "//" + path.lstrip("/").replace("{key}", "x")
            asked: list[tuple[str, bytes | None]] = [(path + query, None) for query in QUERIES]
            if page.method == "POST":
                forms = ("&".join(f"{name}={text}" for name, text in form.items()) for form in FORMS)
                asked = [(path, f"csrf={csrf_of(token)}&{form}".encode()) for form in forms]
            for url, body in asked:
                reply = await two.api.send(page.method, url, body, headers=cookie)
                told = reply.body.decode().replace(f"{SECRET}-0", "").replace(f"&#34;{SECRET}", "")
                assert SECRET not in told, (page.method, url, body, reply.status, told)
                assert reply.status < 500, (url, told)
                statuses.setdefault(f"{page.method} {route.path}", set()).add(reply.status)
    assert await two.theirs() == before
    shown = {"GET /", "GET /jobs", "GET /runs", "GET /queues", "GET /calendar", "GET /approvals"}
    assert {name for name in shown if 200 in statuses.get(name, set())} == shown, statuses
    closed = {"GET /jobs/{name}": {404}, "GET /nodes": {403}, "GET /channels": {403}, "GET /audit": {403}}
    assert {name: statuses[name] for name in closed} == closed


async def test_its_own_is_in_the_pages(two: Two) -> None:
    cookie = {"cookie": f"horarium_session={await session_of(two)}"}

    async def page(path: str) -> str:
        reply = await two.api.send("GET", f"/{path}", headers=cookie)
        assert reply.status == 200, (path, reply.body)
        return reply.body.decode()

    jobs = await page("/jobs")
    assert all(f"plain-{number}" in jobs for number in range(3))
    assert "The plain" in await page("/jobs/plain-0")
    assert two.runs["ours failed"] in await page("/runs")
    assert "pull/ours" in await page("/queues")
    overview = await page("/")
    assert "Runs by minute" not in overview
    assert 'href="/nodes"' not in overview
    assert THEIRS not in overview
    await two.admin("POST", "/holds", {"scope": {"all": True}, "reason": "the whole house"})
    assert "the whole house" in await page("/")


async def test_it_sees_its_own_plans_and_those_of_others_are_not_there() -> None:
    two = Two("labels")
    await two.set_up()
    token = await session_of(two)
    cookie = {"cookie": f"horarium_session={token}"}
    ours = (await two.api.send("GET", "/jobs/plain-0", headers={"authorization": f"Bearer {two.token}"})).json
    document = {"name": "plain-0", "trigger": {"type": "cron", "expression": "0 5 * * *"}, "target": ours["target"],
                "labels": ours["labels"]}  # fmt: skip
    form = urlencode({"csrf": csrf_of(token), "documents": json.dumps([document])}).encode()
    reply = await two.api.send("POST", "//plans", form, headers={**cookie, "content-type": FORM})
    assert reply.status == 303, reply.body
    page = await two.api.send("GET", "/" + reply.headers["location"], headers=cookie)
    assert page.status == 200
    assert b"plain-0" in page.body
    theirs = {"name": f"{SECRET}-new", "trigger": document["trigger"], "target": {"type": "queue", "queue": THEIRS}}
    for documents in ({"jobs": [theirs]}, {"jobs": [document], "calendars": [{"name": f"{SECRET}-days"}]}):
        made = await two.admin("POST", "/plans", {"documents": documents})
        reply = await two.api.send("GET", f"//plans/{made['id']}", headers=cookie)
        assert reply.status == 404, documents
        assert SECRET not in reply.body.decode()


async def test_what_a_job_was_with_others_is_in_no_page(two: Two) -> None:
    theirs = {"type": "http", "url": f"https://{SECRET}.example/", "headers": {"X-Plain": SECRET}}
    await two.admin("POST", "/jobs", {"name": "handed-over", "trigger": {"type": "cron", "expression": "0 5 * * *"},
                                      "target": theirs})  # fmt: skip
    ours = (await two.api.send("GET", "/jobs/plain-0", headers={"authorization": f"Bearer {two.token}"})).json
    await two.admin("PATCH", "/jobs/handed-over", {"target": ours["target"], "labels": ours["labels"], "title": "Ours"})
    await two.admin("PATCH", "/jobs/handed-over", {"title": "Ours now"})
    for path, headers in (
        ("//jobs/handed-over", {"cookie": f"horarium_session={await session_of(two)}"}),
        ("/jobs/handed-over/versions", {"authorization": f"Bearer {two.token}"}),
    ):
        reply = await two.api.send("GET", path, headers=headers)
        assert reply.status == 200
        assert "Ours now" in reply.body.decode()
        assert SECRET not in reply.body.decode(), path
