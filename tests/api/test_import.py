"""POST /import: many jobs in one request, each judged for itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from horarium.api import questions
from horarium.operations.jobs.importing import Importing
from horarium.ports import BATCH_MAX

from .conftest import Api, a_definition


async def outcomes(api: Api, *jobs: Any, **more: Any) -> list[str]:
    reply = await api.post("/import", {"jobs": list(jobs), **more})
    assert reply.status == 200, reply.body
    return [each["outcome"] for each in reply.json]


async def test_jobs_are_made_changed_and_left(api: Api) -> None:
    one, two = a_definition("one"), a_definition("two")
    assert await outcomes(api, one, two) == ["created", "created"]
    shown = (await api.get("/jobs/one")).json
    api.clock.advance(5)
    assert await outcomes(api, one, {**two, "priority": 3}) == ["unchanged", "updated"]
    assert (await api.get("/jobs/one")).json == shown
    assert (await api.get("/jobs/two")).json["priority"] == 3


async def test_what_an_export_shows_can_be_imported(api: Api) -> None:
    await api.add_job("job")
    shown = (await api.get("/jobs/job")).json
    assert await outcomes(api, shown) == ["unchanged"]


async def test_one_that_is_wrong_says_why_and_keeps_nothing_out(api: Api) -> None:
    wrong = [
        {"name": "a"},
        a_definition("b", trigger={"type": "cron", "expression": "61 * * * *"}),
        a_definition("c", priorty=1),
        a_definition("d", trigger={"type": "cron", "expression": "x" * 9000}),
        {**a_definition(), "name": 7},
    ]
    reply = await api.post("/import", {"jobs": [*wrong, a_definition("good")]})
    *failed, good = reply.json
    assert good == {"name": "good", "outcome": "created"}
    assert [(each["name"], each["outcome"]) for each in failed] == [
        (name, "failed") for name in ("a", "b", "c", "d", "")
    ]
    assert [each["problem"]["code"] for each in failed] == [
        "invalid_job", "invalid_trigger", "invalid_job", "invalid_trigger", "invalid_job"
    ]  # fmt: skip
    assert failed[2]["problem"]["field"] == "priorty"
    assert (await api.get("/jobs/b")).code == "not_found"


async def test_a_dry_run_writes_nothing(api: Api) -> None:
    assert await outcomes(api, a_definition("job"), dry_run=True) == ["created"]
    assert (await api.get("/jobs/job")).code == "not_found"


async def test_a_name_twice_in_one_request_is_refused_the_second_time(api: Api) -> None:
    assert await outcomes(api, a_definition("job"), a_definition("job", priority=1)) == ["created", "failed"]


async def test_a_thousand_fit_and_one_more_does_not(api: Api) -> None:
    jobs = [a_definition(f"n{number}") for number in range(BATCH_MAX + 1)]
    assert (await api.post("/import", {"jobs": jobs})).code == "invalid_request"
    assert await outcomes(api, *jobs[:BATCH_MAX]) == ["created"] * BATCH_MAX
    assert await outcomes(api) == []


@pytest.mark.parametrize("body", [[], {}, {"jobs": 1}, {"jobs": [1]}, {"jobs": [], "dry": True}])
async def test_a_body_that_is_no_list_of_jobs_is_refused(refusing: Api, body: Any) -> None:
    assert (await refusing.post("/import", body)).code == "invalid_request"


async def test_a_job_may_be_called_import(api: Api) -> None:
    assert await outcomes(api, a_definition("import")) == ["created"]
    assert (await api.get("/jobs/import")).json["name"] == "import"


async def test_of_many_imports_at_once_one_is_read_and_done_at_a_time(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, most, honest = 0, 0, Importing.put_jobs

    async def counted(self: Importing, *given: Any, **more: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        done = await honest(self, *given, **more)
        under_way -= 1
        return done

    monkeypatch.setattr(Importing, "put_jobs", counted)
    done = await asyncio.gather(*(outcomes(api, a_definition(f"job-{number}")) for number in range(5)))
    assert done == [["created"]] * 5
    assert most == 1


async def test_an_import_has_steps_of_its_own_for_its_rules(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "QUESTION_STEPS", 0)
    rule = {"type": "except", "trigger": {"type": "cron", "expression": "0 3 * * *"}, "except": [{"weekdays": ["MON"]}]}
    job = a_definition("job", trigger=rule)
    assert await outcomes(api, job) == ["created"]
    assert await outcomes(
        api, {**job, "trigger": {**rule, "trigger": {"type": "cron", "expression": "0 4 * * *"}}}
    ) == ["updated"]
