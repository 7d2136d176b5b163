"""How MongoDB means to answer the store's queries: by which index, reading no more than is asked for.

Each query names its index, so what is tested is that the index can answer it: in order, without a sort, within bounds,
and looking at no more than what it returns, however much else there is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from horarium.clock import DAY
from horarium.model import UNFINISHED, State
from horarium.model.records import Record, RecordChange
from horarium.ports import JobFilter, RunFilter
from horarium.stores.mongo import MongoStore, jobs, listing, queries, records, runs
from horarium.stores.mongo.connect import new_mark
from horarium.stores.mongo.indexes import MIGRATIONS
from horarium.stores.mongo.session import Grouping, Query, Session
from horarium.testing.values import NOW, a_finished_run, a_job, a_run
from tests.servers.mongo import Mongo

pytestmark = pytest.mark.slow

JOB = a_job("job-0")
FEW = 5
"""How many of each kind a query should find; of all else there are many times as many."""


@pytest.fixture(scope="module")
def mongo() -> Iterator[Mongo]:
    server = Mongo()
    server.start()
    yield server
    server.stop()


@pytest_asyncio.fixture
async def session(mongo: Mongo) -> AsyncIterator[Session]:
    store = MongoStore(mongo.url, "plans")
    await store.open()
    if not (await store.get_jobs([JOB.name]))[0]:
        await populate(store)
    assert store._session is not None
    yield store._session
    await store.close()


async def populate(store: MongoStore) -> None:
    some = [
        a_job(f"job-{n}", labels={"env": "prod", "team": str(n % 40)}, next_fire_at=NOW + n * DAY) for n in range(200)
    ]
    await store.add_jobs(some)
    await store.add_runs([a_finished_run(n, of=some[n % 10], prune_at=NOW + n * DAY) for n in range(900)])
    waiting = [
        a_run(1_000 + n, due_at=NOW + n // FEW * DAY, priority=n % 3, start_by=NOW + n * DAY) for n in range(300)
    ]
    await store.add_runs(waiting)
    claimed = [
        a_run(2_000 + n, of=some[n % 100], state=State.RUNNING, lease_expires_at=NOW + n * DAY, unique_key=str(n))
        for n in range(100)
    ]
    await store.add_runs(claimed)
    await store.add_runs([a_run(3_000 + n, concurrency_key="k", concurrency_max=9, queue="other") for n in range(FEW)])


TWO_LABELS = JobFilter(labels={"env": "prod", "team": "3"})
"""Of which the first is that of all jobs."""


def claimable(session: Session) -> dict[str, Any]:
    return queries.claimable(session, ["http", "none"], NOW, NOW)


def only(state: State, **others: Any) -> RunFilter:
    return RunFilter(states=frozenset({state}), **others)


LISTS = {
    "all": RunFilter(),
    "completed": only(State.COMPLETED),
    "pending": only(State.PENDING),
    "failed": only(State.FAILED),
    "of a job": RunFilter(job="job-3"),
    "of a queue": RunFilter(queue="http"),
    "failed of a job": only(State.FAILED, job="job-3"),
    "failed of a queue": only(State.FAILED, queue="http"),
    "running of a job": only(State.RUNNING, job="job-3"),
    "long ago": RunFilter(until=a_run(5).fire_at),
}


def listed(where: RunFilter, session: Session) -> Query:
    return listing.list_runs(session, where, None)[0].ids()


QUERIES: dict[str, Callable[[Session], Query]] = {
    "get_jobs": lambda s: queries.get_jobs(s, ["job-1", "job-2"]),
    "get_jobs_by_id": lambda s: queries.get_jobs_by_id(s, [JOB.id]),
    "list_jobs": lambda s: queries.list_jobs(s, JobFilter(), "job-1"),
    "list_jobs_prefixed": lambda s: queries.list_jobs(s, JobFilter(name_prefix="job-19"), None),
    "list_jobs_labelled": lambda s: queries.list_jobs(s, JobFilter(labels={"team": "3"}), None),
    "list_jobs_of_two_labels": lambda s: queries.list_jobs(s, TWO_LABELS, None, "team"),
    "due_jobs": lambda s: queries.due_jobs(s, NOW),
    "next_job_at": lambda s: queries.next_job_at(s, NOW),
    "get_runs": lambda s: queries.get_runs(s, [a_run(1_000).id]),
    "run_by_key": lambda s: queries.run_by_key(s, ["7"]),
    "runs_by_fire": lambda s: queries.runs_by_fire(s, [JOB.id], a_run(0).fire_at, a_run(50).fire_at),
    "unfinished_runs": lambda s: queries.unfinished_runs(s, [JOB.id]),
    "list_jobs_disabled": lambda s: queries.list_jobs(s, JobFilter(enabled=False), None),
    "list_jobs_current": lambda s: queries.list_jobs(s, JobFilter(finished=False), "job-1"),
    "list_jobs_finished": lambda s: queries.list_jobs(s, JobFilter(finished=True), None),
    "jobs_ahead": lambda s: queries.jobs_ahead(s, NOW, None),
    "jobs_trimmed": lambda s: queries.jobs_trimmed(s, None),
    **{f"list_runs {name}": partial(listed, where) for name, where in LISTS.items()},
    "claim_ready": lambda s: queries.claim_ready(claimable(s)),
    "claim_gated": lambda s: queries.claim_ready(claimable(s), queries.CANDIDATE),
    "next_due_at": lambda s: queries.next_due_at(s, ["http", "none"], NOW),
    "expired_runs": lambda s: queries.expired_runs(s, NOW),
    "unstarted_runs": lambda s: queries.unstarted_runs(s, NOW),
    "next_expiry_at": lambda s: queries.next_expiry_at(s, NOW),
    "next_start_by": lambda s: queries.next_start_by(s, NOW),
    "prune_runs": lambda s: queries.prune_runs(s, NOW),
    "trim_runs": lambda s: queries.trim_runs(s, JOB.id, newest_first=True),
    "list_nodes": lambda s: queries.list_nodes(s, NOW),
}
GROUPINGS: dict[str, Callable[[Session], Grouping]] = {
    "busy_keys": queries.busy_keys,
    "first_unfinished": lambda s: queries.first_unfinished(s, [JOB.id]),
    "count_labelled": lambda s: queries.count_labelled(s, "team", "3", 10),
    "count_jobs": lambda s: queries.count_jobs(s, enabled=True),
    "count_ready": lambda s: queries.count_ready(s, NOW),
    "count_claimed": queries.count_claimed,
    "orphaned_jobs": lambda s: queries.orphaned_jobs(s, 10),
}


async def plan_of(session: Session, query: Query) -> dict[str, Any]:
    command: dict[str, Any] = {"find": query.collection, "filter": query.where, "limit": FEW}
    if query.sort:
        command["sort"] = dict(query.sort)
    if query.fields:
        command["projection"] = query.fields
    if query.index:
        command["hint"] = query.index
    plan: dict[str, Any] = await session.database.command("explain", command, verbosity="executionStats")
    return plan


def stages(plan: Any) -> Iterator[dict[str, Any]]:
    """Every stage of a plan, wherever it stands."""
    if isinstance(plan, dict):
        if "stage" in plan:
            yield plan
        for value in plan.values():
            yield from stages(value)
    elif isinstance(plan, list):
        for value in plan:
            yield from stages(value)


@pytest.mark.parametrize("name", QUERIES)
async def test_a_query_walks_its_index_and_sorts_nothing(session: Session, name: str) -> None:
    query = QUERIES[name](session)
    plan = (await plan_of(session, query))["queryPlanner"]["winningPlan"]
    kinds = {stage["stage"] for stage in stages(plan)}
    assert not kinds & {"COLLSCAN", "SORT"}
    indexes = {stage["indexName"] for stage in stages(plan) if stage["stage"] == "IXSCAN"}
    assert indexes <= {query.index or "_id_"}
    assert indexes or "IDHACK" in kinds


@pytest.mark.parametrize("name", QUERIES)
async def test_a_query_reads_about_what_it_returns(session: Session, name: str) -> None:
    counts = (await plan_of(session, QUERIES[name](session)))["executionStats"]
    # A merge looks at the first of each queue and priority, a walk at one more than is within its bounds.
    assert counts["totalDocsExamined"] <= counts["nReturned"] + 2
    assert counts["totalKeysExamined"] <= 3 * counts["nReturned"] + 10


@pytest.mark.parametrize("name", GROUPINGS)
async def test_a_grouping_begins_with_its_index(session: Session, name: str) -> None:
    grouping = GROUPINGS[name](session)
    command = {"aggregate": grouping.collection, "pipeline": grouping.pipeline, "cursor": {}, "hint": grouping.index}
    plan = await session.database.command("explain", command, verbosity="queryPlanner")
    kinds = {stage["stage"] for stage in stages(plan)}
    assert not kinds & {"COLLSCAN", "SORT"}
    assert grouping.index in {stage["indexName"] for stage in stages(plan) if "indexName" in stage}


async def test_what_waits_is_counted_without_reading_a_run(session: Session) -> None:
    grouping = queries.count_ready(session, NOW)
    command = {"aggregate": grouping.collection, "pipeline": grouping.pipeline, "cursor": {}, "hint": grouping.index}
    plan = await session.database.command("explain", command, verbosity="queryPlanner")
    assert "FETCH" not in {stage["stage"] for stage in stages(plan)}


@pytest.mark.parametrize("added_one_by_one", [False, True])
async def test_a_claim_finds_its_candidates_by_their_ids(session: Session, added_one_by_one: bool) -> None:
    candidates = await session.find(queries.claim_ready(claimable(session)), FEW)
    if added_one_by_one:
        candidates = [{**candidate, "mark": new_mark()} for candidate in candidates]
    (found,) = queries.unmoved_runs(candidates)
    update = {"q": found, "u": queries.claim_runs("w", NOW, NOW, None), "multi": True}
    command = {"explain": {"update": "horarium_runs", "updates": [update]}, "verbosity": "queryPlanner"}
    plan = await session.database.command(command)
    assert {stage["indexName"] for stage in stages(plan) if stage["stage"] == "IXSCAN"} == {"_id_"}


def test_however_many_marks_there_are_a_filter_knows_few() -> None:
    candidates = [{"_id": str(number), "mark": new_mark()} for number in range(queries.MARKS_MAX + 1)]
    filters = list(queries.unmoved_runs(candidates))
    assert [len(found["$or"]) for found in filters] == [queries.MARKS_MAX, 1]
    assert [key for found in filters for key in found["_id"]["$in"]] == [candidate["_id"] for candidate in candidates]


async def test_the_schema_is_what_the_migrations_say(session: Session) -> None:
    wanted: dict[str, dict[str, Any]] = {}
    for migration in MIGRATIONS:
        for index in migration.indexes:
            wanted.setdefault(index.collection, {})[index.name] = index.model()
    for collection, indexes in wanted.items():
        found = {index["name"]: dict(index) async for index in await session.database[collection].list_indexes()}
        assert found.pop("_id_")
        assert {name: {**index, "key": dict(index["key"])} for name, index in found.items()} == {
            name: {"v": 2, **index} for name, index in indexes.items()
        }


async def test_of_several_labels_the_rarest_leads(
    mongo: Mongo, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads what has that label, and for the others counts no more than it is worth."""
    monkeypatch.setattr(jobs, "LABELLED_COUNTED", (10, 20))
    status = await session.database.command("serverStatus")
    before = status["metrics"]["queryExecutor"]["scannedObjects"]
    page = await jobs.list_jobs(session, TWO_LABELS, None, 50)
    status = await session.database.command("serverStatus")
    assert [job.name for job in page.items] == ["job-123", "job-163", "job-3", "job-43", "job-83"]
    assert status["metrics"]["queryExecutor"]["scannedObjects"] - before < 200


