"""Many jobs or runs at once: their number is said before, what was done after, and a pause is taken back."""

from __future__ import annotations

import re

import pytest

from horarium.dashboard.views import bulk as views_bulk
from horarium.dashboard.views import bulk_jobs
from horarium.operations.runs import bulk
from tests.api.conftest import Api
from tests.dashboard.test_pages import a_failed_run
from tests.dashboard.visitor import Visitor

pytestmark = pytest.mark.slow


async def paused(api: Api) -> dict[str, str | None]:
    """The reason of each paused job."""
    jobs = (await api.get("/jobs?limit=200")).json["items"]
    return {job["name"]: job["pause_reason"] for job in jobs if not job["enabled"]}


async def test_all_that_match_are_paused_with_a_reason_and_resumed_by_one_button(api: Api, visitor: Visitor) -> None:
    for number in range(60):
        await api.add_job(f"sync-{number:02}", labels={"team": "shop"})
    await api.add_job("other")
    await api.post("/jobs/sync-07/pause", {"reason": "older"})
    await visitor.open("/jobs?q=team%3Dshop")
    found = re.search(r'href="(/bulk-jobs[^"]+)">Pause all that match', visitor.page)
    assert found is not None
    await visitor.open(found[1].replace("&amp;", "&"))
    assert "Pause 59 jobs?" in visitor.text
    assert "1 more job is paused already" in visitor.text
    form = {"action": "pause", "all": "1", "q": "team=shop", "reason": "the <move>"}
    assert (await visitor.post("/jobs", **form)).headers["location"] == "/jobs?q=team%3Dshop"
    assert len(await paused(api)) == 60
    assert (await paused(api))["sync-08"] == "the <move>"
    await api.post("/jobs/other/pause", {"reason": "mine"})
    await visitor.open("/jobs")
    assert "59 jobs paused. 1 job was paused already" in visitor.text
    undo = re.search(r'action="(/bulk-jobs/undo[^"]+)"', visitor.page)
    assert undo is not None
    assert "Resume 59" in visitor.text
    assert (await visitor.post(undo[1].replace("&amp;", "&"))).status == 303
    assert await paused(api) == {"sync-07": "older", "other": "mine"}, "those that others paused stay paused"
    await visitor.open("/jobs")
    assert "59 jobs resumed." in visitor.text


async def test_what_is_more_than_one_request_does_goes_on_from_there(
    api: Api, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_jobs, "MATCHED_MAX", 2)
    for number in range(5):
        await api.add_job(f"j{number}")
    await visitor.open("/bulk-jobs?action=trigger&q=j")
    assert "Run 5 jobs?" in visitor.text, "a search looks at more"
    await visitor.open("/bulk-jobs?action=trigger")
    for expected in (2, 4, 5):
        assert "There are more" in visitor.text or expected == 5
        after = re.search(r'name="after" value="([^"]*)"', visitor.page)
        assert after is not None
        to = (await visitor.post("/jobs", action="trigger", all="1", after=after[1])).headers["location"]
        assert len((await api.get("/runs?limit=50")).json["items"]) == expected
        await visitor.open(to)
    assert to == "/jobs"


async def test_chosen_ones_are_previewed_where_it_cannot_be_taken_back(api: Api, visitor: Visitor) -> None:
    for name in ("a", "b", "c"):
        await api.add_job(name)
    await visitor.open("/jobs")
    await visitor.post("/bulk-jobs/chosen", action="trigger", chosen=["a", "b", "gone", "no such name"])
    assert "Run 2 jobs?" in visitor.text
    assert (await api.get("/runs")).json["items"] == [], "a preview changes nothing"
    assert (await visitor.post("/jobs", action="trigger")).status == 303
    assert (await api.get("/runs")).json["items"] == [], "none chosen is not all"
    for wrong in ("/bulk-jobs?action=delete", "/bulk-jobs?action="):
        assert (await visitor.open(wrong)).status == 422
    await visitor.open("/jobs")
    assert (await visitor.post("/bulk-jobs/undo?from=1&to=x")).status == 422


