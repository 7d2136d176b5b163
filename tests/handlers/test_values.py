"""What the library hands out: datetimes as attributes, and the REST API's JSON as data."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import msgspec
import pytest

from horarium import Job, Page, Run, RunContext, Scheduler, SyncScheduler, cron, every, model
from horarium.api.app import create_app
from horarium.library.declaring import job
from horarium.services.loop.service import Health
from horarium.services.metrics.telemetry import Telemetry
from horarium.services.polling.claims import Claims

from .conftest import ended

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    scheduler = Scheduler("memory://")

    @scheduler.handler()
    async def work(run: RunContext, **args: Any) -> dict[str, Any]:
        await run.progress({"half": True})
        return {"pages": 12}

    async with scheduler:
        await scheduler.add_job("nightly", cron("0 3 * * *"), handler="work", args={"n": 1}, labels={"team": "red"})
        await scheduler.add_job("web", every("1h"), http={"url": "https://example.com/", "signing_secret": SECRET})
        yield scheduler


SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
async def rest(scheduler: Scheduler) -> AsyncIterator[httpx.AsyncClient]:
    """The REST API on the same store."""
    operations = scheduler._operations
    claims = Claims(operations.claiming, operations.clock, operations.context.signal)
    app: Any = create_app(operations, claims, health=Health(), telemetry=Telemetry())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8080") as client:
        yield client


async def test_counts_show_instants_as_datetimes_and_become_json(scheduler: Scheduler) -> None:
    run = await scheduler.enqueue("work")
    stats = await scheduler.stats()
    assert (stats.jobs, stats.queues[0].queue, stats.queues[0].oldest_due_at) == (2, "handler/work", run.due_at)
    (queue,) = json.loads(json.dumps(stats.to_dict()))["queues"]
    assert (queue["due"], queue["unserved"]) == (1, False)


async def test_instants_are_aware_datetimes(scheduler: Scheduler) -> None:
    before = datetime.now(UTC)
    run = await scheduler.enqueue("work", at=NOON)
    assert run.fire_at == run.due_at == NOON
    assert run.due_at.tzinfo is UTC
    assert before <= run.created_at <= datetime.now(UTC)
    assert (run.started_at, run.finished_at, run.lease_expires_at) == (None, None, None)
    job = await scheduler.get_job("nightly")
    assert job.next_fire_at is not None
    assert (job.next_fire_at.hour, job.next_fire_at.tzinfo, job.paused_at) == (3, UTC, None)
    assert [event.at for event in run.history] == [run.created_at]


async def test_every_field_that_is_stored_is_handed_out(scheduler: Scheduler) -> None:
    for kind, stored in ((Job, model.Job), (Run, model.Run)):
        assert set(stored.__struct_fields__) <= {*kind.__annotations__, *vars(kind)}
    run, job = await scheduler.enqueue("work"), await scheduler.get_job("nightly")
    for value in (run, job):
        for name in type(value).__annotations__:
            given = getattr(value, name)
            assert ("datetime" in type(value).__annotations__[name]) >= isinstance(given, datetime), name
    with pytest.raises(AttributeError, match="'Run' has no attribute 'finish_at'"):
        run.finish_at  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError):
        run.state = "done"  # type: ignore[assignment,misc]


async def test_values_are_the_json_of_the_rest_api(scheduler: Scheduler, rest: httpx.AsyncClient) -> None:
    await scheduler.start()
    run = await ended(scheduler, await scheduler.trigger_job("nightly", {"n": 2}))
    await scheduler.stop()
    shown = (await rest.get(f"/api/v1/runs/{run.id}")).json()
    assert json.loads(json.dumps(run.to_dict())) == dict(run) == shown
    assert (shown["payload"], shown["progress"], shown["result"]) == ({"n": 2}, {"half": True}, {"pages": 12})
    assert (run.payload, run.result) == (b'{"n":2}', b'{"pages":12}')
    assert msgspec.json.decode(msgspec.json.encode(run.view())) == shown
    for name in ("nightly", "web"):
        job = await scheduler.get_job(name)
        assert job.to_dict() == dict(job) == (await rest.get(f"/api/v1/jobs/{name}")).json()
    assert SECRET not in json.dumps(job.to_dict())
    for path, page in (("jobs", await scheduler.list_jobs()), ("runs", await scheduler.list_runs(job="nightly"))):
        assert page.to_dict() == dict(page) == (await rest.get(f"/api/v1/{path}")).json()
        assert len(page.items) == len(page.to_dict()["items"]) > 0
    async with scheduler.batch("import") as batch:
        await batch.enqueue("work")
    status = await scheduler.get_batch(batch.id)
    assert (status.name, status.state, status.total, status.unfinished) == ("import", "closed", 1, 1)
    assert status.to_dict() == dict(status) == (await rest.get(f"/api/v1/batches/{batch.id}")).json()
    assert [status] == await scheduler.list_batches()
    for name in type(status).__annotations__:
        assert isinstance(getattr(status, name), datetime) == (name in {"created_at", "closed_at"}), name
    first = await scheduler.list_jobs(limit=1)
    assert first.to_dict()["next_cursor"] == first.next_after == "nightly"


async def test_a_value_is_short_in_a_shell(scheduler: Scheduler) -> None:
    run, job = await scheduler.enqueue("work", at=NOON), await scheduler.get_job("nightly")
    assert repr(run) == f"<Run {run.id} of handler/work, pending, due 2030-01-01 12:00:00Z, attempt 0>"
    assert repr(job).startswith("<Job 'nightly' every day at 03:00, UTC, handler/work, next 20")
    assert repr(await scheduler.pause_job("nightly")).endswith("handler/work, paused>")
    assert repr(await scheduler.list_jobs(limit=1)) == "<Page of 1, more after 'nightly'>"


async def test_values_compare_are_hashed_copied_and_pickled(scheduler: Scheduler) -> None:
    run = await scheduler.enqueue("work")
    again = await scheduler.get_run(run.id)
    assert run == again == copy.copy(run) == pickle.loads(pickle.dumps(run))
    assert len({run, again}) == 1
    assert run != await scheduler.cancel_run(run.id)
    assert run != run.id
    page = await scheduler.list_runs()
    assert page == await scheduler.list_runs()
    assert page != page.items


@pytest.mark.slow
async def test_routes_of_fastapi_return_them(scheduler: Scheduler) -> None:
    from fastapi import FastAPI

    app = FastAPI()

    @app.get("/plain/{run_id}")
    async def plain(run_id: str):  # type: ignore[no-untyped-def]
        return await scheduler.get_run(run_id)

    async def typed(run_id: str) -> Run:
        return await scheduler.get_run(run_id)

    async def page() -> Page[Job]:
        return await scheduler.list_jobs()

    async def several() -> list[Job]:
        return list((await scheduler.list_jobs()).items)

    @app.get("/untyped-page")
    async def untyped_page():  # type: ignore[no-untyped-def]
        return await scheduler.list_jobs()

    for path, route in (("/typed/{run_id}", typed), ("/page", page), ("/several", several)):
        route.__annotations__["return"] = {"typed": Run, "page": Page[Job], "several": list[Job]}[route.__name__]
        app.get(path)(route)
    run = await scheduler.enqueue("work", {"n": 1})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        for path in (f"/plain/{run.id}", f"/typed/{run.id}"):
            assert (await client.get(path)).json() == run.to_dict()
        jobs = await scheduler.list_jobs()
        for path in ("/page", "/untyped-page"):
            assert (await client.get(path)).json() == jobs.to_dict()
        assert (await client.get("/several")).json() == jobs.to_dict()["items"]
        described = (await client.get("/openapi.json")).json()
    answer = described["paths"]["/typed/{run_id}"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert "Run" in json.dumps(answer)


def test_a_synchronous_scheduler_hands_out_the_same() -> None:
    with SyncScheduler("memory://") as scheduler:
        made = scheduler.add_job("nightly", cron("0 3 * * *"), queue="q")
        run = scheduler.enqueue("work", at=NOON)
        assert (run.due_at, type(run), type(made)) == (NOON, Run, Job)
        assert json.dumps([run.to_dict(), made.to_dict(), scheduler.list_runs().to_dict()])
        assert scheduler.declare([job("nightly", cron("0 3 * * *"), queue="q")]).to_dict()["updated"] == ("nightly",)