async def test_a_list_that_finds_enough_at_once_looks_at_few_runs(session: Session) -> None:
    """Of what is found by looking at each: the server reads ahead as far as it may look."""
    status = await session.database.command("serverStatus")
    before = status["metrics"]["queryExecutor"]["scannedObjects"]
    page = await runs.list_runs(session, RunFilter(until=a_run(800).fire_at), None, FEW)
    status = await session.database.command("serverStatus")
    assert len(page.items) == FEW
    assert status["metrics"]["queryExecutor"]["scannedObjects"] - before < 10 * FEW


async def test_what_one_command_can_do_is_one_command(session: Session) -> None:
    """A list that finds less than it may; a change of one record, which needs no transaction."""

    async def counted() -> tuple[int, int, int]:
        status = await session.database.command("serverStatus")
        commands = status["metrics"]["commands"]
        started = status["transactions"]["totalStarted"]
        return int(commands["aggregate"]["total"]), int(commands["find"]["total"]), int(started)

    before = await counted()
    where = RunFilter(job="job-1", states=UNFINISHED, since=NOW)
    page = await runs.list_runs(session, where, None, 200)
    after = await counted()
    assert page.next_after is None
    assert (after[0] - before[0], after[1] - before[1]) == (1, 0)
    record = Record(name="one/a", body=b"1")
    changes = [RecordChange(record), RecordChange(record, 1), RecordChange(record, 1, deleted=True)]
    assert [await records.put_records(session, [change]) for change in changes] == [[True]] * 3
    assert await records.put_records(session, [changes[1]]) == [False]
    assert await records.get_records(session, ["one/a"]) == [None]
    assert (await counted())[2] == after[2]