async def test_a_page_counts_so_many_runs_and_says_that_there_are_more(
    api: Api, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.add_job("job")
    for _ in range(3):
        await a_failed_run(api)
    for most, said in ((3, "Retry 3 runs?"), (2, "Retry more than 2 runs?")):
        monkeypatch.setattr(views_bulk, "COUNTED_MAX", most)
        await visitor.open("/bulk-runs?action=retry&state=failed")
        assert said in visitor.text
    await visitor.post("/bulk-runs", action="retry", state="failed")
    assert len((await api.get("/runs?state=pending")).json["items"]) == 3, "it is done to all of them"
    monkeypatch.setattr(views_bulk, "COUNTED_MAX", 2)
    await visitor.open("/bulk-runs?action=cancel&state=pending")
    assert "Cancel more than 2 runs?" in visitor.text


async def test_runs_that_were_retried_are_marked_and_not_offered_again(
    api: Api, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.add_job("job")
    runs = [await a_failed_run(api, error="XDR is down") for _ in range(3)]
    await visitor.open("/runs?state=failed")
    assert "retried" not in visitor.text
    assert (await visitor.post("/bulk-runs", action="retry", which="chosen", chosen=runs[:2])).status == 303
    await visitor.open("/runs?state=failed")
    assert "2 runs will run again." in visitor.text
    assert visitor.text.count(" retried ") == 2
    await visitor.open("/bulk-runs?action=retry&state=failed&error=xdr")
    assert "Retry 1 run?" in visitor.text, "capitals or not, as the list finds them"
    assert "2 more runs were retried before" in visitor.text
    await visitor.post("/bulk-runs", action="retry", error="xdr", state="failed")
    await visitor.open("/bulk-runs?action=retry&state=failed")
    assert "Nothing to retry" in visitor.text
    assert "3 runs of all jobs were retried before" in visitor.text
    monkeypatch.setattr(bulk, "RETRIED_KNOWN_MAX", 2)
    monkeypatch.setattr(views_bulk, "RETRIED_KNOWN_MAX", 2)
    monkeypatch.setattr(views_bulk, "PAGE_MAX", 2)
    await visitor.open("/bulk-runs?action=retry&state=failed")
    assert "At least 2 runs were retried before" in visitor.text, "the others were not looked at"
    await visitor.open("/runs")
    await visitor.post("/bulk-runs/chosen", action="cancel", which="chosen", chosen=runs)
    assert "Nothing to cancel" in visitor.text
    assert "No run of those chosen is pending or running." in visitor.text
    pending = [run["id"] for run in (await api.get("/runs?state=pending")).json["items"]]
    await visitor.open("/runs")
    await visitor.post("/bulk-runs/chosen", action="cancel", which="chosen", chosen=pending[:1], back="/runs?job=job")
    assert "Cancel 1 run?" in visitor.text
    assert (await visitor.post("/bulk-runs", action="cancel", which="chosen")).status == 303
    assert len((await api.get("/runs?state=pending")).json["items"]) == 3, "none chosen is not all"
    await visitor.open("/runs")
    reply = await visitor.post("/bulk-runs", action="cancel", which="chosen", chosen=pending[:1], back="/runs?job=job")
    assert reply.headers["location"] == "/runs?job=job"
    assert len((await api.get("/runs?state=pending")).json["items"]) == 2


async def test_a_job_that_is_not_there_is_named(api: Api, visitor: Visitor) -> None:
    for action in ("retry", "cancel"):
        reply = await visitor.open(f"/bulk-runs?action={action}&job=no%20such")
        assert (reply.status, "there is no job named 'no such'" in visitor.text) == (404, True)
        await visitor.open("/holds")
        assert (await visitor.post("/bulk-runs", action=action, job="no such")).status == 404


async def test_the_times_of_a_filter_mean_the_same_to_a_person_in_another_zone(api: Api, visitor: Visitor) -> None:
    visitor.cookies["horarium_zone"] = "Asia/Tokyo"
    found = await visitor.open("/runs?since=2027-01-15T17:00&until=2027-01-15T17:30&state=failed")
    to = found.headers["location"]
    assert to == "/runs?since=2027-01-15T08%3A00%3A00Z&until=2027-01-15T08%3A30%3A00Z&state=failed"
    for zone, since, until in (("Asia/Tokyo", "17:00", "17:30"), ("UTC", "08:00", "08:30")):
        visitor.cookies["horarium_zone"] = zone
        await visitor.open(to)
        assert f'name="since" value="2027-01-15T{since}"' in visitor.page
        assert f'name="until" value="2027-01-15T{until}"' in visitor.page
    await visitor.open("/runs?since=2027-01-15T08:00:00Z")
    assert "No run matches since Fri 15 Jan, 08:00" in visitor.text
