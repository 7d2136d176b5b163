"""Batches for people: exact counts, members, what follows, and what can be done with one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from horarium.access.audit import AuditFilter
from horarium.access.audit import page as audit_page
from horarium.dashboard.views import batches as page
from horarium.model import Run, RunFollow, uuid7
from horarium.rules.chains import chain_key
from tests.api.conftest import Api
from tests.api.test_batches import ROW, work
from tests.api.test_bound_keys import Two
from tests.dashboard.test_bound_visitors import session_of
from tests.dashboard.visitor import Visitor

pytestmark = pytest.mark.slow


async def made(api: Api, runs: int = 0, **fields: Any) -> str:
    api.clock.advance(1)
    reply = await api.post("/batches", {"runs": [ROW] * runs, **fields})
    assert reply.status == 201, reply.body
    return str(reply.json["id"])


async def test_a_batch_says_how_far_it_is_and_is_closed_done_again_and_cancelled(api: Api, visitor: Visitor) -> None:
    await api.add_job("report")
    on = {"finished": [{"trigger": "report"}], "completed": [{"handler": "tidy"}]}
    id = await made(api, 4, name="<import>", on=on, open=True)
    await work(api, "complete", "fail", "complete")
    await visitor.open(f"/batches/{id}")
    assert "75 % have ended 3 of 4 runs, so far 2 completed 1 failed 0 cancelled 1 not ended" in visitor.text
    assert "<import>" in visitor.text
    assert "<import>" not in visitor.page
    assert re.search(r'<span class="count"[^>]*>1</span>', visitor.page), "the navigation counts jobs here too"
    assert "When all have ended run report not yet" in visitor.text
    assert (await visitor.post(f"/batches/{id}/close")).status == 303
    await visitor.open(f"/batches/{id}?state=failed")
    assert visitor.page.count("data-row") == 1
    assert (await visitor.post(f"/batches/{id}/retry")).status == 303
    await visitor.open(f"/batches/{id}")
    assert "1 run will run again" in visitor.text
    assert "50 % have ended 2 of 4 runs 2 completed 0 failed 0 cancelled 2 not ended" in visitor.text
    assert (await visitor.post(f"/batches/{id}/cancel", reason="enough")).status == 303
    await visitor.open(f"/batches/{id}")
    assert "2 runs cancelled." in visitor.text
    assert "100 % have ended 4 of 4 runs" in visitor.text
    assert "call tidy did not come about" in visitor.text
    assert 'popovertarget="cancel-dialog"' not in visitor.page
    assert (await api.get(f"/batches/{id}")).json["state"] == "finished"
    told = [line.action for line in (await audit_page(api.store, AuditFilter(), None, 50)).items]
    wanted = {"batch.create", "batch.close", "batch.retry", "batch.cancel"}
    assert sorted(action for action in told if action in wanted) == sorted(wanted)


async def test_runs_and_jobs_lead_to_their_batch_and_it_to_what_followed(api: Api, visitor: Visitor) -> None:
    await api.add_job("report")
    id = await made(api, 1, on={"finished": [{"trigger": "report"}, {"handler": "tidy"}]})
    await work(api, "complete")
    await api.operations.batches._batching.count(id)
    await visitor.open(f"/batches/{id}")
    links = re.findall(r'href="/runs/([^"]+)"', visitor.page)
    assert "call tidy Pending" in visitor.text
    for run in links:
        await visitor.open(f"/runs/{run}")
        assert f'href="/batches/{id}"' in visitor.page
    assert (await visitor.open(f"/search?q={id}")).headers["location"] == f"/batches/{id}"
    await visitor.open("/jobs/report")
    assert "Batches that run it" not in visitor.text
    (job,) = await api.store.get_jobs(["report"])
    assert job is not None
    now = api.clock.now()
    key = chain_key(1, f"batch/{id}/1/finished/trigger:report")
    run = Run(id=uuid7(now, b"0123456789"), queue="q", job="report", job_id=job.id, fire_at=now - 1, due_at=now - 1,
              created_at=now, unique_key=key)  # fmt: skip
    assert await api.store.add_runs([run]) == [True]
    await visitor.open("/jobs/report")
    assert "Batches that run it" in visitor.text
    await visitor.open("/batches?q=trigger:report")
    assert id in visitor.page
    batch, _ = await api.operations.batches.create("import", {}, then=(RunFollow(queue="handler/receipt"),))
    await visitor.open(f"/batches/{batch.id}")
    assert "call receipt Pending" in visitor.text
    await visitor.open(f"/runs/{run.id}")
    assert "Follows from a batch" in visitor.text
    await visitor.open(f"/batches/{id}")
    assert f'href="/runs/{run.id}"' in visitor.page


async def test_lists_are_filtered_searched_and_paged(
    api: Api, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "SHOWN", 2)
    nothing = await visitor.open("/batches")
    assert (nothing.status, "No batch yet" in visitor.text) == (200, True)
    await api.send("PUT", "/channels/office", {"type": "webhook", "url": "https://office.example.com"})
    ids = [await made(api, 1, name=f"Night {number}", on={"failed": [{"notify": "office"}]} if number else {})
           for number in range(3)]  # fmt: skip
    open_one = await made(api, name="day")
    await visitor.open("/batches")
    assert visitor.page.count("data-row") == 2
    assert "no run yet" in visitor.text, "how far an empty batch is, is not known"
    older = re.search(r'href="(/batches\?cursor=[^"]+)"', visitor.page)
    assert older is not None
    await visitor.open(older[1])
    assert f"/batches/{ids[0]}" in visitor.page
    await visitor.open("/batches?state=open")
    assert (visitor.page.count("data-row"), open_one in visitor.page) == (1, True)
    await visitor.open("/batches?q=night+0")
    assert re.findall(r'data-open href="/batches/([^"]+)"', visitor.page) == ids[:1]
    await visitor.open("/batches?q=notify:office")
    assert re.findall(r'data-open href="/batches/([^"]+)"', visitor.page) == [ids[2], ids[1]]
    await visitor.open("/batches?q=nothing-like-it")
    assert "No batch has “nothing-like-it” in its name or in what follows" in visitor.text
    assert (await visitor.open(f"/batches?q={ids[0].upper()}")).headers["location"] == f"/batches/{ids[0]}"
    for path in ("/batches/nothing", f"/batches/{ids[0][:-1]}z", "/batches/01939a00-0000-7000-8000-000000000000"):
        assert (await visitor.open(path)).status == 404, path
    assert (await visitor.open("/batches?cursor=x")).status == 422


async def test_members_are_paged(api: Api, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "SHOWN", 2)
    id = await made(api, 5)
    seen: list[str] = []
    path: str | None = f"/batches/{id}"
    while path:
        await visitor.open(path)
        seen += re.findall(r'data-open href="/runs/([^"]+)"', visitor.page)
        more = re.search(rf'href="(/batches/{id}\?cursor=[^"]+)"', visitor.page)
        path = more and more[1]
    listed = (await api.get(f"/batches/{id}/runs")).json["items"]
    assert seen == [run["id"] for run in listed]


async def test_a_bound_visitor_sees_its_own_batches(api: Api) -> None:
    two = Two("queues")
    await two.set_up()
    theirs, ours = two.runs["batch"], two.runs["our batch"]
    cookie = {"cookie": f"horarium_session={await session_of(two)}"}
    listed = (await two.api.send("GET", "//batches", headers=cookie)).body.decode()
    assert (ours in listed, theirs in listed) == (True, False)
    for id, status in ((ours, 200), (theirs, 404)):
        assert (await two.api.send("GET", f"//batches/{id}", headers=cookie)).status == status
        asked = await two.api.send("GET", f"//search?q={id}", headers=cookie)
        assert ("location" in asked.headers) is (status == 200), asked.body
