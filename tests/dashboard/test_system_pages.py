"""Pages about limits, feeds, keys, sessions and deleted jobs: what the API has, for people."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from horarium.access.audit import AuditFilter
from horarium.access.audit import page as audit_page
from tests.api.conftest import Api, a_definition
from tests.dashboard.test_pages import KEY, a_key, signed_in
from tests.dashboard.visitor import Visitor

pytestmark = pytest.mark.slow
ADMIN = {"authorization": f"Bearer {KEY}"}


@pytest.fixture
def api() -> Api:
    return Api(pages=True)


@pytest.fixture
def locked() -> Api:
    return Api([KEY], pages=True)


@pytest.fixture
def visitor(api: Api) -> Visitor:
    return Visitor(api)


async def test_a_limit_is_set_shown_and_taken_back(api: Api, visitor: Visitor) -> None:
    await visitor.open("/rates")
    assert "No key is in use" in visitor.text
    for wrong in ({"key": ""}, {"limit": "fast"}, {"limit": "0/1m"}, {"limit": "5/1ms"}, {"burst": "many"},
                  {"burst": "9"}, {"until": "soon"}):  # fmt: skip
        await visitor.open("/rates")
        form = {"key": "api:<x>", "limit": "5/1m", **wrong}
        assert (await visitor.post("/rates", **form)).status == 422, wrong
    await visitor.open("/rates")
    assert (await visitor.post("/rates", key="api:<x>", limit="5/1m", burst="2")).status == 303
    assert (await api.get("/rates")).json["items"][0]["max"] == 5
    await visitor.open("/rates")
    assert "api:<x> 5 in 1 m 2 0 open yes" in visitor.text, visitor.text
    assert "api:<x> allows 5/1m" in visitor.text
    await visitor.post("/rates/reset?key=api:%3Cx%3E")
    assert (await api.get("/rates")).json["items"][0]["overridden"] is False


async def test_a_key_that_is_shut_says_when_it_opens(api: Api, visitor: Visitor) -> None:
    await api.add_job("slow", rate=[{"key": "slow", "max": 1, "per_seconds": 60}])
    for _ in range(2):
        await api.post("/jobs/slow/trigger")
    assert len(await api.claim(2)) == 1
    await visitor.open("/rates")
    assert "1 key is shut" in visitor.text
    assert "slow 1 in 1 m 1 1 in 2 m" in visitor.text, "one waits, and a third would begin after it"
    waits = next(run for run in (await api.get("/runs")).json["items"] if run["state"] == "pending")
    assert (await visitor.open(f"/runs/{waits['id']}")).status == 200
    assert "Waits for the rate limit" in visitor.text
    assert "Error" not in visitor.text, visitor.text
    history = (await api.get(f"/runs/{waits['id']}")).json["history"]
    assert all("detail" not in line for line in history)


async def test_where_no_key_is_shut_and_none_is_of_fairness_no_run_is_read(api: Api, visitor: Visitor) -> None:
    await api.add_job("slow", rate=[{"key": "slow", "max": 90, "per_seconds": 60}])
    await api.post("/jobs/slow/trigger")
    assert await api.claim()
    api.failing.add("list_runs")
    assert (await visitor.open("/rates")).status == 200
    assert "No key is shut" in visitor.text
    assert "slow 90 in 1 m 9 0 open" in visitor.text


async def test_who_waits_under_a_limit_and_who_began_is_told_by_fairness_key(api: Api, visitor: Visitor) -> None:
    for tenant in ("gold", "tin"):
        target = {"type": "queue", "queue": "work", "payload": {"tenant": tenant}}
        rate = [{"key": "api", "max": 3, "per_seconds": 600, "burst": 3}]
        await api.add_job(tenant, target=target, fair="{payload.tenant}", rate=rate)
    for tenant in ("gold", "tin", "gold", "gold", "tin", "tin", "tin"):
        await api.post(f"/jobs/{tenant}/trigger")
    began = [run["job"] for run in await api.claim(7)]
    assert len(began) == 3
    await visitor.open("/rates")
    assert "api 3 in 10 m 3 4" in visitor.text, visitor.text
    told = {
        key: tuple(map(int, rest)) for key, *rest in re.findall(r"(gold|tin) api (\d+) (\d+) (\d+) %", visitor.text)
    }
    made = {"gold": 3, "tin": 4}
    assert told == {
        key: (made[key] - began.count(key), began.count(key), round(100 * began.count(key) / 3)) for key in made
    }


async def test_a_feed_shows_its_address_once(api: Api, visitor: Visitor) -> None:
    await api.add_job("nightly", labels={"team": "a"})
    await visitor.open("/feeds")
    reply = await visitor.post("/feeds", name="ours", which="team=a")
    assert reply.status == 201
    found = re.search(r"/feed/[\w-]+\.ics", visitor.page)
    assert found is not None
    feed = await api.send("GET", "/" + found[0])
    assert b"nightly" in feed.body
    assert (await visitor.post("/feeds", name="ours", which="")).status == 422
    assert "there is a feed" in visitor.text
    for name, which in (("", ""), ("x", "a<b"), ("x", "team=a nightly")):
        assert (await visitor.post("/feeds", name=name, which=which)).status == 422, (name, which)
    await visitor.open("/feeds")
    assert found[0] not in visitor.page
    assert "jobs with team=a" in visitor.text
    assert (await visitor.post("/feeds/revoke", name="ours")).status == 303
    assert (await api.send("GET", "/" + found[0])).status == 404


async def test_an_admin_makes_a_key_and_ends_what_it_opened(locked: Api) -> None:
    admin = await signed_in(locked, KEY)
    await admin.open("/access")
    several: list[dict[str, str | list[str]]] = [
        {"name": "bad name"}, {"role": []}, {"labels": "team"}, {"queues": "a<b"}, {"expires": "2001-01-01"},
    ]  # fmt: skip
    for wrong in several:
        form: dict[str, Any] = {"name": "ci", "role": ["operator"], **wrong}
        assert (await admin.post("/access", **form)).status == 422, wrong
    assert (await admin.post("/access", name="ci", role=["operator", "viewer"], labels="team=a")).status == 201
    made = re.search(r"hk_[\w-]+", admin.page)
    assert made is not None
    assert (await locked.get("/me", headers={"authorization": f"Bearer {made[0]}"})).json["labels"] == [{"team": "a"}]
    bearer = await signed_in(locked, made[0])
    assert (await bearer.open("/jobs")).status == 200
    await admin.open("/access")
    assert made[0] not in admin.page
    assert "ci viewer, operator team=a" in admin.text, admin.text
    ends = re.findall(
        r'name="session" value="(\w+)"><button class="btn" aria-label="End it: the session of ci', admin.page
    )
    assert (await admin.post("/access/end", session=ends[0])).status == 303
    locked.clock.advance(5)
    assert (await bearer.open("/jobs")).status == 303, "signed out"
    (told,) = (await audit_page(locked.store, AuditFilter(action="session.end"), None, 50)).items
    assert told.object == f"session/{ends[0]}"
    await admin.open("/access")
    assert (await admin.post("/access/revoke", name="ci")).status == 303
    locked.clock.advance(5)
    assert (await locked.get("/me", headers={"authorization": f"Bearer {made[0]}"})).status == 401
    assert (await (await signed_in(locked, await a_key(locked, "ed", "editor"))).open("/access")).status == 403


async def test_a_deleted_job_is_brought_back(locked: Api) -> None:
    for name, team in (("ours", "a"), ("theirs", "b")):
        target = {"type": "queue", "queue": "work"}
        await locked.post("/jobs", a_definition(name, target=target, labels={"team": team}), headers=ADMIN)
    admin = await signed_in(locked, KEY)
    bound = await signed_in(locked, await a_key(locked, "a-only", "editor", labels={"team": "a"}))
    for name in ("ours", "theirs"):
        await admin.open(f"/jobs/{name}")
        await admin.post(f"/jobs/{name}/delete", confirm=name)
    await admin.open("/jobs")
    assert 'action="/deleted-jobs/restore?name=theirs"' in admin.page
    await admin.open("/deleted-jobs")
    assert "2 deleted jobs" in admin.text
    await bound.open("/deleted-jobs")
    assert "1 deleted job" in bound.text
    assert "theirs" not in bound.page
    assert (await bound.post("/deleted-jobs/restore", name="theirs")).status == 404
    await bound.open("/deleted-jobs")
    assert (await bound.post("/deleted-jobs/restore", name="ours")).headers["location"] == "/jobs/ours"
    assert (await locked.get("/jobs/ours", headers=ADMIN)).json["labels"] == {"team": "a"}
    await admin.open("/deleted-jobs")
    assert "defined again" in admin.text
    assert (await admin.post("/deleted-jobs/restore", name="never")).status == 404


async def test_a_queue_says_who_waits_whose_turn_it_is_and_is_held(api: Api, visitor: Visitor) -> None:
    await api.add_job("paid", target={"type": "queue", "queue": "work", "payload": {"tenant": "gold"}},
                      fair="{payload.tenant}")  # fmt: skip
    await api.add_job("free", target={"type": "queue", "queue": "work", "payload": {"tenant": "tin"}},
                      fair="{payload.tenant}")  # fmt: skip
    for name in ("paid", "free", "free"):
        await api.post(f"/jobs/{name}/trigger")
    await visitor.open("/queue?name=work")
    assert "3 runs due, 0 running, 0 later" in visitor.text
    assert "tin 2 1 50 % 0" in visitor.text, visitor.text
    for wrong in ("gold", "gold=much", "gold=0", "=3"):
        assert (await visitor.post("/queue", name="work", weights=wrong)).status == 422, wrong
    assert (await visitor.post("/queue", name="work", weights="gold=3\n")).status == 303
    assert (await api.get("/queues/work")).json["fair_weights"] == {"gold": 3}
    await visitor.open("/queue?name=pull/work")
    assert "gold 1 3 75 %" in visitor.text
    assert "tin 2 1 25 %" in visitor.text
    for _ in range(6):
        (run,) = await api.claim()
        api.clock.advance(30)
        await api.post(f"/runs/{run['id']}/complete", {"token": run["lease"]["token"]})
        await api.post("/jobs/free/trigger")
    api.clock.advance(2)
    await visitor.open("/queue?name=work")
    assert "Ended in a minute 2" in visitor.text, visitor.text
    assert "A run takes 30 s" in visitor.text
    assert re.search(r"gold 0 3 – 1 17 %", visitor.text), visitor.text
    await visitor.open("/holds")
    held = {"scope": "queue", "what": "work", "length": "1h", "reason": "the <move>"}
    assert (await visitor.post("/holds", **held)).status == 303
    api.clock.advance(2)
    await visitor.open("/queues")
    assert "On hold" in visitor.text
    await visitor.open("/queue?name=work")
    lift = re.search(r'action="(/holds/[^"]+/lift)"', visitor.page)
    assert lift is not None
    assert (await visitor.post(lift[1])).status == 303
    assert (await visitor.open("/queue")).status == 404


async def test_a_job_says_who_approves_it_and_what_holds_it_back(api: Api, visitor: Visitor) -> None:
    await api.add_job(
        "pays",
        approval={"roles": ["operator", "admin"], "four_eyes": True, "then": "run"},
        rate=[{"key": "api", "max": 100, "per_seconds": 60}],
        concurrency={"key": "bank", "max": 2},
    )
    await visitor.open("/jobs/pays")
    for said in ("Approval operator or admin, four eyes, within 4 h; else it runs",
                 "Concurrency at most 2 of key bank at one time", "Rate 100 of key api in 1 m"):  # fmt: skip
        assert said in visitor.text, (said, visitor.text)


async def test_each_entry_of_the_navigation_opens(locked: Api) -> None:
    shown = {}
    for role in ("viewer", "producer", "worker", "admin"):
        visitor = await signed_in(locked, await a_key(locked, role, role))
        await visitor.open("/jobs")
        places = re.findall(r'<a href="(/[^"]*)"', visitor.page.partition('id="places"')[2].partition("</ul>")[0])
        shown[role] = len(places)
        keys = re.findall(r"<kbd>g</kbd> <kbd>(.)</kbd></dt><dd>([^<]+)<", visitor.page)
        entries = re.findall(r'<a href="/[^"]*" data-letter="(.)"[^>]*><span>([^<]+)<', visitor.page)
        assert sorted(keys) == sorted(entries), "no letter leads where the navigation does not"
        assert len(dict(keys)) == len(keys) == min(len(places), 14), role
        brands = re.findall(r'<a class="brand" href="(/[^"]*)"', visitor.page) if places else []
        assert ('id="palette"' in visitor.page) == ('id="find"' in visitor.page), "Ctrl-K is the same search"
        for path in places + brands:
            assert (await visitor.open(path)).status == 200, (role, path)
    assert (shown["worker"], shown["admin"]) == (0, 19)
    assert 0 < shown["producer"] < shown["viewer"] < shown["admin"]


async def test_a_refusal_says_times_of_clocks_and_no_names_of_the_api(api: Api, visitor: Visitor) -> None:
    await api.add_job("pays", trigger={"type": "cron", "expression": "0 8 25 * *", "timezone": "Europe/Berlin"})
    visitor.cookies["horarium_zone"] = "Europe%2FBerlin"
    await visitor.open("/jobs/pays")
    await visitor.post("/jobs/pays/skip", at="2026-03-25T07:00:00Z")
    assert "the fire time 25 Mar 2026, 08:00 of job 'pays' has passed" in unescape(visitor.text), visitor.text
    past = "2026-03-25T08:00"
    for page, form in (("/rates", {"key": "api", "limit": "5/1m", "until": past}),
                       ("/access", {"name": "k", "role": "viewer", "expires": past})):  # fmt: skip
        await visitor.open(page)
        assert (await visitor.post(page, **form)).status == 422
        assert re.search(r'"#m-failed"/></svg><span>(<time [^>]+>25 Mar 2026, 08:00</time>|it) is past<', visitor.page)


async def test_a_fire_time_that_is_skipped_or_moved_is_said_on_the_clocks_of_its_job(
    api: Api, visitor: Visitor
) -> None:
    rule = {"type": "cron", "expression": "0 8 25 * *", "timezone": "Europe/Berlin"}
    await api.add_job("pays", trigger=rule)
    fire = {"at": "2027-03-25T07:00:00Z"}
    for action, said in (
        ("skip", "pays does not run at Thu 25 Mar, 08:00."),
        ("unskip", "pays runs at Thu 25 Mar, 08:00 again."),
        ("move", "pays runs at Fri 26 Mar, 10:00 instead."),
    ):
        await visitor.open("/jobs/pays")
        await visitor.post(f"/jobs/pays/{action}", **fire, to="2027-03-26T10:00")
        await visitor.open("/jobs/pays")
        assert said in visitor.text, (said, visitor.text)
    await visitor.open("/jobs/pays?at=2027-03-26T10:00")
    assert "A run Fri 26 Mar, 10:00 Moved from Thu 25 Mar, 08:00" in visitor.text, "it has not run yet"


async def test_a_fire_time_that_is_moved_to_another_hides_neither(api: Api, visitor: Visitor) -> None:
    rule = {"type": "cron", "expression": "0 8 25 * *", "timezone": "UTC"}
    await api.add_job("pays", trigger=rule)
    await api.post("/jobs/pays/fires/2027-03-25T08:00:00Z/move", {"to": "2027-04-25T08:00:00Z"})
    await visitor.open("/jobs/pays")
    assert "Moved from Thu 25 Mar, 08:00" in visitor.text, visitor.text
    assert "Instead of Sun 25 Apr, 08:00 , run at (UTC)" in visitor.text, "the one of the rule runs too"


async def test_what_is_missing_of_a_span_is_run(api: Api, visitor: Visitor) -> None:
    await api.send("PUT", "/channels/ops", {"type": "webhook", "url": "https://example.org/hook"})
    await api.add_job("hourly", trigger={"type": "interval", "every_seconds": 3_600, "anchor": "2026-01-01T00:00:00Z"},
                      starts_at="2026-01-01T00:00:00Z", on={"failed": [{"notify": "ops", "after": 3}]})  # fmt: skip
    await visitor.open("/jobs/hourly")
    assert "On failed tell ops from the third in a row" in visitor.text, visitor.text
    assert (await visitor.post("/jobs/hourly/backfill")).status == 422
    await visitor.open("/jobs/hourly")
    span = {"from": "2027-01-14T00:00", "to": "2027-01-14T05:00"}
    assert (await visitor.post("/jobs/hourly/backfill", **span)).status == 303
    await visitor.open("/runs?job=hourly")
    assert "5 runs of hourly are made for that span." in visitor.text
    assert len((await api.get("/runs?job=hourly")).json["items"]) == 5
    told = (await audit_page(api.store, AuditFilter(action="job.backfill"), None, 50)).items
    assert [line.object for line in told] == ["job/hourly"]


async def test_a_channel_is_added_edited_and_deleted(api: Api, visitor: Visitor) -> None:
    await visitor.open("/channels")
    form = {"name": "ops", "type": "webhook", "to": "https://example.org/hook?token=t0p", "group": "1", "quiet": "0"}
    for wrong in ({"name": "a b"}, {"to": ""}, {"type": "email"}, {"group": "x"}, {"group": "1e9"}, {"type": "none"}):
        await visitor.open("/channels")
        assert (await visitor.post("/channels", **{**form, **wrong})).status == 422, wrong
    await visitor.open("/channels")
    assert (await visitor.post("/channels", **form)).status == 303
    await visitor.open("/channels?edit=ops")
    assert "t0p" not in visitor.page
    assert "Edit ops" in visitor.text
    to = re.search(r'name="to" required value="([^"]+)"', visitor.page)
    assert to is not None
    edited = {**form, "was": "ops", "to": to[1], "quiet": "60", "system": "1"}
    assert (await visitor.post("/channels", **edited)).status == 303
    stored = await api.operations.channels.get("ops")
    assert (stored.quiet_seconds, stored.system) == (60, True)
    edited["template"] = '{"text": "{{message}} \\u00fc"}'
    assert (await visitor.post("/channels", **edited)).status == 303
    await visitor.open("/channels?edit=ops")
    assert (await visitor.post("/channels", **{**edited, "template": "no JSON"})).status == 422
    assert (await api.operations.channels.get("ops")).template == {"text": "{{message}} \u00fc"}
    assert "t0p" in repr(stored), "asterisks keep the secret"
    await visitor.open("/channels")
    assert (await visitor.post("/channels", **form)).status == 422, "there is one"
    await visitor.open("/channels?edit=ops")
    assert (await visitor.post("/channels/ops/delete")).status == 303
    assert (await api.get("/channels/ops")).status == 404


async def test_a_worker_is_drained_and_takes_up_again(api: Api, visitor: Visitor) -> None:
    await api.add_job("job")
    await api.post("/jobs/job/trigger")
    (run,) = await api.claim()
    await visitor.open("/nodes")
    link = re.search(r'href="(/holds\?scope=worker[^"#]+)#hold" aria-label="Drain ([^:]+): 1 run', visitor.page)
    assert link is not None, visitor.text
    await visitor.open(unescape(link[1]))
    assert f'value="{link[2]}"' in visitor.page
    form = {"scope": "worker", "what": link[2], "length": "", "reason": "new kernel"}
    assert (await visitor.post("/holds", **form)).status == 303
    await visitor.open("/jobs")
    assert "new kernel" not in visitor.text, "it keeps no job from its runs"
    await visitor.open("/nodes")
    assert "Draining" in visitor.text
    assert "1 run , oldest for 0 s, until when is not known" in visitor.text, visitor.text
    await api.post(f"/runs/{run['id']}/complete", {"token": run["lease"]["token"]})
    await api.post("/jobs/job/trigger")
    assert await api.claim() == []
    await visitor.open("/nodes")
    assert "nothing Drained" in visitor.text, visitor.text
    lift = re.search(r'action="(/holds/[^"]+/lift)"', visitor.page)
    assert lift is not None
    assert (await visitor.post(lift[1])).status == 303
    assert len(await api.claim()) == 1


async def test_what_a_worker_holds_says_when_it_is_done(api: Api, visitor: Visitor) -> None:
    await api.add_job("job")
    for _ in range(2):
        await api.post("/jobs/job/trigger")
        (run,) = await api.claim()
        await visitor.open("/nodes")
        api.clock.advance(90)
        await api.post(f"/runs/{run['id']}/complete", {"token": run["lease"]["token"]})
    assert "until when is not known" not in visitor.text
    assert "done in about 1 m 30 s" in visitor.text, visitor.text
    await api.post("/jobs/job/trigger")
    await api.claim()
    api.clock.advance(100)
    await visitor.open("/nodes")
    assert "oldest for 1 m 40 s, longer than usual" in visitor.text, visitor.text
    assert re.search(r'aria-label="Drain w: 1 run of it would finish, longer than usual"', visitor.page)


@pytest.mark.parametrize(
    ("page", "form", "field"),
    [
        ("/holds", {"scope": "job", "what": "no-such", "length": "1h", "reason": "x", "running": "cancel"}, "what"),
        ("/holds", {"scope": "host", "what": "a b", "length": "1h", "reason": "x"}, "what"),
        ("/holds", {"scope": "all", "length": "15m", "reason": "x", "begins": "2020-01-01T00:00"}, "length"),
        ("/holds", {"scope": "all", "what": "db", "length": "1h", "reason": "x"}, "what"),
        ("/holds", {"scope": "queue", "what": "q", "length": "1h", "reason": ""}, "reason"),
        ("/rates", {"key": "a", "limit": "often", "burst": "2"}, "limit"),
        ("/rates", {"key": "a", "limit": "5/1m", "burst": "9"}, "burst"),
        ("/channels", {"name": "ops", "type": "email", "to": "nobody", "group": "7"}, "to"),
        ("/channels", {"name": "ops", "type": "webhook", "to": "https://x.org", "group": "soon"}, "group"),
        ("/access", {"name": "k", "queues": "q", "expires": "2040-01-01T00:00"}, "role"),
        ("/access", {"name": "local", "role": "viewer"}, "name"),
        ("/feeds", {"name": "f", "which": "no-such"}, "which"),
        ("/queue", {"name": "pull/work", "weights": "gold"}, "weights"),
    ],
)  # fmt: skip
async def test_what_is_wrong_in_a_form_is_said_at_its_field(
    api: Api, visitor: Visitor, page: str, form: dict[str, str], field: str
) -> None:
    await api.add_run()
    await visitor.open("/queue?name=pull%2Fwork" if page == "/queue" else page)
    reply = await visitor.post(page, **form)
    assert reply.status == 422, reply.body
    assert visitor.page.count('role="alert"') == visitor.page.count(f'id="{field}-error" role="alert"') == 1
    (tag,) = re.findall(f'<[a-z]+[^>]* aria-describedby="{field}-error[^>]*>', visitor.page)
    assert ("fieldset" if field == "role" else f'name="{field}"') in tag
    for name, value in form.items():
        if value and name not in ("role", "name" if page == "/queue" else ""):
            kept = f'<option value="{value}" selected>' in visitor.page or f'value="{value}"' in visitor.page
            assert kept or f">{value}</textarea>" in visitor.page, name
