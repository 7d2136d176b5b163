"""What a job missed waits on the page of approvals, with a button for each decision."""

from __future__ import annotations

from tests.api.conftest import Api, a_definition
from tests.dashboard.visitor import Visitor

KEY = "first-key-1234"
ADMIN = {"authorization": f"Bearer {KEY}"}


async def test_what_was_missed_is_decided_with_a_button() -> None:
    api = Api(api_keys=[KEY], pages=True)
    job = a_definition("files", trigger={"type": "interval", "every_seconds": 3_600}, catch_up={"policy": "ask"})
    await api.send("POST", "/jobs", job, headers=ADMIN)
    api.clock.advance(4.5 * 3_600)
    await api.send("PATCH", "/jobs/files", {"title": "Files"}, headers=ADMIN)
    (asked,) = (await api.send("GET", "/approvals", headers=ADMIN)).json["items"]
    visitor = Visitor(api)
    await visitor.open("/sign-in")
    await visitor.post("/sign-in", key=KEY)
    await visitor.open("/approvals")
    for said in ("One decision waits", "missed 4: ", "the latest runs", "Takes not known", "You may decide it.",
                 "The latest runs now, the other 3 stay missed", "All 4 run", "None all 4 stay missed"):  # fmt: skip
        assert said in visitor.text
    path = f"/approvals/{asked['id']}/missed"
    assert (await visitor.post(path, decision="perhaps")).status == 422
    await visitor.open("/approvals")
    assert (await visitor.post(path, decision="all")).status == 303
    await visitor.open("/approvals")
    assert "All fire times run that files missed." in visitor.text
    assert "No decisions wait" in visitor.text
    assert visitor.text.count("all, decided by") == 1, "one decision about four"
    runs = (await api.send("GET", "/runs?job=files", headers=ADMIN)).json["items"]
    assert [run["cause"] for run in runs] == ["catch_up"] * 4
    assert "all, decided by" in str(runs[0]["history"])
    entries = (await api.send("GET", "/audit?action=approval.all", headers=ADMIN)).json["items"]
    assert [each["object"] for each in entries] == ["job/files"]


async def test_one_missed_fire_time_runs_or_not() -> None:
    api = Api(pages=True)
    asks = {"policy": "ask", "then": "all"}
    job = a_definition("files", trigger={"type": "interval", "every_seconds": 3_600}, catch_up=asks)
    await api.send("POST", "/jobs", job)
    api.clock.advance(1.5 * 3_600)
    await api.send("PATCH", "/jobs/files", {"title": "Files"})
    visitor = Visitor(api)
    await visitor.open("/approvals")
    assert "missed 1: " in visitor.text, visitor.text
    assert "The latest runs now None it stays missed" in visitor.text
    assert 'value="latest" checked' in visitor.page
