"""How SQLite means to answer the store's queries: by which index, and never by reading a whole table.

The plan is asked for in the form in which the statement runs (same number of rows, same settings of the connection):
a longer batch can get another plan than a single row.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator

import apsw
import pytest
from msgspec.structs import replace

from horarium.model import Job, QueueTarget, uuid7
from horarium.ports import JobFilter
from horarium.stores.migrations import known_migrations
from horarium.stores.sqlite import jobs
from horarium.stores.sqlite.connect import connect, parse_url
from horarium.stores.sqlite.migrate import PACKAGE, migrate
from horarium.stores.sqlite.session import QUERIES, SIZES, Session

NOT_TABLES = (
    "carray",
    "json_each",
    "given",
    "wanted",
    "ready",
    "gated",
    "taken",
    "gates",
    "heads",
    "firsts",
    "busy",
    "counted",
    "this",
    "(subquery",
    "CONSTANT",
    "ROW",
)

BATCHES = [name for name in QUERIES.names() if QUERIES.rows(name, 2) != QUERIES[name]]
HOT = (
    "due_jobs",
    "next_job_at",
    "claim_levels",
    "claim_ready",
    "claim_gated",
    "claim_behind_gate",
    "claim_runs",
    "load_runs",
    "list_runs",
    "list_runs_of_queue_by_time",
    "list_runs_of_owner",
    "list_pending_runs",
    "list_ended_runs",
    "list_ended_runs_of_queue",
    "list_ended_runs_of_owner",
    "list_disabled_jobs",
    "list_current_jobs",
    "list_finished_jobs",
    "jobs_ahead",
    "jobs_trimmed",
)
INDEXES = {
    "due_jobs": "jobs_due",
    "next_job_at": "jobs_due",
    "claim_ready": "runs_ready",
    "claim_gated": "runs_gated",
    "expired_runs": "runs_claimed",
    "unstarted_runs": "runs_start_by",
    "next_overdue_at": "runs_claimed",
    "prune_runs": "runs_prunable_by_minute",
    "unfinished_runs": "runs_unfinished",
    "list_runs": "runs_by_id",
    "list_runs_of_owner": "runs_by_fire",
    "list_runs_of_queue_by_time": "runs_of_queue_by_time",
    "list_pending_runs": "runs_pending",
    "list_ended_runs": "runs_ended",
    "list_ended_runs_of_queue": "runs_ended_of_queue",
    "list_ended_runs_of_owner": "runs_ended_of_owner",
    "list_claimed_runs": "runs_claimed",
    "list_unfinished_runs_of_owner": "runs_unfinished",
    "list_disabled_jobs": "jobs_disabled",
    "list_current_jobs": "jobs_current",
    "list_finished_jobs": "jobs_finished",
    "jobs_ahead": "jobs_ahead",
    "jobs_trimmed": "jobs_trimmed",
    "claim_gates": "runs_behind_gate",
    "claim_behind_gate": "runs_behind_gate",
    "list_jobs": "jobs_by_name",
    "list_jobs_prefixed": "jobs_by_name",
    "list_jobs_labelled": "job_labels_by_value",
    "count_ready": "runs_ready",
    "count_gated": "runs_gated",
    "count_claimed": "runs_claimed",
    "trim_runs": "runs_by_fire",
}


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    connection = connect(parse_url(f"sqlite:///{tmp_path_factory.mktemp('plans')}/jobs.db"))
    migrate(connection, known_migrations(PACKAGE))
    yield connection
    connection.close()


def plan_of(connection: apsw.Connection, name: str, rows: int = 1) -> list[str]:
    query = QUERIES.rows(name, rows)
    numbered = {int(number) for number in re.findall(r"\?(\d+)", query)}
    arrays = {int(number) for number in re.findall(r"carray\(\?(\d+)\)", query)}
    count = max(numbered, default=0) or query.count("?")
    values = tuple(apsw.carray(array("q", [1])) if place in arrays else None for place in range(1, count + 1))
    return [line for _, _, _, line in connection.execute("EXPLAIN QUERY PLAN " + query, values)]


@pytest.mark.parametrize("name", QUERIES.names())
def test_no_query_reads_a_whole_table(connection: apsw.Connection, name: str) -> None:
    for rows in SIZES if name in BATCHES else (1,):
        for line in plan_of(connection, name, rows):
            assert not line.startswith("SCAN ") or any(word in line for word in NOT_TABLES), (rows, line)


@pytest.mark.parametrize("name", HOT)
def test_no_hot_query_sorts(connection: apsw.Connection, name: str) -> None:
    assert not [line for line in plan_of(connection, name) if "TEMP B-TREE" in line]


@pytest.mark.parametrize(("name", "index"), INDEXES.items())
def test_each_query_has_its_index(connection: apsw.Connection, name: str, index: str) -> None:
    assert [line for line in plan_of(connection, name) if re.search(rf"USING (COVERING )?INDEX {index}\b", line)]


@pytest.mark.parametrize("name", ["settle_runs", "update_jobs", "heartbeat_runs", "withdraw_runs", "beating_runs"])
@pytest.mark.parametrize("rows", SIZES)
def test_a_batch_looks_up_each_row(connection: apsw.Connection, name: str, rows: int) -> None:
    plan = plan_of(connection, name, rows)
    assert not [line for line in plan if "AUTOMATIC" in line]
    assert [line for line in plan if re.search(r"(INTEGER PRIMARY KEY|id=\?)", line)]


def test_the_levels_of_a_claim_are_probed_in_the_index_alone(connection: apsw.Connection) -> None:
    looks = [line for line in plan_of(connection, "claim_levels") if line.startswith("SEARCH")]
    assert looks
    assert all("USING COVERING INDEX runs_" in line for line in looks)


@pytest.mark.parametrize(
    "where",
    [
        JobFilter(),
        JobFilter(finished=False),
        JobFilter(enabled=False),
        JobFilter(labels={"team": "shop"}),
    ],
)
def test_jobs_with_a_prefix_are_found_without_a_look_at_those_before_or_after(
    connection: apsw.Connection, where: JobFilter
) -> None:
    session = Session(connection, "prefixes")
    session.find_namespace()
    if not jobs.list_jobs(session, JobFilter(), None, 1).items:
        jobs.add_jobs(session, [a_job(f"{team}-{number:03}") for team in "abc" for number in range(300)])
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    connection.set_progress_handler(count, 1)
    try:
        found = jobs.list_jobs(session, replace(where, name_prefix="b-29"), None, 20)
    finally:
        connection.set_progress_handler(None)
    assert [job.name for job in found.items] == [f"b-29{number}" for number in range(10)]
    assert steps < 1_000


def a_job(name: str) -> Job:
    return Job(
        name=name,
        id=uuid7(1_000, os.urandom(10)),
        trigger={"type": "interval", "every_seconds": 60},
        target=QueueTarget(queue="q"),
        labels={"team": "shop"},
        enabled=False,
    )
