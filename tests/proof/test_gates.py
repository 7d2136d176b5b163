"""A calendar changes under ten thousand jobs, and its server is killed in the middle of that: all follow it."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.proof.backends import start_backend
from tests.proof.harness import Api, Node, World
from tests.stores.cockroach_server import new_serializable_database
from tests.stores.postgres_server import running
from tests.waiting import eventually

JOBS, PAGE = 10_000, 1_000
PATIENCE = 300
KILLED_AT = 1_500
"""The job by which one sees that the change is in its middle."""
DAY = timedelta(days=1)


def in_half_a_day() -> datetime:
    """A full hour that comes first tomorrow, or late today, whatever time it is now."""
    return (datetime.now(UTC) + DAY / 2).replace(minute=0, second=0, microsecond=0)


def defined(api: Api, count: int, **fields: Any) -> None:
    for first in range(0, count, PAGE):
        jobs = [{"name": f"job-{number:06}", **fields} for number in range(first, min(count, first + PAGE))]
        api.must("POST", "/import", {"jobs": jobs}, seconds=PATIENCE)


def next_fires(api: Api) -> list[str]:
    """The next fire time of each job, by its name."""
    found: list[str] = []
    cursor = ""
    while True:
        page = api.must("GET", f"/jobs?limit=200{cursor}")
        found += [job["next_fire_at"] for job in page["items"]]
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"


def changed(api: Api, before: str) -> int:
    """How many of all jobs no longer fire then."""
    return sum(fire != before for fire in next_fires(api))


def killed_once_begun(node: Node, before: str) -> int:
    """The server is killed with SIGKILL as soon as it has carried the change to some; how many these are."""
    eventually(lambda: fires_then(node.api, KILLED_AT) != before, PATIENCE, what="the change to be under way")
    node.kill()
    node.start()
    return changed(node.api, before)


def fires_then(api: Api, number: int) -> str:
    """When this job fires next."""
    fire: str = api.must("GET", f"/jobs/job-{number:06}")["next_fire_at"]
    return fire


def started(kind: str, folder: Path, stack: ExitStack) -> str:
    """The URL of a store. CockroachDB's is on a PostgreSQL whose transactions are serializable."""
    if kind != "cockroach":
        return start_backend(kind, folder, stack).url
    return new_serializable_database(stack.enter_context(running()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "cockroach", "redis-always", "valkey-always", "mongo"])
def test_a_change_of_a_calendar_survives_kill_9(kind: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = stack.enter_context(World(started(kind, tmp_path, stack)))
        node, day = world.node(), in_half_a_day()
        free: dict[str, Any] = {"weekend": [], "holidays": []}
        node.api.must("PUT", "/calendars/town", free)
        cron = {"type": "cron", "expression": f"0 {day.hour} * * *", "timezone": "UTC"}
        rule = {"type": "business_day", "trigger": cron, "calendar": "town", "convention": "following"}
        defined(node.api, JOBS, trigger=rule, target={"type": "queue", "queue": "q"})
        before, after = (f"{at:%Y-%m-%dT%H:%M:%SZ}" for at in (day, day + DAY))
        assert set(next_fires(node.api)) == {before}
        node.api.must("PUT", "/calendars/town", {**free, "holidays": [f"{day:%Y-%m-%d}"]})
        left = JOBS - killed_once_begun(node, before)
        began = monotonic()
        sample = range(0, JOBS, 97)
        eventually(lambda: all(fires_then(node.api, at) == after for at in sample), PATIENCE, what="a sample to follow")
        eventually(lambda: set(next_fires(node.api)) == {after}, PATIENCE, what="all jobs to follow")
        print(f"{kind}: {left:,} of {JOBS:,} were left when it was back, none {monotonic() - began:.1f} s later")
        assert 0 < left < JOBS
