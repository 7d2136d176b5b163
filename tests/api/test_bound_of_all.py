"""What has neither queue nor labels is used by the jobs of all: a bound caller reads it, and can't change it."""

from __future__ import annotations

import pytest

from horarium.model import Job
from horarium.model.records import RecordFilter
from horarium.ports import JobFilter, Page
from horarium.stores.memory import MemoryStore

from .conftest import Api
from .test_bound_keys import ADMIN, Two


@pytest.mark.slow
@pytest.mark.parametrize("by", ["queues", "labels"])
async def test_what_jobs_of_all_use_is_seen_and_not_changed(by: str) -> None:
    either = Two(by)
    await either.set_up()
    holidays, limit = {"holidays": ["2027-01-01"]}, {"max": 1, "per_seconds": 60}
    await either.admin("PUT", "/calendars/of-all", holidays)
    await either.admin("PUT", "/rates/of-all", limit)
    assert (await either.api.send("GET", "/calendars/of-all", headers=either.key)).json["holidays"] == ["2027-01-01"]
    before = await either.theirs(), (await either.api.store.list_records(RecordFilter("calendar/"), None, 10)).items
    for method, path, body in (
        ("PUT", "/calendars/of-all", {"holidays": []}), ("PUT", "/calendars/one-more", holidays),
        ("DELETE", "/calendars/of-all", None), ("PUT", "/rates/of-all", {**limit, "max": 2}),
        ("PUT", "/rates/one-more", limit), ("DELETE", "/rates/of-all", None),
    ):  # fmt: skip
        reply = await either.api.send(method, path, body, headers=either.key)
        assert (reply.status, reply.code) == (403, "forbidden"), (method, path, reply.body)
        assert f"is bound to {either.by}, and" in reply.json["detail"]
    assert before == (
        await either.theirs(), (await either.api.store.list_records(RecordFilter("calendar/"), None, 10)).items
    )  # fmt: skip
    (shown,) = (await either.admin("GET", "/rates"))["items"]
    assert shown["key"] == "of-all"


async def test_the_plan_of_a_bound_caller_reads_its_own_jobs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long it takes says nothing of how many jobs others have, nor of what labels these have."""
    asked: list[str | None] = []
    listed = MemoryStore.list_jobs

    async def noting(store: MemoryStore, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
        asked.append(where.labels.get("team"))
        return await listed(store, where, after, limit)

    monkeypatch.setattr(MemoryStore, "list_jobs", noting)
    api = Api(api_keys=["first-key-1234"])
    key = {"name": "billing", "roles": ["viewer"], "labels": {"team": "billing"}}
    token = (await api.send("POST", "/keys", key, headers=ADMIN)).json["key"]
    for prune in ({"team": "billing"}, {"team": "risk"}, {"kind": "report"}):
        plan = {"documents": {"jobs": []}, "prune": {"labels": prune}}
        made = await api.send("POST", "/plans", plan, headers={"authorization": f"Bearer {token}"})
        assert (made.status, made.json["changes"]) == (201, [])
    assert set(asked) == {"billing"}
