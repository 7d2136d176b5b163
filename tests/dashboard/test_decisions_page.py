"""A pending decision is a question in words, with its payload beside that of the last run; decided ones stay for a
while, to those who may see their runs."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.api.conftest import Api, a_definition
from tests.api.test_approvals import ADMIN, keyed
from tests.dashboard.visitor import Visitor

ISO = re.compile(r"decision until [0-9]+-[0-9]+-[0-9]+T")


async def signed_in(api: Api, headers: dict[str, str]) -> Visitor:
    visitor = Visitor(api)
    await visitor.open("/sign-in")
    await visitor.post("/sign-in", key=headers["authorization"].removeprefix("Bearer "))
    return visitor


async def asked(api: Api, headers: dict[str, str], payload: dict[str, Any]) -> str:
    made = await api.send("POST", "/jobs/payouts/trigger", {"payload": payload}, headers=headers)
    id: str = made.json["id"]
    return id


async def completed(api: Api) -> None:
    claim = await api.send("POST", "/runs/claim", {"queues": ["work"], "worker": "w"}, headers=ADMIN)
    (run,) = claim.json["runs"]
    report = {"token": run["lease"]["token"]}
    assert (await api.send("POST", f"/runs/{run['id']}/complete", report, headers=ADMIN)).status == 200


async def test_a_question_says_who_asks_until_when_and_what_differs() -> None:
    api = Api(api_keys=["first-key-1234"], pages=True)
    ann, ben = await keyed(api, "ann", "editor"), await keyed(api, "ben", "operator")
    other = await keyed(api, "other", "operator", queues=["others"])
    job = a_definition("payouts", approval={"four_eyes": True, "within_seconds": 600}, labels={"team": "pay"},
                       trigger={"type": "cron", "expression": "30 9 * * *", "timezone": "UTC"})  # fmt: skip
    await api.send("POST", "/jobs", job, headers=ADMIN)
    first = await asked(api, ann, {"batch": "2026-11-20", "to": "DE02"})
    api.clock.advance(240)
    await api.send("POST", f"/approvals/{first}", {"decision": "approve", "reason": "checked"}, headers=ben)
    await completed(api)
    second = await asked(api, ann, {"batch": "2026-11-23", "to": "DE02"})
    visitor = await signed_in(api, ben)
    await visitor.open("/approvals")
    for said in ("One decision waits", "The first runs out in 10 m. You may decide it.", "Asked by ann,", "in 10 m",
                 "Then it is skipped; the next is", "four eyes: anybody but who asked", "against that of",
                 "approved by ben, because: checked, after 4 m"):  # fmt: skip
        assert said in visitor.text, (said, visitor.text)
    assert "<del>  &#34;batch&#34;: &#34;2026-11-20&#34;,</del>" in visitor.page
    assert "<ins>  &#34;batch&#34;: &#34;2026-11-23&#34;,</ins>" in visitor.page
    for action in ("approve", "reject"):
        assert f'form="asked-{second}" formaction="/approvals/{second}/{action}"' in visitor.page
    assert visitor.page.count('<textarea class="mt" name="reason"') == 1
    (view,) = (await api.send("GET", "/approvals", headers=ben)).json["items"]
    assert f"Job version {view['version']} Who" in visitor.text
    api.clock.advance(60)
    await api.send("PATCH", "/jobs/payouts", {"title": "Payouts"}, headers=ADMIN)
    await visitor.open("/approvals")
    assert re.search("Job version [0-9]+ , changed after it was asked , ", visitor.text), visitor.text
    mine = await signed_in(api, ann)
    await mine.open("/approvals")
    assert "ann, that is you" in mine.text
    assert "You may decide none" in mine.text
    assert f"/approvals/{second}/approve" not in mine.page, "four eyes"
    assert 'name="reason"' not in mine.page
    for page in ("/jobs/payouts", "/runs", f"/runs/{second}"):
        await mine.open(page)
        assert "for a decision until" in mine.text
        assert ISO.search(mine.text) is None, "times are those of a clock"
    stranger = await signed_in(api, other)
    await stranger.open("/approvals")
    assert "payouts" not in stranger.page
    assert "ben" not in stranger.text
    await mine.open("/approvals")
    assert "Withdraw" in mine.text
    assert (await mine.post(f"/runs/{second}/cancel")).status == 303


async def test_decisions_that_nobody_made_are_among_those_of_lately() -> None:
    api = Api(api_keys=["first-key-1234"], pages=True)
    ann = await keyed(api, "ann", "editor")
    await api.send("POST", "/jobs", a_definition("payouts", approval={"within_seconds": 600}), headers=ADMIN)
    refused, same = await asked(api, ann, {"n": 1}), await asked(api, ann, {"n": 2})
    await api.send("POST", f"/approvals/{refused}", {"decision": "reject", "reason": "frozen"}, headers=ADMIN)
    api.clock.advance(900)
    await api.send("POST", "/runs/claim", {"queues": ["work"], "worker": "w"}, headers=ADMIN)
    assert (await api.send("GET", f"/runs/{same}", headers=ADMIN)).json["disposition"] == "approval_expired"
    visitor = await signed_in(api, ADMIN)
    await visitor.open("/approvals")
    lately = visitor.text.partition("Decided lately")[2]
    for said in ("rejected by", "because: frozen", "not approved in time", "no decision until"):
        assert said in lately
    assert lately.index("no decision until") < lately.index("because: frozen"), "the newest first"
    assert "Waiting 0 Decided" in visitor.text
    await visitor.open("/approvals?show=decided")
    assert visitor.text.count("because: frozen") == 1
    assert "Nothing to decide" not in visitor.text, "decisions have the page to themselves"


async def test_a_plan_is_approved_for_operators_who_apply_it_and_discarded() -> None:
    api = Api(api_keys=["first-key-1234"], pages=True)
    admin, operator = await signed_in(api, ADMIN), await signed_in(api, await keyed(api, "ben", "operator"))
    plans = []
    for _ in range(2):
        await admin.open("/plans")
        reply = await admin.post("/plans", documents=json.dumps([a_definition("comes")]))
        plans.append(reply.headers["location"])
    await operator.open(plans[0])
    assert f'action="{plans[0]}/apply"' not in operator.page
    assert "Applying it takes the scope jobs:write, or that someone who has it approves the plan." in operator.text
    for act in ("apply", "approve", "discard"):
        await operator.open("/plans")
        assert (await operator.post(f"{plans[0]}/{act}")).status == 403, act
    await admin.open(plans[0])
    assert "Let operators apply it" in admin.text
    assert (await admin.post(f"{plans[0]}/approve")).status == 303
    await operator.open(plans[0])
    assert re.search("Approved by .*: operators may apply it.", operator.text)
    assert "Discard" not in operator.text
    assert (await operator.post(f"{plans[0]}/apply")).status == 303
    assert (await api.send("GET", "/jobs/comes", headers=ADMIN)).status == 200
    await admin.open(plans[0])
    assert "Nothing is left to do" in admin.text
    await admin.open("/plans")
    kept = admin.page.count('data-label="Applied"')
    assert (await admin.post(f"{plans[1]}/discard")).headers["location"] == "/plans"
    await admin.open("/plans")
    assert admin.page.count('data-label="Applied"') == kept - 1
    assert (await admin.open(plans[1])).status == 404
    entries = (await api.send("GET", "/audit?action=plan.discard", headers=ADMIN)).json["items"]
    assert [entry["object"] for entry in entries] == [plans[1].removeprefix("/").replace("plans", "plan")[:41]]


async def test_a_payload_shows_the_characters_that_turn_others() -> None:
    """Between quotes they would show `DE10 to XY` as something else, on the page where a person approves it."""
    api = Api(pages=True)
    await api.send("POST", "/jobs", a_definition("payouts", approval={}))
    made = await api.send("POST", "/jobs/payouts/trigger", {"payload": {"to": "DE\u202e01 YX\u2069"}})
    run = made.json["id"]
    visitor = Visitor(api)
    for page in ("approvals", f"runs/{run}", f"compare?run={run}&with={run}"):
        await visitor.open(f"/{page}")
        assert r"DE\u202e01 YX\u2069" in visitor.text, page
        assert "\u202e" not in visitor.page, page


async def test_a_decision_of_a_session_that_has_ended_is_said_not_to_be_made() -> None:
    api = Api(api_keys=["first-key-1234"], pages=True)
    ben = await keyed(api, "ben", "operator")
    await api.send("POST", "/jobs", a_definition("payouts", approval={}), headers=ADMIN)
    id = (await api.send("POST", "/jobs/payouts/trigger", headers=ADMIN)).json["id"]
    visitor = await signed_in(api, ben)
    await visitor.open("/approvals")
    await api.send("DELETE", "/keys/ben", headers=ADMIN)
    api.clock.advance(10)
    reply = await visitor.post(f"/approvals/{id}/approve")
    await visitor.open(reply.headers["location"])
    assert "Your session had ended: nothing was done. Sign in, and do it again." in visitor.text
    assert len((await api.send("GET", "/approvals", headers=ADMIN)).json["items"]) == 1
    reply = await visitor.post("/sign-out")
    await visitor.open(reply.headers["location"])
    assert "Your session had ended" not in visitor.text


async def test_who_decides_second_is_told_who_was_first_and_the_way_back() -> None:
    api = Api(pages=True)
    await api.send("POST", "/jobs", a_definition("payouts", approval={}))
    id = (await api.send("POST", "/jobs/payouts/trigger")).json["id"]
    visitor = Visitor(api)
    await visitor.open("/approvals")
    csrf = visitor.csrf
    assert (await visitor.post(f"/approvals/{id}/reject")).status == 303
    assert (await visitor.post(f"/approvals/{id}/approve", csrf=csrf)).status == 409
    for said in ("waits no longer: rejected by local", "Go back with your browser"):
        assert said in visitor.text, visitor.text
