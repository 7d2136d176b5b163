"""Every filter and every pipeline of the store, under the names that they have in the SQL stores.

Nothing here is sent: a query is a value, so that its plan can be looked at. Each one begins with the namespace, or with
whole `_id`s. A filter names what its index leaves out (`state`, `deleted`) in just the words of the index: the server
uses a partial index only for a query that it can prove to lie within.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from horarium.clock import Instant
from horarium.ports import JobFilter
from horarium.stores.listing import ahead_cursor
from horarium.stores.mongo.indexes import CLAIMED, FINISHED, JOBS, NODES, PENDING, PRESENT, RUNS, UNFINISHED
from horarium.stores.mongo.rows import label
from horarium.stores.mongo.session import Document, Grouping, Pipeline, Query, Session, Sort

CLAIM_ORDER: Sort = [("priority", -1), ("due_at", 1), ("_id", 1)]
CANDIDATE: Document = {
    "priority": True,
    "due_at": True,
    "gated": True,
    "job_id": True,
    "serial": True,
    "concurrency_key": True,
    "concurrency_max": True,
}
CANDIDATE_BEHIND: Document = {**CANDIDATE, "queue": True, "gate": True, "start_by": True}
STATEMENT_MAX = 128
"""How many documents one update changes: finding the values of one in it takes as long as it has documents."""
STATEMENT_BYTES_MAX = 2_000_000
"""Bytes of values without a fixed size in one update, unless one document alone has more."""
MARKS_MAX = 100
"""How many marks one filter knows: the server compares each document with all of them."""


def statements(sizes: Sequence[int]) -> Iterator[slice]:
    """Which of several documents, of these sizes, are written by one update: the server limits its bytes."""
    start = total = 0
    for place, size in enumerate(sizes):
        if place > start and (place - start == STATEMENT_MAX or total + size > STATEMENT_BYTES_MAX):
            yield slice(start, place)
            start, total = place, 0
        total += size
    yield slice(start, len(sizes))


# ---- jobs -------------------------------------------------------------------------------------------------------


def get_jobs(session: Session, names: Sequence[str]) -> Query:
    found = {"n": session.namespace, "deleted": False, "name": {"$in": sorted(set(names))}}
    return Query(collection=JOBS, index="jobs_by_name", where=found)


def get_jobs_by_id(session: Session, ids: Iterable[str]) -> Query:
    return Query(collection=JOBS, index=None, where={"_id": {"$in": session.keys(ids)}})


def job_versions(session: Session, ids: Iterable[str]) -> Query:
    return Query(collection=JOBS, index=None, where={"_id": {"$in": session.keys(ids)}}, fields={"version": True})


def list_jobs(session: Session, where: JobFilter, after: str | None, lead: str | None = None) -> Query:
    """The prefix bounds the walk at both ends. Of several labels the one with the key `lead` leads; the rest are looked
    at in each job, in words that no index knows."""
    name: Document = {"$gt": after or ""}
    if where.name_prefix:
        name.update({"$gte": where.name_prefix, "$lt": where.name_prefix + "\U0010ffff"})
    found: Document = {"n": session.namespace, "deleted": False, "name": name}
    if where.enabled is not None:
        found["enabled"] = where.enabled
    if where.labels:
        lead = next(iter(where.labels)) if lead is None else lead
        found["labels"] = {**PRESENT, "$eq": label(lead, where.labels[lead])}
        rest = [label(key, value) for key, value in where.labels.items() if key != lead]
        found.update({"$and": [{"labels": {"$elemMatch": pair}} for pair in rest]} if rest else {})
    if where.finished is not None:
        found["finished"] = True if where.finished else None
    index = "jobs_labelled" if where.labels else _index_of_jobs(where)
    return Query(collection=JOBS, index=index, where=found, sort=[("name", 1)])


def count_labelled(session: Session, key: str, value: str, limit: int) -> Grouping:
    """How many jobs have a label, counted up to a limit."""
    found = {"n": session.namespace, "deleted": False, "labels": {**PRESENT, "$eq": label(key, value)}}
    return Grouping(JOBS, "jobs_labelled", [{"$match": found}, {"$limit": limit}, {"$count": "all"}])


def _index_of_jobs(where: JobFilter) -> str:
    if where.enabled is not None and not where.finished:
        return "jobs_counted"
    return "jobs_by_name" if where.finished is None else "jobs_by_finish"


def due_jobs(session: Session, until: Instant, after: Instant | None = None) -> Query:
    bounds = {"$lte": until} if after is None else {"$lte": until, "$gt": after}
    found = {"n": session.namespace, "deleted": False, "next_fire_at": bounds}
    return Query(collection=JOBS, index="jobs_due", where=found, sort=[("next_fire_at", 1), ("_id", 1)])


def jobs_ahead(session: Session, until: Instant, after: str | None) -> Query:
    """By the cursor, then by id."""
    found: Document = {"n": session.namespace, "deleted": False}
    if after is None:
        found["planned_until"] = {"$gt": until}
    else:
        at, job_id = ahead_cursor(after)
        found["$or"] = [{"planned_until": at, "_id": {"$gt": session.key(job_id)}}, {"planned_until": {"$gt": at}}]
    order = [("planned_until", 1), ("_id", 1)]
    return Query(collection=JOBS, index="jobs_ahead", where=found, sort=order)


def jobs_trimmed(session: Session, after: str | None) -> Query:
    found = {"n": session.namespace, "deleted": False, "runs_kept": True, "name": {"$gt": after or ""}}
    return Query(collection=JOBS, index="jobs_trimmed", where=found, sort=[("name", 1)])


def next_job_at(session: Session, until: Instant) -> Query:
    found = {"n": session.namespace, "deleted": False, "next_fire_at": {"$gt": until}}
    return _first(JOBS, "jobs_due", found, "next_fire_at")


def replace_jobs(documents: Sequence[Document], versions: Sequence[int]) -> tuple[Document, Pipeline]:
    """Put each document in the place of the one with its `_id` if that has the version that was read. A run that has
    another one is found and left as it is."""
    keys = [document["_id"] for document in documents]
    read = {"$arrayElemAt": [{"$literal": list(versions)}, "$$place"]}
    new = {"$arrayElemAt": [{"$literal": list(documents)}, "$$place"]}
    chosen = {"$cond": [{"$eq": ["$version", read]}, new, "$$ROOT"]}
    place = {"$indexOfArray": [{"$literal": keys}, "$_id"]}
    return {"_id": {"$in": keys}}, [{"$replaceWith": {"$let": {"vars": {"place": place}, "in": chosen}}}]


def orphaned_jobs(session: Session, limit: int) -> Grouping:
    """Deleted jobs that no run belongs to any longer."""
    of_job = {"n": session.namespace, "job_id": PRESENT, "$expr": {"$eq": ["$job_id", "$$job_id"]}}
    lookup = {
        "from": RUNS,
        "let": {"job_id": {"$substrBytes": ["$_id", len(session.prefix), -1]}},
        "pipeline": [{"$match": of_job}, {"$limit": 1}, {"$project": {"_id": 1}}],
        "as": "runs",
    }
    pipeline: Pipeline = [
        {"$match": {"n": session.namespace, "deleted": True}},
        {"$lookup": lookup},
        {"$match": {"runs": []}},
        {"$limit": limit},
        {"$project": {"_id": 1}},
    ]
    return Grouping(JOBS, "jobs_deleted", pipeline)


# ---- runs -------------------------------------------------------------------------------------------------------


def get_runs(session: Session, ids: Iterable[str]) -> Query:
    return Query(collection=RUNS, index=None, where={"_id": {"$in": session.keys(ids)}})


def marked_runs(keys: Sequence[str], mark: Any, *, whole: bool) -> Query:
    """Those of these documents that a write of ours was the last one in."""
    fields = None if whole else {"_id": True}
    return Query(collection=RUNS, index=None, where={"_id": {"$in": list(keys)}, "mark": mark}, fields=fields)


def pending_runs(keys: Sequence[str]) -> Query:
    return Query(collection=RUNS, index=None, where={"_id": {"$in": list(keys)}, **PENDING})


def run_by_key(session: Session, unique_keys: Sequence[str]) -> Query:
    found = {"n": session.namespace, "unique_key": {"$in": list(unique_keys)}}
    return Query(collection=RUNS, index="runs_by_key", where=found)


def runs_by_fire(session: Session, job_ids: Iterable[str], since: Instant, until: Instant) -> Query:
    """Which fire times of these jobs have a run, both ends included."""
    fire_at = {"$gte": since, "$lte": until}
    found = {"n": session.namespace, "job_id": {"$in": sorted(set(job_ids))}, "fire_at": fire_at}
    return Query(collection=RUNS, index="runs_by_fire", where=found, fields={"job_id": True, "fire_at": True})


def unfinished_runs(session: Session, job_ids: Iterable[str]) -> Query:
    found = {"n": session.namespace, "job_id": {"$in": sorted(set(job_ids))}, **UNFINISHED}
    order = [("job_id", 1), ("fire_at", 1), ("_id", 1)]
    return Query(collection=RUNS, index="runs_unfinished", where=found, sort=order)


# ---- the claim --------------------------------------------------------------------------------------------------


def claimable(session: Session, queues: Sequence[str], now: Instant, until: Instant) -> Document:
    """Pending and due runs of these queues that are not too late to start."""
    return {
        "n": session.namespace,
        "queue": {"$in": sorted(set(queues))},
        **PENDING,
        "due_at": {"$lte": until},
        "$nor": [{"start_by": {"$lte": now}}],
    }


EITHER_LANE: Document = {"gated": {"$in": [None, True]}}
"""Gated and ungated runs: two places of one index, which the server merges."""


def claim_ready(found: Document, fields: Document | None = None) -> Query:
    """The next candidates, those that may be held back among them. The server walks each priority of each queue by
    itself and merges them, so that no more than the limit is read."""
    where = {**found, **EITHER_LANE}
    return Query(collection=RUNS, index="runs_in_lane", where=where, sort=CLAIM_ORDER, fields=fields)


def unmoved_runs(candidates: Sequence[Document]) -> Iterator[Document]:
    """Filters for these documents as they were read. One with the same mark was not written since; but the mark has
    to be compared for each document, since it may by now have the mark of another one."""
    marked: dict[Any, list[str]] = {}
    for candidate in candidates:
        marked.setdefault(candidate["mark"], []).append(candidate["_id"])
    if len(marked) == 1:
        ((mark, keys),) = marked.items()
        yield {"_id": {"$in": keys}, **PENDING, "mark": mark}
        return
    pairs = list(marked.items())
    for start in range(0, len(pairs), MARKS_MAX):
        some = pairs[start : start + MARKS_MAX]
        either = [{"mark": mark, "_id": {"$in": keys}} for mark, keys in some]
        yield {"_id": {"$in": [key for _, keys in some for key in keys]}, **PENDING, "$or": either}


def claim_lane(found: Document) -> Query:
    """The next candidates that nothing holds back, however many are held back beside them."""
    return Query(
        collection=RUNS, index="runs_in_lane", where={**found, "gated": None}, sort=CLAIM_ORDER, fields=CANDIDATE
    )


def claim_gates(found: Document, queue: str, held: Sequence[Document]) -> Grouping:
    """Of each gate of a queue the run that is due first, without those that are known to be held back: a scan that
    leaps from gate to gate. Also one that is too late to start: others may wait behind it."""
    within = {"n": found["n"], **PENDING, "gated": True, "queue": queue}
    stuck = [clause for clause in found["$nor"] if "start_by" not in clause]
    admitted: Document = {"due_at": found["due_at"]}
    if stuck or held:
        admitted["$nor"] = [*stuck, *held]
    pipeline: Pipeline = [
        {"$match": within},
        {"$sort": {"gate": 1, "due_at": 1, "_id": 1}},
        {"$group": {"_id": "$gate", "head": {"$first": "$$ROOT"}}},
        {"$replaceRoot": {"newRoot": "$head"}},
        {"$match": admitted},
        {"$project": CANDIDATE_BEHIND},
    ]
    return Grouping(RUNS, "runs_behind_gate", pipeline)


def claim_behind_gate(found: Document, queue: str, gate: str | None, after: Document | None) -> Query:
    """The runs of a gate by due time, beyond one of them."""
    where: Document = {**found, "queue": queue, "gated": True, "gate": gate}
    if after is not None:
        later = {"due_at": {**found["due_at"], "$gt": after["due_at"]}}
        same = {"due_at": after["due_at"], "_id": {"$gt": after["_id"]}}
        where = {**{name: value for name, value in where.items() if name != "due_at"}, "$or": [same, later]}
    order: Sort = [("due_at", 1), ("_id", 1)]
    return Query(collection=RUNS, index="runs_behind_gate", where=where, sort=order, fields=CANDIDATE_BEHIND)


def turn_of_job(session: Session, job_id: str) -> Query:
    """The first unfinished run of a job."""
    query = unfinished_runs(session, [job_id])
    where = {**query.where, "job_id": job_id}
    order: Sort = [("fire_at", 1), ("_id", 1)]
    fields = {**CANDIDATE_BEHIND, "state": True}
    return Query(collection=RUNS, index=query.index, where=where, sort=order, fields=fields)


def jobs_at_work(session: Session) -> Query:
    """The jobs of claimed runs: no more than all workers together perform."""
    found = {"n": session.namespace, **CLAIMED, "job_id": PRESENT}
    return Query(collection=RUNS, index="runs_claimed", where=found, fields={"job_id": True, "_id": False})


def beyond_gates(found: Document, gates: Sequence[str]) -> Document:
    """Candidates that have none of these gates to pass."""
    keys = [gate.removeprefix("key/") for gate in gates if gate.startswith("key/")]
    jobs = [gate.removeprefix("job/") for gate in gates if gate.startswith("job/")]
    stuck: list[Document] = [{"concurrency_key": {"$in": keys}}, {"serial": True, "job_id": {"$in": jobs}}]
    return {**found, "$nor": [*found["$nor"], *stuck]}


def busy_keys(session: Session) -> Grouping:
    """How many runs are claimed under each key."""
    match = {"n": session.namespace, **CLAIMED, "concurrency_key": PRESENT}
    group = {"_id": "$concurrency_key", "held": {"$sum": 1}}
    return Grouping(RUNS, "runs_claimed_under", [{"$match": match}, {"$group": group}])


def first_unfinished(session: Session, job_ids: Iterable[str]) -> Grouping:
    """For each of these jobs the first of its unfinished runs, and their highest state (1, 2: one is claimed)."""
    query = unfinished_runs(session, job_ids)
    group = {"_id": "$job_id", "first": {"$first": "$_id"}, "state": {"$max": "$state"}}
    assert query.index is not None
    return Grouping(RUNS, query.index, [{"$match": query.where}, {"$sort": dict(query.sort)}, {"$group": group}])


def claim_runs(worker: str, now: Instant, steady: Instant, mark: Any) -> Pipeline:
    """`ports.lease_end`, from max(now, due_at), which becomes started_at too. An absent field limits nothing."""
    started_at = {"$max": [now, "$due_at"]}
    begins = {"$add": [started_at, steady - now]}
    deadline = {"$ifNull": [{"$add": [begins, "$execution_micros"]}, "$$REMOVE"]}
    change = {
        "state": 1,
        "token": {"$add": ["$token", 1]},
        "attempt": {"$add": ["$attempt", 1]},
        "worker": {"$literal": worker},
        "started_at": started_at,
        "lease_expires_at": {"$add": [begins, {"$min": ["$lease_micros", "$execution_micros"]}]},
        "deadline": deadline,
        "mark": mark,
    }
    return [{"$set": change}]


def next_due_at(session: Session, queues: Sequence[str], until: Instant) -> Query:
    found = {"n": session.namespace, **PENDING, "queue": {"$in": sorted(set(queues))}, "due_at": {"$gt": until}}
    return _first(RUNS, "runs_waiting", found, "due_at")


def first_due(session: Session, queue: str, priority: int, gated: bool) -> Query:
    found = {"n": session.namespace, "queue": queue, "gated": True if gated else None, "priority": priority, **PENDING}
    return _first(RUNS, "runs_in_lane", found, "due_at")


# ---- settling and keeping ---------------------------------------------------------------------------------------


def changeable(keys: Sequence[str], token: int, state: int, held: bool | None, steady: Instant) -> Document:
    """The conditions under which a change is written. A run without a lease is neither held nor expired."""
    found: Document = {"_id": keys[0] if len(keys) == 1 else {"$in": list(keys)}, "token": token, "state": state}
    if held is not None:
        found["lease_expires_at"] = {"$gt": steady} if held else {"$lte": steady}
    return found


def settle_runs(
    keys: Sequence[str], columns: Mapping[str, list[Any]], mark: Any
) -> Iterator[tuple[list[str], Pipeline]]:
    """Updates that write to each document of `keys` its own values of these fields, and which of them each writes. A
    value that all have in common is sent once; None: the field is removed."""
    large = [values for name in ("progress", "error", "result", "history") if any(values := columns[name])]
    sizes = [sum(len(value or b"") for value in row) for row in zip(*large, strict=True)] if large else [0] * len(keys)
    for part in statements(sizes):
        some = list(keys[part])
        place = {"$indexOfArray": [{"$literal": some}, "$_id"]}
        change: Document = {"mark": mark}
        for name, column in columns.items():
            values = column[part]
            first = values[0]
            if values.count(first) < len(values):
                change[name] = {"$ifNull": [{"$arrayElemAt": [{"$literal": values}, place]}, "$$REMOVE"]}
            else:
                change[name] = "$$REMOVE" if first is None else {"$literal": first}
        yield some, [{"$set": change}]


def beating_runs(keys: Sequence[str], token: int, steady: Instant) -> Document:
    """Leases that go on."""
    found = {"$in": list(keys)} if len(keys) > 1 else keys[0]
    running = {"state": 1, "$expr": {"$gt": [_renewed(steady), steady]}}
    going_on = [running, {"state": 2, "lease_expires_at": {"$gt": steady}}]
    return {"_id": found, "token": token, **CLAIMED, "$or": going_on}


def _renewed(steady: Instant) -> Document:
    """`ports.lease_end`."""
    return {"$min": [{"$add": [steady, "$lease_micros"]}, "$deadline"]}


def heartbeat_runs(steady: Instant, progress: bytes | None) -> Pipeline:
    """Unchanged for a cancelling one."""
    change: Document = {"lease_expires_at": {"$cond": [{"$eq": ["$state", 1]}, _renewed(steady), "$lease_expires_at"]}}
    if progress is not None:
        change["progress"] = {"$literal": progress}
    return [{"$set": change}]


def expired_runs(session: Session, steady: Instant) -> Query:
    found = {"n": session.namespace, **CLAIMED, "lease_expires_at": {"$lte": steady}}
    order = [("lease_expires_at", 1), ("_id", 1)]
    return Query(collection=RUNS, index="runs_claimed", where=found, sort=order)


def unstarted_runs(session: Session, now: Instant) -> Query:
    found = {"n": session.namespace, **PENDING, "start_by": {"$lte": now}}
    return Query(collection=RUNS, index="runs_start_by", where=found, sort=[("start_by", 1), ("_id", 1)])


def next_expiry_at(session: Session, steady: Instant) -> Query:
    found = {"n": session.namespace, **CLAIMED, "lease_expires_at": {"$gt": steady}}
    return _first(RUNS, "runs_claimed", found, "lease_expires_at")


def next_start_by(session: Session, now: Instant) -> Query:
    return _first(RUNS, "runs_start_by", {"n": session.namespace, **PENDING, "start_by": {"$gt": now}}, "start_by")


def prune_runs(session: Session, now: Instant) -> Query:
    found = {"n": session.namespace, **FINISHED, "prune_at": {"$lte": now}}
    order = [("prune_at", 1), ("_id", 1)]
    return Query(collection=RUNS, index="runs_prunable", where=found, sort=order, fields={"_id": True})


def trim_runs(session: Session, job_id: str, *, newest_first: bool) -> Query:
    found = {"n": session.namespace, "job_id": job_id, **FINISHED}
    order = [("_id", -1 if newest_first else 1)]
    return Query(collection=RUNS, index="runs_finished", where=found, sort=order, fields={"_id": True})


# ---- the rest ---------------------------------------------------------------------------------------------------


def list_nodes(session: Session, since: Instant) -> Query:
    found = {"n": session.namespace, "beat_at": {"$gte": since}}
    return Query(collection=NODES, index="nodes_by_name", where=found, sort=[("name", 1)])


def count_jobs(session: Session, *, enabled: bool) -> Grouping:
    """From the index alone."""
    match = {"n": session.namespace, "deleted": False, **({"enabled": True} if enabled else {})}
    return Grouping(JOBS, "jobs_counted", [{"$match": match}, {"$count": "all"}])


def count_ready(session: Session, now: Instant) -> Grouping:
    """Waiting runs by queue, from an index that holds all that is asked for."""
    due = {"$sum": {"$cond": [{"$lte": ["$due_at", now]}, 1, 0]}}
    group = {"_id": "$queue", "due": due, "waiting": {"$sum": 1}, "first_due_at": {"$min": "$due_at"}}
    return Grouping(RUNS, "runs_waiting", [{"$match": {"n": session.namespace, **PENDING}}, {"$group": group}])


def count_claimed(session: Session) -> Grouping:
    match = {"n": session.namespace, **CLAIMED}
    return Grouping(RUNS, "runs_claimed", [{"$match": match}, {"$group": {"_id": "$queue", "running": {"$sum": 1}}}])


def _first(collection: str, index: str, found: Document, field: str) -> Query:
    """The least of one field, alone."""
    fields = {field: True, "_id": False}
    return Query(collection=collection, index=index, where=found, sort=[(field, 1)], fields=fields)
