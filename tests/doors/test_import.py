"""What other schedulers have stored is taken over, from real databases of theirs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from pymongo import MongoClient

from horarium.cli import cli
from horarium.client import Client
from horarium.clock import to_datetime
from horarium.doors.scrape_jobs import job_id
from horarium.errors import CallerError, NotFound
from horarium.model import Cause
from horarium.ports import RunFilter
from horarium.wire.definitions import read_definition
from tests.buses.conftest import redis_server as redis_server
from tests.doors.conftest import House
from tests.servers.mongo import Mongo
from tests.servers.redis import Redis
from tests.stores.conftest import mongo as mongo
from tests.waiting import until

SCHEDULE_ID = "65ab5fa0c0ffee0123456789"
URL = "https://example.com/a"


async def command(house: House, *args: str, status: int = 0) -> Any:
    """A command of ours against this server: what it prints as JSON."""
    key = {} if house.token is None else {"HORARIUM_API_KEY": house.token}
    runner = CliRunner(env={"HORARIUM_URL": house.url, **key})
    result = await asyncio.to_thread(runner.invoke, cli, [*args, "--json"])
    assert result.exit_code == status, (result.output, result.exception)
    return json.loads(result.stdout)


@pytest.fixture
def before(mongo: Mongo) -> Iterator[Any]:
    """A database of another system."""
    client: MongoClient[Any] = MongoClient(mongo.url)
    client.drop_database("before")
    yield client["before"]
    client.close()


def dump(before: Any) -> dict[str, Any]:
    """All that is stored, and by which indexes."""
    names = sorted(before.list_collection_names())
    return {name: (list(before[name].find().sort("_id")), before[name].index_information()) for name in names}


def url_of(mongo: Mongo) -> str:
    return mongo.url.replace("/horarium?", "/before?")


async def test_schedules_keep_their_ids(house: House, mongo: Mongo, before: Any) -> None:
    from bson import ObjectId

    house.token = house.sign()

    good = {
        "_id": ObjectId(SCHEDULE_ID), "name": "Daily Backup", "rrule": "FREQ=DAILY", "callback_url": "http://127.0.0.1:9/",
        "method": "POST", "headers": {"X": "y"}, "body": "{}", "created_at": datetime(2025, 1, 1, 8, 30, 0, tzinfo=UTC),
    }  # fmt: skip
    before.schedules.insert_many(
        [good, {"_id": ObjectId(), "name": "bad", "rrule": "nope", "callback_url": "http://x/"}]
    )
    done = await command(house, "door", "import", "rrule-scheduler", url_of(mongo), status=1)
    assert (done["created"], done["failed"], done["errors"][0]["error"]) == (1, 1, "Invalid RRULE format")
    shown = (await house.ask("GET", f"/api/schedules/{SCHEDULE_ID}")).json
    del shown["created_at"]
    fields = ("name", "rrule", "callback_url", "method", "headers", "body")
    assert shown == {"id": SCHEDULE_ID, **{field: good[field] for field in fields}}
    pending = (await house.runtime.operations.jobs.fires(SCHEDULE_ID, 1))[0][0]
    assert (pending.hour, pending.minute, pending.second) == (8, 30, 0), "its phase is that of its creation"
    again = await command(house, "door", "import", "rrule-scheduler", url_of(mongo), status=1)
    assert (again["created"], again["unchanged"]) == (0, 1)


async def test_what_a_schedule_had_not_come_to_is_called_once(house: House, mongo: Mongo, before: Any) -> None:
    """Its documents as the system itself writes them: without an instant of creation."""
    from bson import ObjectId

    house.token = house.sign()
    minute = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=2)
    rule = f"DTSTART:{minute:%Y%m%dT%H%M%SZ}\nRRULE:FREQ=HOURLY"
    hourly, over, ended, plain = ObjectId(), ObjectId(), ObjectId(), ObjectId(SCHEDULE_ID)
    call = {"name": "n", "callback_url": "http://127.0.0.1:9/"}
    before.schedules.insert_many(
        [
            {"_id": hourly, "rrule": rule, **call},
            {"_id": over, "rrule": "DTSTART:20200101T000000Z\nRRULE:FREQ=DAILY;COUNT=3", **call},
            {"_id": ended, "rrule": "FREQ=WEEKLY;BYDAY=MO,WE,FR;UNTIL=20251231T235959Z", **call},
            {"_id": plain, "rrule": "FREQ=DAILY", **call},
        ]
    )
    status = [{"status": "ready_queue", "message": "Event pre-queued for ready queue", "time": minute}]
    times = (minute + timedelta(hours=1), minute + timedelta(hours=9))
    before.events.insert_many([{"schedule_id": str(hourly), "run_time": at, "status": status} for at in times])
    kept = dump(before)
    done = await command(house, "door", "import", "rrule-scheduler", url_of(mongo))
    assert (done["created"], done["runs"], done["failed"]) == (4, 1, 0), (
        "two are over: they are shown, and call nothing"
    )
    for each in (over, ended):
        assert (await house.ask("GET", f"/api/schedules/{each}")).status == 200
        assert (await house.runtime.operations.jobs.get_job(str(each))).next_fire_at is None
    runs = (await house.runtime.operations.store.list_runs(RunFilter(job=str(hourly)), None, 10)).items
    assert [to_datetime(run.fire_at) for run in runs if run.cause is Cause.BACKFILL] == [times[0]]
    (first,), _ = await house.runtime.operations.jobs.fires(SCHEDULE_ID, 1)
    assert f"{first:%H%M%S}" == f"{plain.generation_time:%H%M%S}", "in the phase of its id"
    again = await command(house, "door", "import", "rrule-scheduler", url_of(mongo))
    assert (again["created"], again["updated"], again["unchanged"], again["runs"]) == (0, 0, 4, 0)
    assert dump(before) == kept, "it is only read"


async def test_jobs_of_a_bus_are_taken_over(house: House, mongo: Mongo, before: Any) -> None:
    house.token = house.sign()
    at = datetime(2099, 1, 1, tzinfo=UTC)
    before.jobs.insert_one(
        {"_id": "my job", "enabled": True, "nextRunAt": at, "interval": 60_000, "heartbeatTimeout": 5_000}
    )
    done = await command(house, "door", "import", "simple-scheduler", url_of(mongo))
    assert (done["created"], done["failed"]) == (1, 0)
    shown = (await house.ask("GET", "/api/jobs/my%20job")).json
    assert (shown["nextRunAt"], shown["interval"], shown["heartbeatTimeout"]) == ("2099-01-01T00:00:00Z", 60_000, 5_000)


async def test_jobs_are_listed_in_the_order_in_which_they_were_taken_over(
    house: House, mongo: Mongo, before: Any
) -> None:
    house.token = house.sign()
    names = ["m", "c", "x", "a", "q", "f", "z", "b"]
    fields = {"enabled": True, "nextRunAt": datetime(2099, 1, 1, tzinfo=UTC), "interval": 60_000}
    before.jobs.insert_many([{"_id": name, **fields} for name in names])
    await command(house, "door", "import", "simple-scheduler", url_of(mongo))
    assert [job["name"] for job in (await house.ask("GET", "/api/jobs")).json] == names


async def test_what_a_job_of_a_bus_had_not_come_to_runs_once(house: House, mongo: Mongo, before: Any) -> None:
    house.token = house.sign()
    missed = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=90)
    before.jobs.insert_many(
        [
            {"_id": "late", "enabled": True, "nextRunAt": missed, "interval": 3_600_000},
            {"_id": "once", "enabled": True, "nextRunAt": missed, "interval": 0},
            {"_id": "off", "enabled": False, "nextRunAt": missed, "interval": 3_600_000},
        ]
    )
    kept = dump(before)
    done = await command(house, "door", "import", "simple-scheduler", url_of(mongo))
    assert (done["created"], done["runs"], done["failed"]) == (3, 1, 0)

    async def ran() -> bool:
        return [run["jobName"] for run in (await house.ask("GET", "/api/runs")).json or []] == ["late"]

    await until(ran)
    once = await house.runtime.operations.jobs.get_job("once")
    assert once.next_fire_at is not None
    assert to_datetime(once.next_fire_at) < datetime.now(UTC) + timedelta(minutes=1)
    again = await command(house, "door", "import", "simple-scheduler", url_of(mongo))
    assert (again["created"], again["updated"], again["unchanged"], again["runs"]) == (0, 0, 3, 0)
    assert (await house.runtime.operations.jobs.get_job("once")).next_fire_at in (once.next_fire_at, None)
    (run,) = [run for run in (await house.ask("GET", "/api/runs")).json if run["jobName"] == "late"]
    assert datetime.fromisoformat(run["createdTime"]) == missed, "it bears the instant at which it was due"
    assert dump(before) == kept, "it is only read"


@pytest.mark.parametrize("system", ["rrule-scheduler", "simple-scheduler"])
async def test_a_database_without_jobs_is_an_error_that_says_what_is_there(
    house: House, mongo: Mongo, before: Any, system: str
) -> None:
    """Right after the other system was stopped, "0 created" would be read as success."""
    house.token = house.sign()
    before.visits.insert_one({"page": "/"})
    for url, there in ((url_of(mongo), "in before: visits"), (mongo.url.replace("/horarium?", "/missing?"), "nothing")):
        why = await refused(house, "door", "import", system, url)
        assert f"no jobs of {system}" in why
        assert there in why
        assert "before" in why, "where else to look"


async def refused(house: House, *args: str) -> str:
    """The one sentence with which a command ends that did nothing."""
    runner = CliRunner(env={"HORARIUM_URL": house.url})
    result = await asyncio.to_thread(runner.invoke, cli, [*args])
    assert (result.exit_code, result.stdout) == (1, "")
    return result.stderr


@pytest.mark.parametrize("settings", [{"oidc_issuer": None, "doors": ("scrape-scheduler",)}])
async def test_a_redis_or_a_file_without_jobs_is_an_error_that_says_what_is_there(
    house: House, redis_server: Redis, tmp_path: Path
) -> None:
    client = redis.Redis(port=redis_server.port, decode_responses=True, db=3)
    client.set("visits", 1)
    source = f"redis://127.0.0.1:{redis_server.port}"
    there = await refused(house, "door", "import", "scrape-scheduler", f"{source}/3")
    assert "no jobs of scrape-scheduler" in there
    assert "visits" in there
    elsewhere = await refused(house, "door", "import", "scrape-scheduler", f"{source}/9")
    assert "nothing" in elsewhere
    assert "db3" in elsewhere, "where else to look"
    client.delete("visits")
    client.close()
    file = tmp_path / "jobs.json"
    file.write_text("[]")
    assert "no jobs" in await refused(house, "door", "import", "scrape-scheduler", str(file))


# ---- history ----------------------------------------------------------------------------------------------------

QUEUED = {"status": "ready_queue", "message": "Event pre-queued for ready queue"}
HANDED = {"status": "worker_queue", "message": "Event dispatched to worker queue"}


async def test_archived_events_of_a_schedule_are_its_history(house: House, mongo: Mongo, before: Any) -> None:
    from bson import ObjectId

    house.token = house.sign()
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=5)
    call = {"name": "n", "rrule": "FREQ=DAILY", "callback_url": "http://127.0.0.1:9/"}
    gone, over = ObjectId(), ObjectId()
    before.schedules.insert_one({"_id": ObjectId(SCHEDULE_ID), **call})
    failed = "Callback failed after max retries: Post http://127.0.0.1:9/: connection refused"
    ends = [{"status": "completed", "message": "Event successfully processed"}, {"status": "error", "message": failed}]
    for number in range(4):
        at = hour + timedelta(hours=number)
        steps = [
            {**QUEUED, "time": at - timedelta(minutes=10)},
            {**HANDED, "time": at + timedelta(seconds=1)},
            {**ends[number % 2], "time": at + timedelta(seconds=2)},
        ]
        before.archived_events.insert_one({"schedule_id": SCHEDULE_ID, "run_time": at, "status": steps})
    ancient = hour - timedelta(days=4_000)
    before.archived_events.insert_many(
        [
            {"schedule_id": SCHEDULE_ID, "run_time": ancient, "status": [{**ends[0], "time": ancient}]},
            {"schedule_id": SCHEDULE_ID, "run_time": hour - timedelta(hours=1), "status": [{**QUEUED, "time": hour}]},
            {"schedule_id": str(gone), "run_time": hour, "status": [{**ends[0], "time": hour}]},
            {"schedule_id": str(over), "run_time": hour, "status": [{**ends[0], "time": hour}]},
            {"schedule_id": str(over), "run_time": hour, "status": "completed"},
        ]
    )
    before.schedules.insert_one({"_id": over, **call, "rrule": "DTSTART:20200101T000000Z\nRRULE:FREQ=DAILY;COUNT=3"})
    kept = dump(before)
    source = "door", "import", "rrule-scheduler", url_of(mongo)
    assert (await command(house, *source, "--history", "0"))["history"] == 0
    assert (await command(house, *source, "--history", "2"))["history"] == 2, "the newest two"
    assert (await command(house, *source))["history"] == 4, "those that were not there yet, and of two that have ended"
    assert (await command(house, *source))["history"] == 0
    assert dump(before) == kept, "it is only read"
    for ended, status in ((gone, 404), (over, 200)):
        (event,) = (await house.ask("GET", f"/api/schedules/{ended}/events/history")).json["events"]
        assert event["run_time"] == f"{hour:%Y-%m-%dT%H:%M:%SZ}"
        assert (await house.ask("GET", f"/api/schedules/{ended}")).status == status
    shown = (await house.ask("GET", f"/api/schedules/{SCHEDULE_ID}/events/history")).json["events"]
    assert [event["run_time"] for event in shown] == [
        f"{hour + timedelta(hours=number):%Y-%m-%dT%H:%M:%SZ}" for number in (3, 2, 1, 0)
    ]
    assert [(event["status"][-1]["status"], event["status"][-1]["message"]) for event in shown[:2]] == [
        ("error", failed),
        ("completed", "Event successfully processed"),
    ]
    assert [step["time"] for step in shown[0]["status"][1:]] == [
        f"{hour + timedelta(hours=3, seconds=number):%Y-%m-%dT%H:%M:%SZ}" for number in (1, 2)
    ]
    runs = await command(house, "run", "list", "--job", SCHEDULE_ID)
    assert {run["worker"] for run in runs} == {"rrule-scheduler"}
    assert sorted(run["state"] for run in runs) == ["completed", "completed", "failed", "failed"]


async def test_finished_runs_of_a_bus_are_its_history(house: House, mongo: Mongo, before: Any) -> None:
    house.token = house.sign()
    at = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
    never = datetime(1, 1, 1, tzinfo=UTC)
    job = {"_id": "my job", "enabled": True, "nextRunAt": datetime(2099, 1, 1, tzinfo=UTC), "interval": 60_000}
    before.jobs.insert_one(job)
    states = "completed", "failed", "cancelled", "pending", "running", "cancelling"
    before.runs.insert_many(
        {
            "jobName": "my job",
            "status": status,
            "createdTime": at + timedelta(minutes=number),
            "startTime": never if status == "cancelled" else at + timedelta(minutes=number, seconds=1),
            "endTime": at + timedelta(minutes=number, seconds=5) if number < 3 else never,
            "heartbeat": at,
        }
        for number, status in enumerate(states)
    )
    before.jobs.insert_one({"_id": "once", "enabled": True, "nextRunAt": at, "interval": 0})
    for name in ("gone", "once"):
        before.runs.insert_one({"jobName": name, "status": "completed", "createdTime": at, "endTime": at})
    kept = dump(before)
    source = "door", "import", "simple-scheduler", url_of(mongo)
    done = await command(house, *source)
    assert (done["created"], done["over"], done["history"]) == (1, 1, 5), "a one-off job that has run does not again"
    done = await command(house, *source)
    assert (done["created"], done["over"], done["history"]) == (0, 1, 0)
    for name in ("gone", "once"):
        (run,) = (await house.ask("GET", f"/api/runs?JobName={name}")).json
        assert run["status"] == "completed"
        assert (await house.ask("GET", f"/api/jobs/{name}")).status == 404
    assert dump(before) == kept, "it is only read"
    shown = (await house.ask("GET", "/api/runs?JobName=my%20job")).json
    assert [(run["status"], run["createdTime"], run["endTime"]) for run in shown] == [
        (
            status,
            f"{at + timedelta(minutes=number):%Y-%m-%dT%H:%M:%SZ}",
            f"{at + timedelta(minutes=number, seconds=5):%Y-%m-%dT%H:%M:%SZ}",
        )
        for number, status in enumerate(states[:3])
    ]


async def test_history_of_one_job_that_can_not_be_keeps_no_other_from_being_taken_over(
    house: House, mongo: Mongo, before: Any
) -> None:
    house.token = house.sign()
    at = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
    for name in ("a", "gone", "z"):
        if name != "gone":
            before.jobs.insert_one(
                {"_id": name, "enabled": True, "nextRunAt": at + timedelta(days=9), "interval": 60_000}
            )
        ended = at if name == "z" else at + timedelta(days=1)
        before.runs.insert_one({"jobName": name, "status": "completed", "createdTime": at, "endTime": ended})
    done = await command(house, "door", "import", "simple-scheduler", url_of(mongo))
    assert (done["created"], done["history"]) == (2, 1), "a clock that is ahead, there"
    assert [run["jobName"] for run in (await house.ask("GET", "/api/runs")).json] == ["z"]
    assert [job["name"] for job in (await house.ask("GET", "/api/jobs")).json] == ["a", "z"]


async def test_history_that_can_not_be_is_refused(house: House) -> None:
    house.token = house.sign()
    job = {"name": "j", "trigger": {"type": "interval", "every_seconds": 60}, "target": {"type": "bus"}}
    await house.runtime.operations.jobs.create_job(read_definition(job))
    now = datetime.now(UTC).replace(microsecond=0)
    hour = timedelta(hours=1)
    good = {"fire_at": now - hour, "started_at": now - hour, "finished_at": now - hour, "state": "completed"}
    with Client(house.url, house.token) as client:
        for wrong in (
            {"finished_at": now + hour},
            {"started_at": now},
            {"fire_at": datetime(1960, 1, 1, tzinfo=UTC)},
            {"state": "pending"},
            {"state": "skipped"},
        ):
            with pytest.raises(CallerError):
                await asyncio.to_thread(client.add_history, "j", "cron", [{**good, **wrong}])
        with pytest.raises(NotFound):
            await asyncio.to_thread(client.add_history, "k", "cron", [good])
        done = await asyncio.to_thread(client.add_history, "j", "cron", [good, good])
        assert done == {"added": 1, "known": 1, "too_old": 0}


@pytest.mark.parametrize("settings", [{"oidc_issuer": None, "doors": ("scrape-scheduler",)}])
async def test_scrape_jobs_are_taken_over_from_their_redis(house: House, redis_server: Redis) -> None:
    client = redis.Redis(port=redis_server.port, decode_responses=True)
    day, now = 86_400, datetime.now(UTC).replace(microsecond=0)
    urls = {name: f"{URL}{name}" for name in ("ahead", "overdue", "ready", "handed", "beyond")}
    ids = {name: job_id(url) for name, url in urls.items()}
    for name, url in urls.items():
        stored = {"id": ids[name], "url": url, "interval_s": day, "meta": {"k": "v"}}
        client.hset("scraper:jobs", ids[name], json.dumps(stored))
    client.hset("scraper:jobs", job_id(URL), json.dumps({"id": job_id(URL), "url": URL, "meta": None}))
    client.hset("scraper:jobs", "broken", "{")
    begins = {"ahead": now + timedelta(hours=2), "overdue": now - timedelta(hours=2), "beyond": now + timedelta(days=9)}
    client.zadd("scraper:schedule", {ids[name]: at.timestamp() for name, at in begins.items()})
    client.lpush("scraper:ready", ids["ready"])
    before = {key: client.dump(key) for key in client.scan_iter("scraper:*")}
    source = f"redis://127.0.0.1:{redis_server.port}/0"
    done = await command(house, "door", "import", "scrape-scheduler", source, status=1)
    assert (done["created"], done["failed"], done["runs"]) == (6, 1, 2), "one can't be read; two were due"
    next_fires = {}
    for name in (*urls, ""):
        job = await house.runtime.operations.jobs.get_job(job_id(URL + name))
        assert job.next_fire_at is not None
        next_fires[name] = to_datetime(job.next_fire_at)
    assert {name: next_fires[name] for name in ("ahead", "beyond")} == {k: begins[k] for k in ("ahead", "beyond")}
    soon = datetime.now(UTC) + timedelta(minutes=1)
    assert next_fires["overdue"] < soon, "what was due runs at once"
    assert next_fires["ready"] < soon
    assert next_fires["handed"] < now + timedelta(seconds=day + 60), "a worker of the old system had it: it comes again"
    again = await command(house, "door", "import", "scrape-scheduler", source, status=1)
    assert (again["created"], again["updated"], again["unchanged"], again["runs"]) == (0, 0, 6, 0)
    listed = await command(house, "door", "scrape-scheduler", "job", "list")
    assert {one["url"]: one["interval_s"] for one in listed} == {URL: 300, **dict.fromkeys(urls.values(), day)}
    assert {key: client.dump(key) for key in client.scan_iter("scraper:*")} == before, "it is only read"
    client.close()


@pytest.mark.parametrize("settings", [{"oidc_issuer": None, "doors": ("scrape-scheduler",)}])
async def test_scrape_jobs_are_added_imported_listed_and_deleted(house: House, tmp_path: Path) -> None:
    job = ("door", "scrape-scheduler", "job")
    added = await command(house, *job, "add", "--url", URL, "--interval", "60", "--meta", "k=v")
    assert added == {"id": job_id(URL), "created": True}
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps([{"url": URL, "interval_s": 60, "meta": {"k": "v"}}, {"url": URL + "b"}]))
    done = await command(house, "door", "import", "scrape-scheduler", str(file))
    assert (done["created"], done["failed"]) == (1, 0)
    again = await command(house, *job, "import", "--file", str(file))
    assert (again["created"], again["unchanged"]) == (0, 2)
    first = (await house.runtime.operations.jobs.get_job(job_id(URL))).next_fire_at
    assert first is not None
    assert to_datetime(first) < datetime.now(UTC) + timedelta(seconds=10), "one that is added begins at once"
    changed = await command(house, *job, "add", "--url", URL, "--interval", "60", "--meta", "k=v")
    assert changed == {"id": job_id(URL), "created": False}
    listed = await command(house, *job, "list")
    by_url = {one["url"]: one for one in listed}
    assert by_url[URL] == {"id": job_id(URL), "url": URL, "interval_s": 60, "meta": {"k": "v"}}
    assert [type(one["interval_s"]) for one in listed] == [int, int], "back there they are read as integers"
    assert by_url[URL + "b"]["interval_s"] == 300
    assert (await command(house, *job, "delete", job_id(URL)))["deleted"]
    assert len(await command(house, *job, "list", "--limit", "5")) == 1
