"""How PostgreSQL answers the store's queries: what they cost beside a long history, and that none reads a whole table.

Each is run with EXPLAIN (ANALYZE, BUFFERS), as the store's own connections run it (generic plans), on tables whose
statistics are as they happen to be: once never analysed, once fresh; and by plans that were made while all was empty,
which is what a connection has that was there first.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from horarium.clock import DAY
from horarium.model.records import Record, RecordChange
from horarium.stores.encoding import encode_id, label_bytes, label_text
from horarium.stores.listing import SCAN_MAX, TENS_MAX, tens_of
from horarium.stores.postgres import PostgresStore
from horarium.stores.postgres.connect import Connection, connect
from horarium.stores.postgres.rows import alike_columns, change_columns, job_columns, label_array
from horarium.stores.postgres.session import QUERIES
from horarium.stores.walks import HIGHEST_ID, LATEST
from horarium.testing.contract.base import take
from horarium.testing.values import NOW, QUEUE, a_finished_run, a_job, a_run, completed
from tests.servers.postgres import Postgres
from tests.stores.postgres_server import new_database

pytestmark = pytest.mark.slow

HISTORY = 60_000
WAITING = 4_000
RECORDS = 20_000
JOBS = 1_000
ROWS = 20
"""How many rows each query asks for."""

PER_ROW = 60
"""Blocks (in the cache or not) that a row may cost, all indexes together; a walk costs hundreds times as much."""

SMALL = {
    *("check", "intern_namespace", "namespace_number", "queue_numbers", "queue_names", "owner_names", "add_jobs"),
    *("add_runs", "add_runs_elsewhere", "lock_gates", "lock_owners", "beat_node", "delete_nodes", "list_nodes"),
    *("add_records", "add_record_labels", "add_runs_elsewhere_along"),
    *("job_health", "failing_jobs", "add_health"),
}
COUNTING = {"count_jobs", "count_runs", "list_unfinished_runs_of_queue"}

FILL = """
INSERT INTO horarium.finished (due_at, fire_at, created_at, lease_seconds, token, finished_at, prune_at, namespace_id,
    queue_id, owner_id, attempt, priority, state, cause, disposition, gated, serial, id, worker)
SELECT f.fire_at - n, f.fire_at - n, f.created_at, 30, 1, f.finished_at, f.finished_at + n, f.namespace_id, f.queue_id,
    f.owner_id, 1, 0, 3, 0, 0, false, false, decode(md5(n::text), 'hex'), 'w'
