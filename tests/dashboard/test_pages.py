"""The pages as a browser gets them: what they show, what they refuse, and that nothing of them can be turned."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from horarium.access.sessions import LASTS, ROTATED_AFTER
from horarium.api.routing import ELSEWHERE
from horarium.clock import SECOND, Instant
from horarium.dashboard.app import pages_of
from horarium.library.one_offs import Wanted, one_offs
from horarium.model import Run, RunFollow, State, Succeeded, uuid7
from horarium.operations.settling.settling import Settlement
from horarium.rules.chains import then_key
from horarium.testing.values import NOW
from tests.api.conftest import Api, a_definition
from tests.dashboard.visitor import Visitor

pytestmark = pytest.mark.slow

KEY = "first-key-1234"
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&{{7*7}}"
GETS = ("/", "/?span=day", "/approvals", "/jobs", "/runs", "/calendar", "/calendar?span=day", "/calendar?span=month",
        "/queues", "/nodes", "/channels", "/audit", "/new-job", "/bulk-runs?action=retry", "/jobs?sort=next",
        "/bulk-jobs?action=pause", "/search", "/search?q=pause+j",
        "/queue?name=q", "/?wall", "/rates", "/rates?prefix=a", "/feeds", "/access", "/deleted-jobs",
        "/jobs?show=paused", "/forecast", "/quiet-minutes", "/plans", "/failures",
        "/timeline", "/timeline?span=7d&by=job", "/timeline?by=worker", "/business-days", "/holds",
        "/batches", "/batches?q=import&state=open")  # fmt: skip


@pytest.fixture
def api() -> Api:
    return Api(pages=True)


@pytest.fixture
def locked() -> Api:
    return Api([KEY], pages=True)


@pytest.fixture
def visitor(api: Api) -> Visitor:
    return Visitor(api)


async def a_failed_run(api: Api, job: str = "job", error: str = "ValueError: no") -> str:
    await api.post(f"/jobs/{job}/trigger")
    (run,) = await api.claim()
    await api.post(f"/runs/{run['id']}/fail", {"token": run["lease"]["token"], "error": error, "retryable": False})
    run_id: str = run["id"]
    return run_id


def seed_run(number: int, now: Instant) -> Run:
    """One of a job that runs every second."""
    at = now - (number + 1) * SECOND
    state = State.COMPLETED
    return Run(id=uuid7(at, b"busy" * 3), queue="q", job="busy", job_id="busy", fire_at=at, due_at=at, created_at=at,
               state=state, attempt=1, token=1, started_at=at, finished_at=at)  # fmt: skip


class _Refused(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        if tag == "style" or (tag == "script" and "src" not in names):
            self.found.append(tag)
        self.found += [f"{tag} {name}" for name in names if name == "style" or name.startswith("on")]


def problems_of(page: str) -> list[str]:
    """What a strict content policy would refuse: scripts and styles that stand in the page."""
    reader = _Refused()
    reader.feed(page)
    return reader.found


@pytest.mark.parametrize("path", GETS)
async def test_every_page_answers_under_a_strict_policy(visitor: Visitor, path: str) -> None:
    reply = await visitor.open(path)
    assert reply.status == 200, reply.body
    policy = reply.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert problems_of(visitor.page) == []


async def test_pages_of_what_there_is_answer_too(api: Api, visitor: Visitor) -> None:
    await api.add_job("job")
    run = await a_failed_run(api)
    for path in ("/jobs/job", "/jobs/job?next=all", "/jobs/job/edit", f"/runs/{run}", f"/runs/{run}/log", *GETS):
        reply = await visitor.open(path)
        assert reply.status == 200, (path, visitor.text)
        assert problems_of(visitor.page) == [], path


async def test_every_page_of_the_table_is_opened_by_these_tests(api: Api) -> None:
    opened = {path.partition("?")[0] for path in GETS}
    opened |= {"/plans/{id}", "/batches/{id}", "/compare", "/business-days/{name}",
               "/jobs/{name}", "/jobs/{name}/edit", "/runs/{id}", "/runs/{id}/log", "/sign-in",
               "/events", "/dashboard/{stamp}/{file}", "/acknowledge", ELSEWHERE}  # fmt: skip
    entrance: Any = type("Entrance", (), {
        "operations": api.operations, "claims": api.claims, "keys": None, "news": None, "entropy": None,
    })  # fmt: skip
    table = pages_of(entrance, api.telemetry.tally, None)  # type: ignore[arg-type]
    assert {page.path for page in table if page.method == "GET"} == opened
    assert all(page.scope is not None for page in table if page.method == "POST" and page.name not in
               ("sign-in-done", "sign-out"))  # fmt: skip


async def test_the_calendar_shows_what_seldom_runs_beside_what_runs_all_the_time(api: Api, visitor: Visitor) -> None:
    await api.add_job("nightly")
    await a_failed_run(api, "nightly")
    busy = [seed_run(number, api.clock.now()) for number in range(1_200)]
    await api.operations.store.add_runs(busy)
    await visitor.open("/calendar?span=day")
    assert "nightly" in visitor.text
    assert "Failed" in visitor.text


async def test_what_a_run_holds_is_shown_with_what_follows_from_it(api: Api, visitor: Visitor) -> None:
    target = {
        "type": "http",
        "url": "https://example.com/x?token=s3cr3t",
        "headers": {"Authorization": "Bearer s3cr3t"},
    }
    await api.add_job("hooked", target=target)
    run = (await api.post("/jobs/hooked/trigger")).json["id"]
    await visitor.open(f"/runs/{run}")
    assert "Request to be sent" in visitor.text
    assert "Authorization: ********" in visitor.text
    assert "s3cr3t" not in visitor.page
    await api.post(f"/runs/{run}/cancel")
    again = (await api.post(f"/runs/{run}/retry")).json["id"]
    await visitor.open(f"/runs/{again}")
    assert "Horarium-Run" in visitor.text


async def test_what_follows_from_a_run_that_belongs_to_no_job(api: Api, visitor: Visitor) -> None:
    (run,) = one_offs("charge", [b"{}"], Wanted(), NOW, b"0123456789", (RunFollow(queue="handler/receipt"),))
    await api.store.add_runs([run])
    (claimed,) = (await api.store.claim_runs([run.queue], 1, "w", NOW, NOW, api.clock.steady())).runs
    await api.operations.settling.settle_one(Settlement(run.id, claimed.token, Succeeded(b'{"order":7}')))
    await visitor.open(f"/runs/{run.id}")
    assert "Run receipt completed" in " ".join(visitor.text.split())
    followed = await api.store.get_run_by_key(then_key(run.id, 0))
    assert followed is not None
    await visitor.open(f"/runs/{followed.id}")
    assert f"/runs/{run.id}" in visitor.page


async def test_many_are_retried_and_cancelled_by_a_filter_once_counted(api: Api, visitor: Visitor) -> None:
    await api.add_job("job")
    for _ in range(3):
        await a_failed_run(api)
    await visitor.open("/bulk-runs?action=retry&job=job&error=ValueError")
    assert "Retry 3 runs?" in visitor.text
    reply = await visitor.post("/bulk-runs", action="retry", job="job", error="ValueError")
    assert reply.status == 303
    await visitor.open("/bulk-runs?action=cancel&job=job")
    assert "Cancel 3 runs?" in visitor.text
    assert (await visitor.post("/bulk-runs", csrf="x", action="cancel", job="job")).status == 403
    await visitor.open("/bulk-runs?action=cancel&job=job")
    assert "Cancel 3 runs?" in visitor.text
    assert (await visitor.post("/bulk-runs", action="cancel", job="job")).status == 303
    await visitor.open("/bulk-runs?action=cancel&job=job")
    assert "Nothing to cancel" in visitor.text


async def test_workers_are_named_by_what_they_hold(api: Api, visitor: Visitor) -> None:
    await api.add_job("job")
    await api.post("/jobs/job/trigger")
    await api.claim()
    await visitor.open("/nodes")
    assert "Worker Holds Of the queues Drain w 1 run" in visitor.text
    await visitor.open("/queues")
    assert "1 queue, 0 runs due now." in visitor.text


async def test_jobs_are_sorted_by_their_next_fire_time(api: Api, visitor: Visitor) -> None:
    for name, seconds in (("aaa-later", 7_200), ("zzz-sooner", 60)):
        await api.add_job(name, trigger={"type": "interval", "every_seconds": seconds})
    await visitor.open("/jobs?sort=next")
    assert visitor.text.index("zzz-sooner") < visitor.text.index("aaa-later")
    await visitor.open("/jobs?sort=name")
    assert visitor.text.index("aaa-later") < visitor.text.index("zzz-sooner")


# ---- nothing that people write is taken for markup


async def test_whatever_people_name_is_text(api: Api, visitor: Visitor) -> None:
    await api.add_job("job", labels={"team": HOSTILE}, target={"type": "queue", "queue": "work", "payload": HOSTILE})
    await api.post("/jobs/job/pause", {"reason": HOSTILE})
    await api.post("/jobs/job/resume")
    run = await a_failed_run(api, "job", f"{HOSTILE}\n{HOSTILE}")
    await api.post("/jobs/job/pause", {"reason": HOSTILE})
    for path in ("/", "/jobs", "/jobs/job", "/jobs/job/edit", "/runs", f"/runs/{run}", "/audit", "/calendar", "/queues",
                 f"/jobs?q={HOSTILE}", f"/runs?job={HOSTILE}&queue={HOSTILE}"):  # fmt: skip
        reply = await visitor.open(path.replace("<", "%3C").replace("#", "%23").replace('"', "%22"))
        assert reply.status in (200, 422), path
        assert "<script>alert" not in visitor.page, path
        assert "<img src=x" not in visitor.page, path
        assert "49" not in re.findall(r"&amp;(\d+)", visitor.page), path
        assert problems_of(visitor.page) == [], path


# ---- what can be done


async def test_a_job_is_paused_with_a_reason_and_goes_on(api: Api, visitor: Visitor) -> None:
    await api.add_job("nightly")
    await visitor.open("/jobs/nightly")
    reply = await visitor.post("/jobs/nightly/pause", reason="migration")
    assert (reply.status, reply.headers["location"]) == (303, "/jobs/nightly")
    await visitor.open("/jobs/nightly")
    assert "nightly is paused." in visitor.text
    assert "Paused: migration" in visitor.text
    await visitor.post("/jobs/nightly/resume")
    assert (await api.get("/jobs/nightly")).json["enabled"] is True


async def test_a_run_is_asked_for_with_a_payload_retried_and_cancelled(api: Api, visitor: Visitor) -> None:
    await api.add_job("job")
    await visitor.open("/jobs/job")
    reply = await visitor.post("/jobs/job/run", payload='{"a": 1}')
    run = reply.headers["location"].removeprefix("/runs/")
    assert (await api.get(f"/runs/{run}")).json["payload"] == {"a": 1}
    await visitor.open(f"/runs/{run}")
    assert (await visitor.post(f"/runs/{run}/cancel", reason="not now")).status == 303
    assert (await api.get(f"/runs/{run}")).json["state"] == "cancelled"
    again = (await visitor.post(f"/runs/{run}/retry")).headers["location"].removeprefix("/runs/")
    assert (await api.get(f"/runs/{again}")).json["state"] == "pending"


async def test_a_payload_that_is_no_json_is_said_to_be_none(api: Api, visitor: Visitor) -> None:
    await api.add_job("job")
    await visitor.open("/jobs/job")
    reply = await visitor.post("/jobs/job/run", payload="{a}")
    assert reply.status == 422
    assert "is not JSON" in visitor.text


async def test_several_jobs_at_once(api: Api, visitor: Visitor) -> None:
    for name in ("a", "b", "c"):
        await api.add_job(name)
    await visitor.open("/jobs")
    await visitor.post("/jobs", action="pause", chosen=["a", "b", "gone"], back="/jobs?q=x")
    await visitor.open("/jobs")
    assert "2 jobs paused. 1 job could not be" in visitor.text
    assert [(await api.get(f"/jobs/{name}")).json["enabled"] for name in ("a", "b", "c")] == [False, False, True]


async def test_a_job_is_deleted_only_by_its_name(api: Api, visitor: Visitor) -> None:
    await api.add_job("job")
    await visitor.open("/jobs/job")
    assert (await visitor.post("/jobs/job/delete", confirm="jo")).status == 422
    await visitor.open("/jobs/job")
    assert (await visitor.post("/jobs/job/delete", confirm="job")).status == 303
    assert (await api.get("/jobs/job")).status == 404


async def test_a_change_is_audited_and_can_be_gone_back_on(api: Api, visitor: Visitor) -> None:
    await api.add_job("job", priority=1)
    await visitor.open("/jobs/job/edit")
    fields = {
        "kind": "interval",
        "rule": "5m",
        "target": "queue",
        "queue": "work",
        "attempts": "4",
        "backoff": "5",
        "overlap": "allow",
    }
    assert (await visitor.post("/jobs/job/edit", catch_up="latest", labels="team=ops", **fields)).status == 303
    changed = (await api.get("/jobs/job")).json
    assert (changed["trigger"]["every_seconds"], changed["retry"]["attempts_max"]) == (300, 4)
    assert changed["priority"] == 1, "what the form does not show is kept"
    await visitor.open("/jobs/job")
    assert "retry.attempts_max: 4" in visitor.text
    assert re.findall(r"Version \d+(, in force)?", visitor.text) == [", in force", ""]
    assert (await visitor.post("/jobs/job/revert", version="1")).status == 303
    assert (await api.get("/jobs/job")).json["trigger"]["every_seconds"] == 60
    await visitor.open("/audit")
    assert "job.revert job/job" in visitor.text


# ---- who may


async def test_a_form_of_another_page_is_refused(api: Api, visitor: Visitor) -> None:
    await api.add_job("job")
    await visitor.open("/jobs/job")
    assert (await visitor.post("/jobs/job/pause", csrf="")).status == 403
    assert (await visitor.post("/jobs/job/pause", csrf="0" * 64)).status == 403
    assert (await api.get("/jobs/job")).json["enabled"] is True


async def test_who_is_not_signed_in_is_asked_to(locked: Api) -> None:
    visitor = Visitor(locked)
    reply = await visitor.open("/runs?state=failed")
    assert (reply.status, reply.headers["location"]) == (303, "/sign-in?next=%2Fruns%3Fstate%3Dfailed")
    await visitor.open("/sign-in?next=/runs")
    assert (await visitor.post("/sign-in", key="wrong")).status == 401
    assert "opens nothing here" in visitor.text
    reply = await visitor.post("/sign-in", key=KEY, next="/runs")
    assert (reply.status, reply.headers["location"]) == (303, "/runs")
    cookie = reply.headers["set-cookie"]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=Strict", "Path=/"))
    assert KEY not in cookie
    assert (await visitor.open("/runs")).status == 200


@pytest.mark.parametrize(
    "to",
    [
        "//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/\t/evil.example",
        "/\n//evil.example", "/jobs\r\nset-cookie: a=b", "/a\\..\\/evil.example", "", " /jobs", "evil.example",
    ],
)  # fmt: skip
async def test_a_sign_in_leads_nowhere_else(locked: Api, to: str) -> None:
    visitor = Visitor(locked)
    await visitor.open("/sign-in")
    assert (await visitor.post("/sign-in", key=KEY, next=to)).headers["location"] == "/"


async def signed_in(api: Api, key: str) -> Visitor:
    visitor = Visitor(api)
    await visitor.open("/sign-in")
    assert (await visitor.post("/sign-in", key=key)).status == 303
    await visitor.open("/")
    return visitor


async def a_key(api: Api, name: str, *roles: str, **more: Any) -> str:
    admin = {"authorization": f"Bearer {KEY}"}
    made = await api.post("/keys", {"name": name, "roles": list(roles), **more}, headers=admin)
    assert made.status == 201, made.body
    key: str = made.json["key"]
    return key


async def test_what_one_may_not_do_is_not_offered_and_not_done(locked: Api) -> None:
    admin = {"authorization": f"Bearer {KEY}"}
    await locked.post("/jobs", a_definition("job"), headers=admin)
    visitor = await signed_in(locked, await a_key(locked, "looker", "viewer"))
    await visitor.open("/jobs/job")
    for button in ("Run now", "Pause", "Edit"):
        assert f">{button}<" not in visitor.page
    for path in ("/jobs/job/run", "/jobs/job/pause", "/jobs/job/delete", "/jobs/job/edit", "/new-job"):
        assert (await visitor.post(path, confirm="job")).status == 403, path
        await visitor.open("/jobs/job")
    assert (await visitor.open("/audit")).status == 403
    assert (await visitor.open("/new-job")).status == 403


async def test_an_operator_runs_and_does_not_edit(locked: Api) -> None:
    admin = {"authorization": f"Bearer {KEY}"}
    await locked.post("/jobs", a_definition("job"), headers=admin)
    visitor = await signed_in(locked, await a_key(locked, "op", "operator"))
    await visitor.open("/jobs/job")
    assert ">Run now<" in visitor.page
    assert ">Pause<" in visitor.page
    assert ">Edit<" not in visitor.page
    assert "Payload of one run" not in visitor.page, "a payload of one's own takes runs:define"
    assert "Delete it" not in visitor.page
    assert (await visitor.post("/jobs/job/run")).status == 303
    await visitor.open("/jobs/job")
    assert (await visitor.post("/jobs/job/pause", reason="moving")).status == 303
    await visitor.open("/jobs/job")
    assert ">Resume<" in visitor.page
    assert (await visitor.post("/jobs/job/resume")).status == 303
    await visitor.open("/jobs")
    assert (await visitor.post("/jobs", action="pause", chosen="job")).status == 303
    assert (await locked.get("/jobs/job", headers=admin)).json["enabled"] is False


async def test_a_session_ends_with_its_key_with_sign_out_and_with_time(locked: Api) -> None:
    visitor = await signed_in(locked, await a_key(locked, "gone", "viewer"))
    assert (await visitor.open("/")).status == 200
    await locked.send("DELETE", "/keys/gone", headers={"authorization": f"Bearer {KEY}"})
    locked.clock.advance(5)
    assert (await visitor.open("/")).status == 303

    visitor = await signed_in(locked, KEY)
    token = visitor.cookies["horarium_session"]
    await visitor.post("/sign-out")
    visitor.cookies["horarium_session"] = token
    assert (await visitor.open("/")).status == 303

    visitor = await signed_in(locked, KEY)
    locked.clock.advance(LASTS / SECOND + 1)
    assert (await visitor.open("/")).status == 303


async def test_a_session_that_goes_on_gets_another_token(locked: Api) -> None:
    visitor = await signed_in(locked, KEY)
    before = visitor.cookies["horarium_session"]
    locked.clock.advance(ROTATED_AFTER / SECOND + 1)
    assert (await visitor.open("/")).status == 200
    after = visitor.cookies["horarium_session"]
    assert after != before
    assert (await visitor.open("/")).status == 200
    locked.clock.advance(120)
    visitor.cookies["horarium_session"] = before
    assert (await visitor.open("/")).status == 303


async def test_the_api_takes_no_cookie(locked: Api) -> None:
    visitor = await signed_in(locked, KEY)
    assert (await visitor.open("/api/v1/jobs")).status == 401


# ---- what is not there


async def test_what_does_not_exist_is_said_not_to(visitor: Visitor) -> None:
    for path in ("/jobs/nothing", "/runs/01a20183-762d-7e95-ae09-d0c20aceeb6f", "/runs/x!", "/dashboard/0/passwd"):
        reply = await visitor.open(path)
        assert reply.status == 404, path
        assert "There is nothing here" in visitor.text


async def test_a_store_that_is_down_is_said_to_be(api: Api, visitor: Visitor) -> None:
    api.failing = {"stats"}
    reply = await visitor.open("/")
    assert reply.status == 503
    assert "The store does not answer" in visitor.text


async def test_files_are_kept_by_browsers_and_compressed(visitor: Visitor) -> None:
    await visitor.open("/")
    (style,) = re.findall(r'href="(/dashboard/[0-9a-f]+/style.css)"', visitor.page)
    reply = await visitor.open(style, accept_encoding="gzip")
    assert reply.headers["content-encoding"] == "gzip"
    assert "immutable" in reply.headers["cache-control"]
    assert len(reply.body) < 20_000
