"""Nodes, counts, health, metrics."""

from __future__ import annotations

from horarium.api.app import MetricsFor
from horarium.model import Health, Node
from horarium.ports import JobFilter
from horarium.testing.values import NOW

from .conftest import Api, a_definition


async def add_node(api: Api, name: str) -> None:
    await api.store.beat_node(Node(name=name, roles=("api",), started_at=NOW, beat_at=NOW, host="h", pid=7))


async def test_nodes_are_listed_in_pages(api: Api) -> None:
    for name in ("b", "a", "c"):
        await add_node(api, name)
    first = (await api.get("/nodes?limit=2")).json
    assert [node["name"] for node in first["items"]] == ["a", "b"]
    assert first["items"][0]["roles"] == ["api"]
    rest = (await api.get(f"/nodes?limit=2&cursor={first['next_cursor']}")).json
    assert ([node["name"] for node in rest["items"]], rest["next_cursor"]) == (["c"], None)


async def test_stats_count_by_queue(api: Api) -> None:
    await api.add_job()
    await api.add_run(0)
    await api.add_run(1)
    (claimed,) = await api.claim()
    stats = (await api.get("/stats")).json
    assert (stats["jobs"], stats["jobs_enabled"], stats["workers_waiting"]) == (1, 1, 0)
    assert stats["queues"] == [
        {"queue": "pull/work", "due": 1, "scheduled": 0, "running": 1, "oldest_due_at": "2027-01-15T08:00:00Z",
         "unserved": False, "hold": False}
    ]  # fmt: skip
    await api.post(f"/runs/{claimed['id']}/complete", {"token": claimed["lease"]["token"]})
    api.clock.advance(61)
    (queue,) = (await api.get("/stats")).json["queues"]
    assert queue["unserved"]
    assert b'horarium_queue_unserved{queue="pull/work"} 1.0' in (await api.get("//metrics")).body


async def test_the_process_lives_whatever_the_store_does(api: Api) -> None:
    api.health.ill("store", "it is down")
    assert (await api.get("//healthz")).json == {"status": "ok"}


async def test_a_node_is_ready_until_a_part_fails(api: Api) -> None:
    assert ((await api.get("//readyz")).status, (await api.get("//readyz")).json["ready"]) == (200, True)
    api.health.ill("planner", "the store is locked")
    reply = await api.get("//readyz")
    assert (reply.status, reply.json) == (503, {"ready": False, "problems": {"planner": "the store is locked"}})


async def test_metrics_are_shown_even_when_the_store_is_down(api: Api) -> None:
    await api.add_job()
    reply = await api.get("//metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    assert b'horarium_jobs{enabled="true"} 1.0' in reply.body
    api.failing.add("stats")
    assert (await api.get("//metrics")).status == 200


async def test_metrics_are_for_all_or_for_keys_or_for_no_one() -> None:
    admin = {"authorization": "Bearer first-key-1234"}

    async def statuses(metrics: MetricsFor) -> list[int]:
        api = Api(api_keys=["first-key-1234"], metrics=metrics)
        keys = [{}, admin]
        for role, queues in (("viewer", None), ("worker", None), ("viewer", ["q"])):
            asked = {"name": f"{role}-{queues is None}", "roles": [role], "queues": queues}
            made = await api.post("/keys", asked, headers=admin)
            keys.append({"authorization": f"Bearer {made.json['key']}"})
        return [(await api.get("//metrics", headers=key)).status for key in keys]

    assert await statuses("open") == [200] * 5
    assert await statuses("key") == [401, 200, 200, 403, 200]
    assert await statuses("off") == [404] * 5


async def test_a_bound_key_reads_the_metrics_of_its_jobs_alone() -> None:
    api = Api(api_keys=["first-key-1234"], metrics="key")
    admin = {"authorization": "Bearer first-key-1234"}
    for team in ("ops", "billing"):
        await api.post("/jobs", a_definition(f"of-{team}", labels={"team": team}), headers=admin)
    for job in (await api.store.list_jobs(JobFilter(), None, 9)).items:
        api.telemetry.jobs.show(job.name, Health())
    asked = {"name": "k", "roles": ["viewer"], "labels": {"team": "billing"}}
    key = {"authorization": f"Bearer {(await api.post('/keys', asked, headers=admin)).json['key']}"}
    every, mine = [(await api.get("//metrics", headers=each)).body.decode() for each in (admin, key)]
    assert 'job="of-ops"' in every
    assert 'job="of-billing"' in mine
    lines = [line for line in mine.splitlines() if not line.startswith("#")]
    assert lines
    assert all('job="of-billing"' in line for line in lines)
    # What one caller may see is not what the next one gets.
    assert 'horarium_jobs{enabled="true"} 2.0' in (await api.get("//metrics", headers=admin)).body.decode()
