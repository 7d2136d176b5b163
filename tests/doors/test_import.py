"""What other schedulers have stored is taken over, from real databases of theirs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pymongo import MongoClient

from horarium.cli import cli
from horarium.doors.scrape_jobs import job_id
from tests.doors.conftest import House
from tests.servers.mongo import Mongo
from tests.stores.conftest import mongo as mongo

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
    listed = await command(house, *job, "list")
    by_url = {one["url"]: one for one in listed}
    assert by_url[URL] == {"id": job_id(URL), "url": URL, "interval_s": 60, "meta": {"k": "v"}}
    assert by_url[URL + "b"]["interval_s"] == 300
    assert (await command(house, *job, "delete", job_id(URL)))["deleted"]
    assert len(await command(house, *job, "list", "--limit", "5")) == 1
