"""What lies ahead: the forecast, plans, and the calendar of many jobs."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from os import urandom
from typing import Any

import pytest

from horarium.api.answers import Ready
from horarium.clock import DAY, HOUR, MINUTE, to_datetime
from horarium.dashboard.frame import file_answer
from horarium.model import Run, State, uuid7
from horarium.operations.looking import forecasting
from horarium.operations.looking.forecasting import Forecast, Forecasting
from tests.api.conftest import Api, a_definition
from tests.dashboard.visitor import Visitor

pytestmark = pytest.mark.slow

DAILY = {"type": "cron", "expression": "30 5 * * *"}


async def many(api: Api, count: int) -> None:
    for number in range(count):
        await api.add_job(f"job-{number:03}", trigger=DAILY)


async def test_the_calendar_counts_what_it_has_no_room_to_name(api: Api, visitor: Visitor) -> None:
    await many(api, 300)
    for span in ("week", "day", "month"):
        day = "2027-03-27"
        await visitor.open(f"/calendar?span={span}&day={day}")
        assert "300 fires" in visitor.page if span != "month" else "300" in visitor.text, span
    await visitor.open("/calendar?span=week&day=2027-03-27")
    marked = re.findall(r"(\w+ 05:00), 300 fires", visitor.page)
    assert len(marked) >= 3, "each day that is still to come has them"
    hour = re.search(r'href="([^"]+)" title="Sat 05:00, 300 fires', visitor.page)
    assert hour is not None
    assert hour[1].endswith("#h5")
    await visitor.open(hour[1].partition("#")[0].replace("&amp;", "&"))
    row = visitor.page.partition('id="h5"')[2].partition("</tr>")[0]
    assert row.count('href="/jobs/') == 12, "an hour of the week leads to its row of the day"
    assert 'href="/forecast?cell=2027-03-27T05:00:00Z">and 288 more' in row


async def test_a_full_calendar_weighs_little(api: Api, visitor: Visitor) -> None:
    now = api.clock.now()
    for number in range(30):
        await api.add_job(f"job-{number:02}", trigger=DAILY)
    jobs = [job for job in await api.store.get_jobs([f"job-{number:02}" for number in range(30)]) if job is not None]
    for place in range(20):
        at = now - (place + 1) * HOUR
        await api.store.add_runs([
            Run(id=uuid7(at, urandom(10)), queue="work", job=job.name, job_id=job.id, fire_at=at, due_at=at,
                created_at=at, state=State.COMPLETED, attempt=1, token=1, started_at=at, finished_at=at)
            for job in jobs
        ])  # fmt: skip
    loaded = re.findall(r"/dashboard/\w+/([\w.]+)", (await visitor.open("/calendar")).body.decode())
    answers = [file_answer(name, gzipped=True) for name in set(loaded)]
    files = sum(len(piece) for answer in answers if isinstance(answer, Ready) for piece in answer.pieces)
    assert 30_000 < files < 45_000, "all that the page loads"
    for span in ("day", "week", "month"):
        for day in (now, now - DAY):
            await visitor.open(f"/calendar?span={span}&day={to_datetime(day):%Y-%m-%d}")
            assert files + len(gzip.compress(visitor.page.encode(), 5)) < 60_000, span


async def past_runs(api: Api, count: int, failed: Collection[int]) -> Run:
    """Runs of a job that fires every two minutes, newest first, and which of them failed; the oldest one."""
    await api.add_job("often", trigger={"type": "cron", "expression": "*/2 * * * *"})
    (job,) = await api.store.get_jobs(["often"])
    assert job is not None
    now = api.clock.now()
    runs = []
    for number in range(count):
        at = now - number * 2 * MINUTE - MINUTE
        state = State.FAILED if number in failed else State.COMPLETED
        runs.append(Run(
            id=uuid7(at, number.to_bytes(10, "big")), queue=job.queue, job="often", job_id=job.id, fire_at=at,
            due_at=at, created_at=at, state=state, attempt=1, token=1, started_at=at, finished_at=at, error="no",
        ))  # fmt: skip
    await api.store.add_runs(runs)
    return runs[-1]


async def test_failures_of_jobs_that_fire_often_are_drawn(api: Api, visitor: Visitor) -> None:
    await past_runs(api, 650, failed=[640])
    await visitor.open("/calendar")
    assert "1 job that fires hourly or more often" in visitor.text
    assert "1 failed" in visitor.page
    await visitor.open("/calendar?often=1")
    assert "Leave out jobs that fire hourly" in visitor.text


async def test_hours_with_more_failures_than_are_read_are_hatched_not_blank(api: Api, visitor: Visitor) -> None:
    oldest = await past_runs(api, 1_400, failed=range(650, 1_400))
    beyond = to_datetime(oldest.fire_at)
    for span, place in (("month", "li"), ("week", "td")):
        await visitor.open(f"/calendar?span={span}&day={beyond:%Y-%m-%d}")
        assert re.search(rf'<{place} class="[^"]*partly', visitor.page), span
    assert "Not known." in visitor.text, "in the list of a day on a phone too"


async def test_the_forecast_counts_each_hour_and_names_its_jobs(api: Api, visitor: Visitor) -> None:
    await many(api, 30)
    await visitor.open("/forecast?count=starts")
    assert re.search(r'title="[^"]*05:00: 30 starts"', visitor.page)
    assert re.search(r'title="[^"]*: 0 starts"', visitor.page)
    assert "Worst:" in visitor.text
    assert "30 of them at 05:30" in visitor.text
    assert "job-011" in visitor.text
    await visitor.open("/forecast?week=2027-01-04")
    assert "These days are over" in visitor.text
    for wrong in ("week=never", "places=no", "cell=never"):
        assert (await visitor.open(f"/forecast?{wrong}")).status == 422


async def test_places_say_which_hours_need_too_much(api: Api, visitor: Visitor) -> None:
    await many(api, 4)
    for name in ("job-000", "job-001", "job-002"):
        (job,) = await api.store.get_jobs([name])
        assert job is not None
        at = api.clock.now() - DAY
        await api.store.add_runs([Run(
            id=uuid7(at, name.encode().ljust(10, b"0")), queue=job.queue, job=name, job_id=job.id, fire_at=at,
            due_at=at, created_at=at, state=State.COMPLETED, attempt=1, token=1, started_at=at, finished_at=at + HOUR,
        )])  # fmt: skip
    await visitor.open("/forecast?places=1")
    assert "need more than there is" in visitor.text, visitor.text
    assert "1 can go on, so what waits is done by 09:30" in visitor.text, "four hours of work from 05:30 on"
    await visitor.open("/forecast?places=50")
    assert "There is room in every hour" in visitor.text
    assert "what waits" not in visitor.text
    assert "the usual ones of each job; 1 job is estimated by the others, for want of a run of its own." in visitor.text
    assert "job-003 05:30 1 not known about 30.0" in visitor.text
    assert "job-002 05:30 1 1 h 30.0" in visitor.text, "how long it takes, not the part of it in this hour"
    assert "counts with 1 h each, the average of the others of this hour" in visitor.text


async def test_jobs_that_begin_together_are_spread_by_a_plan(api: Api, visitor: Visitor) -> None:
    await many(api, 5)
    await visitor.open("/forecast?count=starts")
    at = re.search(r'name="at" value="([^"]+)"', visitor.page)
    most = re.search(r"Most in one minute 5 now, (\d) then", visitor.text)
    assert at is not None, visitor.text
    assert most is not None, visitor.text
    reply = await visitor.post("/forecast", at=at[1])
    assert reply.status == 303, visitor.text
    plan = reply.headers["location"]
    await visitor.open(plan)
    assert "Five changes, nothing fires at once" in visitor.text, visitor.text
    assert "jitter_seconds default → 30 m" in visitor.text
    reply = await visitor.post(f"{plan}/apply")
    assert reply.status == 303
    assert (await api.get("/jobs/job-003")).json["jitter_seconds"] == 1800
    hour = f"since={at[1]}&until={at[1].replace(':00:00', ':59:59')}"
    buckets = (await api.get(f"/forecast?{hour}&bucket_seconds=60")).json["buckets"]
    assert max(sum(bucket["starts"].values()) for bucket in buckets) == int(most[1]), "as it was said before"
    await visitor.open(plan)
    assert "Nothing is left to do" in visitor.text
    reply = await visitor.open("/plans?id=" + plan.removeprefix("/plans/"))
    assert reply.headers["location"] == plan


async def test_a_plan_says_what_comes_goes_and_is_deleted(api: Api, visitor: Visitor) -> None:
    await api.add_job("moves", trigger=DAILY, labels={"app": "shop"})
    await api.add_job("leaves", trigger=DAILY, labels={"app": "shop"})
    secret = {"type": "http", "url": "https://example.com/", "headers": {"Authorization": "Bearer of-nobody"}}
    documents = [
        {**a_definition("moves"), "trigger": {**DAILY, "expression": "0 6 * * *"}, "labels": {"app": "shop"}},
        {**a_definition("comes"), "trigger": DAILY, "target": secret},
    ]
    await visitor.open("/plans")
    reply = await visitor.post("/plans", documents=json.dumps(documents), labels="app=shop")
    assert reply.status == 303, visitor.text
    plan = reply.headers["location"]
    await visitor.open(plan)
    assert "Three changes, nothing fires at once" in visitor.text, visitor.text
    assert "1 new, 1 changed, 1 deleted" in visitor.text
    assert "of-nobody" not in visitor.page
    assert "When every day at 05:30 → every day at 06:00" in visitor.text, "in words, not in fields"
    assert "trigger." not in visitor.text
    assert "each 30 m later. Next:" in visitor.text
    assert "Apply 3 changes, and delete 1 job?" in visitor.text
    assert re.search(r"Peak before 2 starts, .* Peak after 1 start, ", visitor.text), visitor.text
    await api.send("PATCH", "/jobs/moves", {"priority": 3})
    await visitor.open(plan)
    assert "This plan is stale" in visitor.text
    assert re.search(r"moves was changed by local at [\d:]+ , version 2\. Difference", visitor.text), visitor.text
    assert "disabled" in visitor.page, "why it can't be applied now stands beside it"
    assert f"{plan}/apply" not in visitor.page
    assert (await api.get("/jobs/leaves")).status == 200


async def test_each_warning_of_a_plan_leads_to_its_job_and_to_what_mends_it(api: Api, visitor: Visitor) -> None:
    await api.send("PUT", "/calendars/house", {"holidays": ["2027-01-18"], "ends_on": "2027-02-01"})
    working = {"type": "business_day", "trigger": DAILY, "calendar": "house", "convention": "following"}
    documents = [
        {**a_definition("tells", trigger=DAILY), "on": {"failed": [{"notify": "nobody"}]}},
        {**a_definition("works", trigger=working), "target": {"type": "queue", "queue": "new"}},
        a_definition("leap", trigger={**DAILY, "expression": "0 0 29 2 *"}),
    ]
    await visitor.open("/plans")
    reply = await visitor.post("/plans", documents=json.dumps(documents), labels="")
    await visitor.open(reply.headers["location"])
    found = set(re.findall(r'href="([^"]+)" aria-label="([^"]+: [a-z]+)"', visitor.page))
    assert found == {
        ("/channels", "Open channels: tells"),
        ("/business-days/house", "Open calendar: works"),
        ("/queues", "Open queues: works"),
        ("/queues", "Open queues: tells"),
        ("#job-leap", "Its fire times: leap"),
    }, visitor.text
    assert all(f'id="job-{name}"' in visitor.page for name in ("tells", "works", "leap"))
    assert "Five warnings" in visitor.text, visitor.text


async def test_a_plan_of_wrong_definitions_says_each(api: Api, visitor: Visitor) -> None:
    await visitor.open("/plans")
    wrong = {"name": "wrong", "trigger": {"type": "cron", "expression": "never"}, "target": {"type": "queue"}}
    await visitor.post("/plans", documents=json.dumps([wrong]))
    assert "1 definition is invalid" in visitor.text
    for text in ("no json", "7", '{"jobs": 3}', '{"runs": []}'):
        await visitor.open("/plans")
        reply = await visitor.post("/plans", documents=text)
        assert reply.status == 422
        assert "documents-error" in visitor.page
    assert (await visitor.open("/plans/none")).status == 404


async def test_no_spread_is_offered_that_gains_nothing(api: Api, visitor: Visitor) -> None:
    await many(api, 5)
    until = to_datetime(api.clock.now() + 2 * DAY).isoformat()
    assert (await api.post("/holds", {"scope": {"all": True}, "reason": "moving", "until": until})).status == 201
    await visitor.open("/forecast?count=starts")
    assert "No jitter makes the busiest minute of this hour less busy" in visitor.text, visitor.text


async def test_pages_say_what_is_being_counted_and_fill_in(
    api: Api, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        await api.add_job(f"night-{number}", trigger=DAILY)
    whole = Forecasting.several
    there = asyncio.Event()

    async def late(forecasting: Forecasting, asked: Any) -> list[Forecast]:
        await there.wait()
        return await whole(forecasting, asked)

    monkeypatch.setattr(Forecasting, "several", late)
    monkeypatch.setattr("horarium.dashboard.views.calendar.JOBS_MAX", 2)
    monkeypatch.setattr("horarium.dashboard.foresight.PATIENCE_SECONDS", 0.0)
    pages = ("/forecast", "/calendar?often=1", "/calendar?span=month&often=1", "/quiet-minutes")
    for page in pages:
        assert (await visitor.open(page)).status == 200
        assert "being counted" in visitor.text
        assert '<noscript><meta http-equiv="refresh"' in visitor.page
    there.set()
    for page in pages:
        assert (await visitor.open(page, x_live="1")).status == 200, "in view, and looks again: it waits"
        assert "being counted" not in visitor.text


@pytest.mark.parametrize(("page", "readings"), [("calendar", 1), ("forecast", 2)])
async def test_a_page_of_the_days_to_come_reads_the_jobs_as_seldom_as_it_can(
    api: Api, monkeypatch: pytest.MonkeyPatch, page: str, readings: int
) -> None:
    begun = 0
    weighed = forecasting.weighed

    @asynccontextmanager
    async def counted(*asked: Any) -> AsyncIterator[Any]:
        nonlocal begun
        begun += 1
        async with weighed(*asked) as counts:
            yield counts

    monkeypatch.setattr(forecasting, "weighed", counted)
    monkeypatch.setattr("horarium.dashboard.views.calendar.UPCOMING_MAX", 20)
    await many(api, 30)
    assert (await api.send("GET", f"//{page}", headers={})).status == 200
    assert begun == readings


async def test_forecasts_are_worked_out_one_after_another(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, most = 0, 0
    weighed = forecasting.weighed

    @asynccontextmanager
    async def counted(*asked: Any) -> AsyncIterator[Any]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        async with weighed(*asked) as counts:
            yield counts
        under_way -= 1

    monkeypatch.setattr(forecasting, "weighed", counted)
    await many(api, 3)
    replies = await asyncio.gather(*(api.get(f"/forecast?bucket_seconds={3_600 * each}") for each in range(1, 5)))
    assert [reply.status for reply in replies] == [200] * 4
    assert most == 1, "their memory would add up"


async def test_days_without_a_fire_time_have_no_worst_hour(api: Api, visitor: Visitor) -> None:
    await api.add_job("later", trigger={"type": "once", "at": "2027-12-24T18:00:00Z"})
    await visitor.open("/forecast")
    assert "Nothing will run on these days No job fires in them." in visitor.text, visitor.text
    assert "Worst" not in visitor.text
    await api.add_job("soon", trigger={"type": "once", "at": "2027-01-16T18:00:00Z"})
    await visitor.open("/forecast?count=starts")
    assert "Worst: Sat 16, 18:00, 1 start. Quietest" in visitor.text, visitor.text
