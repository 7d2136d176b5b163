"""A file of the first schema opens and goes on, and code of that release may write to it meanwhile: it leaves out what
only newer code writes, and jobs that it wrote are found all the same."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from horarium.clock import DAY
from horarium.model import Job
from horarium.policies import Retention
from horarium.stores.encoding import encode_id
from horarium.stores.migrations import known_migrations
from horarium.stores.sqlite import SqliteStore
from horarium.stores.sqlite.connect import connect, parse_url
from horarium.stores.sqlite.migrate import PACKAGE, migrate
from horarium.testing.contract.sweeping import ahead, trimmed
from horarium.testing.values import NOW, a_job

INSERT = """
INSERT INTO jobs (num, namespace_id, id, name, version, enabled, next_fire_at, deleted_at, labels, definition)
VALUES (?, 1, ?, ?, ?, ?, ?, NULL, NULL, ?)
"""
OWNER = "INSERT INTO owners (num, namespace_id, job_id, name) VALUES (?, 1, ?, ?)"
UPDATE = "UPDATE jobs SET version = version + 1, enabled = ?, definition = ? WHERE id = ?"


def text(job: Job) -> str:
    return msgspec.json.encode(job).decode()


async def test_jobs_that_older_code_wrote_are_counted_and_swept(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    plain = a_job("plain")
    far = a_job("far", planned_until=NOW + DAY, enabled=False)
    kept = a_job("kept", retention=Retention(runs_max=1))
    older = connect(parse_url(url))
    migrate(older, known_migrations(PACKAGE)[:1])
    older.execute("INSERT INTO namespaces (num, name) VALUES (1, 'default')")
    for number, job in enumerate((plain, far, kept), 1):
        older.execute(OWNER, (number, encode_id(job.id), job.name))
        older.execute(INSERT, (number, encode_id(job.id), job.name, job.version, job.enabled, None, text(job)))
    store = SqliteStore(url)
    await store.open()
    assert await ahead(store, NOW) == [far]
    assert await trimmed(store) == [kept]
    stats = await store.stats(NOW)
    assert (stats.jobs, stats.jobs_enabled) == (3, 2)

    written = a_job("written", planned_until=NOW, retention=Retention(runs_max=2))
    assert await store.add_jobs([written]) == [True]
    again = replace(written, version=2, planned_until=NOW + DAY, enabled=False, retention=Retention())
    older.execute(UPDATE, (again.enabled, text(again), encode_id(again.id)))
    older.close()
    assert sorted(job.name for job in await ahead(store, NOW)) == ["far", "written"]
    assert await trimmed(store) == [kept]
    stats = await store.stats(NOW)
    assert (stats.jobs, stats.jobs_enabled) == (4, 2)
    await store.close()
