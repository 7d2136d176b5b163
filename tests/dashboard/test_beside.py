"""What runs beside what, the few errors behind many failures, what is held, and days of business."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from html import unescape
from typing import Any

import pytest

from horarium.clock import HOUR, MINUTE, SECOND, Instant
from horarium.dashboard import attention
from horarium.dashboard.lanes import Axis, Bar, Piece, lane_of
from horarium.dashboard.views import timeline
from horarium.dashboard.views.failures import key_of
from horarium.library.one_offs import Wanted, one_offs
from horarium.model import Node, Run, State, uuid7
from horarium.ports import Page, RunFilter
from horarium.stores.memory import MemoryStore
from tests.api.conftest import Api
from tests.dashboard.visitor import Visitor
from tests.waiting import until

pytestmark = pytest.mark.slow


async def ended(
    api: Api, job: str, number: int, at: Instant, state: State = State.FAILED, error: str | None = None
) -> Run:
    """A run of the past, of five minutes."""
    (found,) = await api.store.get_jobs([job])
    assert found is not None
    run = Run(
        id=uuid7(at, f"{job}{number}".encode()[-10:].rjust(10, b"0")), queue=found.queue, job=job, job_id=found.id,
        fire_at=at, due_at=at, created_at=at, state=state, attempt=1, token=1, started_at=at,
        finished_at=at + 5 * MINUTE, error=error,
    )  # fmt: skip
    assert await api.store.add_runs([run]) == [True]
    return run


async def test_many_failures_of_few_errors_are_few_rows(api: Api, visitor: Visitor) -> None:
    for name in ("one", "two"):
        await api.add_job(name)
    now = api.clock.now()
    for number in range(7):
        at = now - HOUR - number * MINUTE
        await ended(api, "one", number, at, error=f"Traceback (most recent call last):\n  x\nKeyError: {number}")
    await ended(api, "two", 1, now - HOUR, error="<b>no price</b>")
    well = await ended(api, "two", 2, now - 3 * HOUR, State.COMPLETED)
    await visitor.open("/failures")
    assert "Two errors, 8 failed runs" in visitor.text, visitor.text
    assert "Retry 7" in visitor.text
    assert "<b>no price" not in visitor.page
    await visitor.open("/failures?q=price")
    assert "One error, 1 failed run" in visitor.text
    compare = re.search(r'href="(/compare[^"]+)"', visitor.page)
    assert compare is not None
    await visitor.open(compare[1].replace("&amp;", "&"))
    assert "Outcome, fire time, error differ." in visitor.text
    assert well.id in visitor.page
    assert (await visitor.open("/compare?run=x&with=y")).status == 404
    await visitor.open("/failures?q=nothing-of-it")
    assert "No error matches" in visitor.text


async def test_all_failed_runs_of_one_error_are_retried_and_told(api: Api, visitor: Visitor) -> None:
    await api.add_job("one")
    now = api.clock.now()
    runs = [await ended(api, "one", number, now - HOUR - number * MINUTE, error="no") for number in range(3)]
    await ended(api, "one", 9, now - 2 * HOUR, error="something else")
    await visitor.open("/failures")
    reply = await visitor.post("/failures", group=key_of(runs[0]), span="day")
    assert reply.status == 303
    await visitor.open("/failures")
    assert "3 runs will run again." in visitor.text
    told = (await api.get("/audit?limit=50")).json["items"]
    assert sum("retry" in line["action"] for line in told) == 3
    await visitor.open("/failures")
    await visitor.post("/failures", group=key_of(runs[0]), span="day")
    await visitor.open("/failures")
    assert "0 runs will run again. 3 runs were left" in visitor.text
    assert (await visitor.post("/failures", group="none", span="day")).status == 404


async def test_an_error_says_what_it_began_with_and_is_filtered_by_what_became_of_it(
    api: Api, visitor: Visitor
) -> None:
    for name in ("export", "mail", "fresh"):
        await api.add_job(name)
    began = api.clock.now()
    for name in ("export", "mail"):
        await ended(api, name, 1, began + HOUR, State.COMPLETED)
    await ended(api, "mail", 2, began + 2 * HOUR, error="no route")
    api.clock.advance(3 * 3600)
    await api.send("PATCH", "/jobs/export", {"target": {"type": "queue", "queue": "work", "payload": {"n": 2}}})
    api.clock.advance(30 * 3600)
    now = api.clock.now()
    failed = await ended(api, "export", 3, now - 2 * HOUR, error="KeyError: 'XDR'")
    await ended(api, "mail", 4, now - HOUR, error="no route")
    await ended(api, "mail", 5, now - HOUR + MINUTE, error="refused")
    await ended(api, "fresh", 6, now - HOUR, error="no file")
    await visitor.open("/failures")
    await visitor.post("/failures", group=key_of(failed), span="day")
    await visitor.open("/failures")
    version = (await api.get("/jobs/export")).json["version"]
    for said in (f"export began with version {version}, by local,", "mail seen before: in 1 of the 2 runs before",
                 "mail no version changed then", "fresh began with the first run that is kept",
                 "Open 4", "New 3", "One job 4", "Retried since 1", "Acknowledged 0"):  # fmt: skip
        assert said in visitor.text, (said, visitor.text)
    await visitor.open("/failures?show=retried")
    assert "One error, 1 failed run" in visitor.text
    for said in ("target.payload.n: 1", "target.payload.n: 2", "retried", "Go back to version", "Grouped by"):
        assert said in visitor.text, (said, visitor.text)
    await visitor.open("/failures?show=known")
    assert "No error is among these" in visitor.text


def test_errors_that_differ_in_numbers_alone_are_one() -> None:
    def run(error: str) -> Run:
        return Run(id="r", queue="q", fire_at=1, due_at=1, created_at=1, error=error)

    assert key_of(run("row 7 of 0x7fa1")) == key_of(run("row 12 of 0x55b2"))
    assert key_of(run("row 7")) != key_of(run("line 7"))


async def test_the_timeline_says_what_runs_what_waits_and_what_comes(api: Api, visitor: Visitor) -> None:
    await api.add_job("hourly", trigger={"type": "interval", "every_seconds": 600})
    now = api.clock.now()
    await ended(api, "hourly", 1, now - 20 * MINUTE, State.COMPLETED)
    await ended(api, "hourly", 2, now - 10 * MINUTE, error="no price")
    await api.post("/jobs/hourly/trigger")
    api.clock.advance(60)
    await visitor.open("/timeline")
    assert "Nothing runs now, one waits" in visitor.text, visitor.text
    assert "hourly completed in 5 m" in visitor.page
    assert "hourly: due 1 m ago, waits" in visitor.page
    assert "usually 5 m" in visitor.page
    assert "no price" in visitor.text
    await api.add_job("asks", approval={})
    asks = (await api.post("/jobs/asks/trigger", {"payload": {"amount": 1250}})).json["id"]
    await visitor.open("/timeline")
    assert "asks work asks a person" in visitor.text, "it begins when somebody says so, not soon"
    await visitor.open("/approvals")
    assert '"amount": 1250' in visitor.text
    await visitor.open(f"/runs/{asks}")
    assert "Waits for a decision . It waits for a decision until" in visitor.text.replace("decision.", "decision .")
    assert "To run again" not in visitor.text, "it never ran"
    assert not re.search(r"\d{4}-\d\d-\d\dT[\d:]+Z", visitor.text), "times of the reader's clocks"
    assert ">Decide</a>" in visitor.page
    for query in ("span=7d&by=job", "by=worker", "by=label:team", "span=24h&at=2027-01-01T00:00:00Z"):
        assert (await visitor.open(f"/timeline?{query}")).status == 200
    assert "Nothing ran and nothing comes" in visitor.text


async def test_the_timeline_of_a_quiet_hour_behind_a_busy_one_reads_a_few_pages(
    api: Api, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that ran within six hours may reach into the span: where that is much, most of it did not."""
    await api.add_job("busy")
    now, pages = api.clock.now(), 0
    for number in range(40):
        await ended(api, "busy", number, now - HOUR - number * MINUTE, State.COMPLETED)
    await ended(api, "busy", 50, now - 5 * MINUTE, State.COMPLETED)
    await visitor.open("/timeline")
    assert "are not looked at" not in visitor.text
    monkeypatch.setattr(timeline, "PAGE_MAX", 4)
    list_runs = MemoryStore.list_runs

    async def counted(store: MemoryStore, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        nonlocal pages
        pages += not where.states and limit == 4
        return await list_runs(store, where, after, limit)

    monkeypatch.setattr(MemoryStore, "list_runs", counted)
    await visitor.open("/timeline")
    assert "due before 06:42 are not looked at" in visitor.text, visitor.text
    assert "more runs in this span" not in visitor.text
    assert "busy completed in 5 m" in visitor.page
    assert pages == timeline.PAGES_MAX
    await visitor.open("/timeline?at=2027-02-01T00:00:00Z")
    assert "are not looked at" not in visitor.text, "nothing ran yet"


async def test_of_many_jobs_fewer_runs_tell_what_is_usual(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for job in ("one", "two"):
        await api.add_job(job)
        for number in range(30):
            await ended(api, job, number, api.clock.now() - number * HOUR, State.COMPLETED)
    read = []
    last_runs = MemoryStore.last_runs

    async def counted(store: MemoryStore, jobs: Sequence[str], since: int, until: int, limit: int) -> Any:
        found = await last_runs(store, jobs, since, until, limit)
        read.append(sum(map(len, found.values())))
        return found

    monkeypatch.setattr(MemoryStore, "last_runs", counted)
    for room in (1_000, 10, 1):
        monkeypatch.setattr(attention, "USUAL_RUNS", room)
        usual = await attention.usual_of(api.operations, ["one", "two"], api.clock.now())
        assert usual == {"one": 5 * MINUTE, "two": 5 * MINUTE}
    assert read == [40, 10, 6]


async def test_lanes_of_queues_show_holds_with_their_words_and_since_when_no_worker_came(
    api: Api, visitor: Visitor
) -> None:
    for queue in ("gpu", "media"):
        await api.add_job(queue, overlap="allow", target={"type": "queue", "queue": queue})
        await api.post(f"/jobs/{queue}/trigger")
    await api.post("/runs/claim", {"queues": ["media"], "worker": "w"})
    body = {"scope": {"queue": "media"}, "reason": "moving"}
    for begins, ends in ((13, 23), (24, 26)):
        times = {"from": f"2027-01-15T08:{begins}:00Z", "until": f"2027-01-15T08:{ends}:00Z"}
        assert (await api.post("/holds", body | times)).status == 201
    api.clock.advance(600)
    await visitor.open("/timeline")
    for said in (
        "no worker; a run waits since 08:00",
        "1 used, places not known",
        "Hold 08:13 to 08:23",
        "Hold 08:24 to 08:26: moving",
    ):
        assert said in visitor.text, (said, visitor.text)
    assert visitor.page.count('class="dead"') == 1
    assert visitor.page.count('class="bandt holdt') == 1, "words have no room in a narrow band"
    assert "no worker; a run waits since 08:00" in visitor.page.partition('class="gantt" height')[2]


def test_overlapping_bars_lie_in_rows_and_those_without_a_place_are_counted() -> None:
    axis = Axis(0, HOUR)
    bars = [
        Bar("lane", f"job-{number}", f"job-{number}", (Piece("fail" if number == 8 else "done", 0, HOUR),))
        for number in range(9)
    ]
    lane = lane_of("lane", bars, axis)
    assert len(lane.bars) == 6
    assert (lane.left_out, lane.failed_left_out) == (3, 0), "what failed is drawn first"
    one_by_one = [Bar("lane", "a", "a", (Piece("done", at, at + 5 * MINUTE),)) for at in range(0, HOUR, 10 * MINUTE)]
    lane = lane_of("lane", one_by_one, axis)
    assert len({bar.y for bar in lane.bars}) == 1
    assert all(0 <= piece.x <= 100 and piece.width > 0 for row in lane.bars for piece in row.pieces)
    short = lane_of("lane", [Bar("lane", "a", "a", (Piece("done", 0, SECOND // 1000),))], axis)
    assert short.bars[0].pieces[0].width >= 0.25, "seen, however short"
    assert lane_of("lane", [Bar("lane", "", "one-off", (Piece("done", 0, SECOND),))], axis).words == []
    for minutes, kind in ((12, "in on-done"), (8, "in on-done far"), (1, "out far"), (0, "out")):
        free = [Bar("lane", "after", "after", (Piece("done", 10 * MINUTE, HOUR),))] if minutes else []
        name, done = "twelve-chars", Piece("done", 0, minutes * MINUTE or SECOND)
        words = lane_of("lane", [Bar("lane", name, name, (done,)), *(free if minutes < 10 else [])], axis).words
        assert next(word.kind for word in words if word.text == name) == kind, "left out where the lane is narrow"


async def test_holds_are_added_shown_everywhere_and_lifted(api: Api, visitor: Visitor) -> None:
    await api.add_job("busy", overlap="allow")
    await api.post("/jobs/busy/trigger")
    await api.post("/runs/claim", {"queues": ["work"], "worker": "w"})
    await api.post("/jobs/busy/trigger")
    await visitor.open("/holds")
    assert "Nothing is held" in visitor.text
    for wrong in ({"reason": ""}, {"what": ""}, {"scope": "labels", "what": "team"}, {"begins": "soon"},
                  {"length": "2y"}, {"scope": "nothing"}):  # fmt: skip
        await visitor.open("/holds")
        form = {"scope": "queue", "what": "work", "length": "1h", "reason": "the move", **wrong}
        assert (await visitor.post("/holds", **form)).status == 422, wrong
    await visitor.open("/holds")
    form = {"scope": "queue", "what": "work", "length": "1h", "reason": "the <move>"}
    assert (await visitor.post("/holds", **form)).status == 303
    await visitor.open("/holds")
    assert "1 hold in force" in visitor.text
    lift = re.search(r'action="(/holds/[^"]+/lift)"', visitor.page)
    assert lift is not None
    await visitor.open("/timeline")
    assert "Nothing of queue work begins until" in visitor.text
    assert "“the <move>”. 1 run that had begun goes on; 1 due run waits." in visitor.text, visitor.text
    await visitor.open("/jobs")
    assert "A hold on queue work, by local since" in visitor.text
    assert "Open hold" in visitor.text
    await visitor.open("/holds")
    assert (await visitor.post(lift[1])).status == 303
    await visitor.open("/holds")
    assert "Nothing is held" in visitor.text


async def test_a_year_of_a_calendar_says_what_moves_and_what_is_left_out(api: Api, visitor: Visitor) -> None:
    body = {"holidays": [{"date": "2027-01-01", "name": "New Year"}, "2027-03-26"], "business_days": ["2027-01-02"]}
    assert (await api.send("PUT", "/calendars/de-be", body)).status == 201
    for name, expression, convention in (("vat", "0 9 1 * *", "following"), ("pay", "0 18 31 1 *", "preceding"),
                                         ("daily", "0 6 * * *", "skip"), ("often", "* * * * *", "skip")):  # fmt: skip
        inner = {"type": "cron", "expression": expression, "timezone": "Europe/Berlin"}
        rule = {"type": "business_day", "calendar": "de-be", "trigger": inner, "convention": convention}
        await api.add_job(name, trigger=rule)
    await visitor.open("/business-days/de-be?year=2027")
    for said in ("4 jobs use it, 4 days move 4 fire times.", "vat Fri 1 Jan → Sat 2 Jan", "pay Sun 31 Jan ← Fri 29 Jan",
                 "Fri 1, New Year; vat moves to Sat 2 Jan", "3 move", "1 moves", "2 out, 1 in", "of the first 500",
                 "on the 1st of the month at 09:00, moved to the following business day"):  # fmt: skip
        assert said in visitor.text, (said, visitor.text)
    document = unescape(visitor.page.partition('name="documents"')[2].partition(">")[2].partition("</textarea>")[0])
    made = await visitor.post("/plans", documents=document.replace("2027-03-26", "2027-03-29"))
    await visitor.open(made.headers["location"])
    assert "Update de-be calendar, 1 field" in visitor.text
    assert "at other times with it: daily" in visitor.text


async def test_a_year_of_a_calendar_counts_its_business_days(api: Api, visitor: Visitor) -> None:
    await visitor.open("/business-days")
    assert "No calendar yet" in visitor.text
    body = {"holidays": [{"date": "2027-12-24", "name": "Christmas Eve"}], "business_days": ["2027-12-18"],
            "ends_on": "2027-12-31"}  # fmt: skip
    assert (await api.send("PUT", "/calendars/de-be", body)).status == 201
    rule = {"type": "business_day", "calendar": "de-be", "trigger": {"type": "cron", "expression": "0 6 * * *"}}
    await api.add_job("monthly", trigger=rule)
    await visitor.open("/business-days/de-be?year=2027")
    assert "de-be: 261 business days in 2027" in visitor.text, visitor.text
    assert "24 Christmas Eve" in visitor.text
    assert "Fri 24, Christmas Eve" in visitor.text
    assert "Sat 18, works although weekend" in visitor.text
    assert "monthly" in visitor.text
    for path, status in (("/business-days/none", 404), ("/business-days/de-be?year=none", 422)):
        assert (await visitor.open(path)).status == status


async def test_a_lane_says_how_many_places_are_used_as_far_as_that_is_known(api: Api, visitor: Visitor) -> None:
    limit = {"key": "media", "max": 4}
    for name, fields in (("free", {}), ("limited", {"concurrency": limit}), ("unknown", {})):
        await api.add_job(name, target={"type": "queue", "queue": name}, labels={"team": "a"}, **fields)
        await api.post(f"/jobs/{name}/trigger")
        await api.post("/runs/claim", {"queues": [name], "limit": 1, "worker": "w"})
    idle = asyncio.create_task(api.claims.claim(["pull/free"], 3, "w", 60))
    await until(lambda: api.claims.waiting == 1)
    api.clock.advance(5)
    await visitor.open("/timeline")
    assert "free 1 of 4 places used" in visitor.text, visitor.text
    assert "limited 1 of 4 places used" in visitor.text
    assert "unknown 1 used, places not known" in visitor.text
    assert "label%3Ateam" in visitor.page, "a lane for each value of the label that most jobs have"
    api.claims.close()
    await idle


async def test_places_of_nodes_are_known_from_their_beats(api: Api, visitor: Visitor) -> None:
    now = api.clock.now()
    for name, places, beat in (
        ("a", {"http": 4, "handler": 3}, now),
        ("b", {"http": 8}, now),
        ("lost", {"http": 50}, 0),
    ):
        node = Node(name=name, roles=("dispatcher",), started_at=0, beat_at=max(beat, now - HOUR), places=places)
        await api.store.beat_node(node)
    await api.add_job("call", target={"type": "http", "url": "https://example.com/"})
    await api.post("/jobs/call/trigger")
    (run,) = one_offs("charge", [b"{}"], Wanted(), now, b"0123456789", ())
    await api.store.add_runs([run])
    claimed = await api.store.claim_runs(
        ["http", run.queue], 2, "a", api.clock.now(), api.clock.now(), api.clock.steady()
    )
    assert len(claimed.runs) == 2
    await visitor.open("/timeline")
    assert "http 1 of 12 places used" in visitor.text, visitor.text
    assert "1 used of 3 places for all handlers" in visitor.text
    (held,) = (one for one in claimed.runs if one.job)
    assert (await api.post(f"/runs/{held.id}/complete", {"token": held.token})).status == 200
    api.clock.advance(2)
    await visitor.open("/timeline")
    assert "http 0 of 12 places used" in visitor.text, visitor.text


async def test_a_bar_leads_to_its_run_and_a_fire_time_to_its_job(api: Api, visitor: Visitor) -> None:
    await api.add_job("hourly", trigger={"type": "interval", "every_seconds": 600})
    run = await ended(api, "hourly", 1, api.clock.now() - 20 * MINUTE, error="KeyError: 'XDR'")
    await visitor.open("/timeline")
    bars = re.findall(r'<a class="mark" href="([^"]+)" tabindex="(-?[01])"><title>([^<]+)<', visitor.page)
    assert [tab for _, tab, _ in bars].count("0") == 1, "one tab stop of a lane"
    assert [to for to, _, said in bars if "failed in" in said] == [
        f"/timeline?span=1h&amp;by=queue&amp;run={run.id}#chosen"
    ]
    assert {to for to, _, said in bars if "failed in" not in said} == {"/jobs/hourly"}


async def test_the_chosen_run_has_what_ran_beside_it(api: Api, visitor: Visitor) -> None:
    for name in ("one", "two"):
        await api.add_job(name, target={"type": "queue", "queue": "work"})
        await api.post(f"/jobs/{name}/trigger")
    first, second = await api.claim(2)
    api.clock.advance(30)
    report = {"token": first["lease"]["token"], "error": "KeyError: 'XDR'", "retryable": False}
    await api.post(f"/runs/{first['id']}/fail", report)
    await visitor.open("/timeline")
    assert re.search(r"Failed in 30 s\. KeyError: 'XDR' Due .* Beside it 1 other run of work", visitor.text), (
        visitor.text
    )
    assert f"run={first['id']}#chosen" in visitor.page
    await visitor.open(f"/timeline?run={second['id']}")
    assert re.search(r"Open run Running", visitor.text), visitor.text