FROM generate_series(1, $1) AS n CROSS JOIN (SELECT * FROM horarium.finished LIMIT 1) AS f
"""


@pytest.fixture(scope="module", params=["never analysed", "analysed"])
def url(request: pytest.FixtureRequest, postgres_server: Postgres) -> str:
    database = new_database(postgres_server)
    return database + f"?application_name={request.param.split()[0]}"


@pytest_asyncio.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.open()
    connection = await connect(store.location)
    if await connection.fetchval("SELECT count(*) FROM horarium.runs") == 0:
        await _without_autovacuum(connection)
        await _fill(store, connection)
        if "=analysed" in url:
            await connection.execute("VACUUM ANALYZE", timeout=60)
    await connection.close()
    yield store
    await store.close()


async def _without_autovacuum(connection: Connection) -> None:
    for table in ("runs", "finished", "jobs", "owners", "records", "record_labels"):
        await connection.execute(f"ALTER TABLE horarium.{table} SET (autovacuum_enabled = false)")


async def _fill(store: PostgresStore, connection: Connection) -> None:
    jobs = [a_job(f"job-{n:04}", labels={"n": str(n)}, next_fire_at=NOW + n) for n in range(JOBS)]
    await store.add_jobs(jobs)
    await store.add_runs([a_finished_run(10**6, of=jobs[0])])
    await connection.execute(FILL, HISTORY, timeout=60)
    for start in range(0, RECORDS, 1_000):
        await store.put_records([RecordChange(_entry(start + number)) for number in range(1_000)])
    for start in range(0, WAITING, 1_000):
        later = {"due_at": NOW + DAY} if start else {}
        await store.add_runs(
            [a_run(start + n, of=jobs[n % JOBS], start_by=NOW + 9 * DAY, **later) for n in range(1_000)]
        )
    await take(store, ROWS)


def _entry(number: int) -> Record:
    return Record(name=f"audit/{number:06}", body=b"{}", labels={"object": f"job/{number % 100}", "actor": "ann"})


async def cost(store: PostgresStore, name: str, *values: Any) -> tuple[int, int, str]:
    """Blocks that the query touched, rows that it gave or wrote, and the plan."""
    connection = await connect(store.location)
    transaction = connection.transaction()
    await transaction.start()
    try:
        text = await connection.fetchval("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + QUERIES[name], *values)
    finally:
        await transaction.rollback()
        await connection.close()
    return blocks_and_rows(text)


def blocks_and_rows(text: str) -> tuple[int, int, str]:
    plan = json.loads(text)[0]["Plan"]
    blocks = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return blocks, max(_rows(plan)), text


def _rows(plan: dict[str, Any]) -> Iterator[int]:
    yield plan["Actual Rows"]
    for part in plan.get("Plans", ()):
        yield from _rows(part)


async def queries(store: PostgresStore, namespace: int) -> dict[str, tuple[Any, ...]]:
    claimed = (await store.unfinished_runs([a_job(f"job-{n:04}").id for n in range(ROWS)])).values()
    running = sorted((run for runs in claimed for run in runs if run.token), key=lambda run: run.id)
    assert len(running) == ROWS
    ids = [encode_id(run.id) for run in running]
    changes = change_columns([completed(run) for run in running])
    jobs = sorted((a_job(f"job-{n:04}", next_fire_at=NOW) for n in range(ROWS)), key=lambda job: job.id)
    job_ids, versions = [job.id for job in jobs], [1] * ROWS
    return {
        "claim_at_once": (namespace, [QUEUE], ROWS, b"w", NOW, NOW, 0),
        "claim_at_marks": (namespace, [QUEUE], ROWS, b"w", NOW, NOW, 0, [1], [0], [-1]),
        "claim_levels": (namespace, [QUEUE], -1),
        "claim_ready": (1, 0, NOW, NOW, ROWS),
        "claim_gated": (1, 0, NOW, NOW, ROWS, namespace, -1, b"", [], [], [], 200),
        "claim_gates": (1, 0, NOW, NOW, namespace, -1, b"", [], [], []),
        "claim_behind_gate": (1, 0, NOW, NOW, ROWS, -1, b"", "/1/=6b"),
        "free_gates": (namespace, ids),
        "claim_runs": (namespace, ids, b"w", NOW, 0),
        "lock_runs": (namespace, ids),
        "lock_jobs": (namespace, job_ids),
        "settle_runs": (namespace, NOW, *changes),
        "finish_runs": (namespace, NOW, *changes),
        "finish_alike": (namespace, NOW, *alike_columns([completed(run) for run in running])),
        "finish_alike_of_jobs": (namespace, NOW, *alike_columns([completed(run) for run in running])),
        "amend_runs": (namespace, NOW, *changes),
        "heartbeat_runs": (namespace, NOW, ids, [1] * ROWS, [None] * ROWS),
        "withdraw_runs": (namespace, ids, [1] * ROWS),
        "overdue_runs": (namespace, NOW + DAY, ROWS, 0),
        "next_overdue_at": (namespace, NOW, 0),
        "first_due": (namespace, [QUEUE], [0], [False]),
        "get_runs": (namespace, ids),
        "run_by_key": (namespace, b"k"),
        "unfinished_runs": (namespace, job_ids),
        **lists(namespace),
        "due_jobs": (namespace, NOW + DAY, ROWS, NOW - DAY),
        "update_jobs": (
            namespace,
            job_ids,
            versions,
            *job_columns([replace(job, version=1) for job in jobs], [1] * len(jobs), label_array),
        ),
        "get_jobs": (namespace, [job.name for job in jobs]),
        "get_jobs_by_id": (namespace, job_ids),
        "list_jobs": (namespace, "", None, "", ROWS, None),
        "list_jobs_prefixed": (namespace, "", None, "job-05", ROWS, None),
        "list_current_jobs": (namespace, "", None, "", ROWS, False),
        "list_finished_jobs": (namespace, "", None, "", ROWS, True),
        "list_jobs_labelled": (namespace, "", None, "", ROWS, None, [label_text("n", "7")]),
        "prune_runs": (namespace, NOW + DAY, ROWS),
        "trim_runs": (namespace, a_job("job-0000").id, ROWS, ROWS),
        "delete_jobs": (namespace, ROWS),
        **records(namespace),
    }


def lists(namespace: int) -> dict[str, tuple[Any, ...]]:
    walk = (HIGHEST_ID, b"", SCAN_MAX, ROWS)
    every, failed, running = ((None, state, None, None) for state in (None, 4, 1))
    return {
        "list_finished_runs": (namespace, *walk, *every),
        "list_finished_runs_within_ten_seconds": (1, *walk[:2], 200, ROWS, *every, tens_of(a_run(10**6).fire_at)),
        "list_finished_runs_of_queue_by_time": (1, *walk, *every, TENS_MAX, 0),
        "list_finished_runs_of_owner": (1, *walk, *every, LATEST),
        "list_ended_runs": (namespace, *walk, *failed),
        "list_ended_runs_of_queue": (1, *walk, *failed),
        "list_ended_runs_of_owner": (1, *walk, *failed),
        "list_unfinished_runs": (namespace, *walk, *every),
        "list_unfinished_runs_of_owner": (1, *walk, *every, LATEST),
        "list_claimed_runs": (namespace, *walk, *running),
        "last_runs": (namespace, [f"job-{number:04}" for number in range(5)], HIGHEST_ID, b"", 0, LATEST, ROWS // 5),
        "owners_named": (namespace, "job-0000"),
        "list_disabled_jobs": (namespace, "", False, "", ROWS, None),
        "labelled_jobs": (namespace, [label_text("n", "7")], ROWS),
        "list_jobs_numbered": (namespace, "", None, "", ROWS, None, list(range(1, ROWS))),
        "jobs_ahead": (namespace, NOW, "", ROWS),
        "jobs_trimmed": (namespace, "", ROWS),
        "fold_job_counts": (namespace,),
    }


def records(namespace: int) -> dict[str, tuple[Any, ...]]:
    names = [_entry(number).name.encode() for number in range(ROWS)]
    labels = label_bytes({"object": "job/7", "actor": "ann"})
    walk = (namespace, b"audit/010000", b"audit/\xff", ROWS)
    return {
        "get_records": (namespace, names),
        "list_records": walk,
        "list_records_down": walk,
        "list_records_labelled": (*walk, labels[0], labels),
        "list_records_labelled_down": (*walk, labels[0], labels),
        "record_versions": (namespace, names),
        "old_records": walk,
        "delete_records": (namespace, names),
        "delete_record_labels": (namespace, names),
    }


async def test_no_query_costs_more_than_what_it_gives(store: PostgresStore) -> None:
    connection = await connect(store.location)
    namespace = await connection.fetchval("SELECT num FROM horarium.namespaces WHERE name = 'default'")
    await connection.close()
    dear = {}
    for name, values in (await queries(store, namespace)).items():
        blocks, _, text = await cost(store, name, *values)
        if is_dear(blocks, text):
            dear[name] = (blocks, "Seq Scan" in text)
    assert dear == {}


def is_dear(blocks: int, text: str) -> bool:
    return "Seq Scan" in text or blocks > PER_ROW * ROWS


@pytest.fixture
def new_url(postgres_server: Postgres) -> str:
    return new_database(postgres_server)


async def test_plans_made_while_all_was_empty_cost_no_more(new_url: str) -> None:
    store = PostgresStore(new_url)
    await store.open()
    early = await connect(store.location)
    names = [name for name in QUERIES.names() if name not in SMALL | COUNTING]
    types: dict[str, list[str]] = {}
    await _without_autovacuum(early)
    for name in names:
        await early.execute(f"PREPARE {name} AS {QUERIES[name]}")
        asked = "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = $1"
        types[name] = await early.fetchval(asked, name)
        await early.fetch(f"EXPLAIN EXECUTE {name} ({', '.join(['NULL'] * len(types[name]))})")
    await _fill(store, early)
    dear = {}
    for name, values in (await queries(store, store._namespace_id)).items():
        literals = [await _literal(early, kind, value) for kind, value in zip(types[name], values, strict=True)]
        transaction = early.transaction()
        await transaction.start()
        execute = f"EXECUTE {name} ({', '.join(literals)})"
        text = await early.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {execute}")
        await transaction.rollback()
        blocks, rows, _ = blocks_and_rows(text)
        if is_dear(blocks, text) or rows > 2 * PER_ROW * ROWS:
            dear[name] = (blocks, rows)
    await early.close()
    await store.close()
    assert dear == {}


async def _literal(connection: Connection, kind: str, value: Any) -> str:
    """A value as it stands in the text of a statement."""
    found: str = await connection.fetchval(f"SELECT quote_nullable($1::{kind}::text)", value)
    return found


async def test_the_counts_of_queues_look_at_each_run_and_no_more(store: PostgresStore) -> None:
    """No name of a queue is looked up for each of the runs that wait there."""
    blocks, _, text = await cost(store, "count_runs", store._namespace_id, NOW, ROWS)
    assert blocks < WAITING, text


async def test_claimed_runs_are_not_looked_for_among_those_that_wait(store: PostgresStore) -> None:
    blocks, _, text = await cost(store, "list_claimed_runs", *lists(store._namespace_id)["list_claimed_runs"])
    assert blocks < 2 * ROWS, text


async def test_every_query_of_the_store_is_looked_at_or_reads_little(store: PostgresStore) -> None:
    assert {*await queries(store, 1), *SMALL, *COUNTING} == set(QUERIES.names())
