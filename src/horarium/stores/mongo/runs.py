"""Runs, all but the claim: what `ports.Store` says of them, as functions on a session.

A batch of changes is one command, which the server answers with a count alone. Each write leaves a mark in what it
wrote; so when the count says that some of a batch lost, reading the mark back tells which. If another write has
replaced the mark in that moment, the result is unknown, and the answer counts as lost: the caller asks again.

One update of many documents costs a third of many updates of one. So changes that expect the same token and state go
out as one update, which holds the values of each run and picks them by its `_id`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import compress
from typing import Any

from horarium.clock import Instant
from horarium.errors import StoreUnavailable
from horarium.model import Run, RunChange, State
from horarium.ports import NOTHING_ALONG, Along, Beat, Page, Pulse, RunFilter
from horarium.stores.encoding import STATE_NUMBERS, as_written, comes_alone
from horarium.stores.listing import SCAN_MAX, Walk, joined, newest_of
from horarium.stores.mongo import listing, queries
from horarium.stores.mongo.connect import new_mark, update_many, update_one
from horarium.stores.mongo.health import count_ends, delete_health
from horarium.stores.mongo.indexes import RUNS
from horarium.stores.mongo.records import add_records, insert_records
from horarium.stores.mongo.rows import change_operators, changing_columns, changing_fields, load_runs, run_document
from horarium.stores.mongo.scene import read_scene, write_scene
from horarium.stores.mongo.session import Contended, Document, Session, Unwritten
from horarium.stores.mongo.writes import insert

CANCELLING = 2
LOOKS = 4
"""At how many more runs a list looks, for each one that it wants, where some of the first did not match."""

Statement = tuple[Document, Document | list[Document]]
"""The condition, and the update under it."""


def by_key(document: Document) -> str:
    key: str = document["_id"]
    return key


# ---- adding and reading -----------------------------------------------------------------------------------------


async def add_runs(session: Session, runs: Sequence[Run], along: Along = NOTHING_ALONG) -> list[bool]:
    if along:
        if added := await session.assuming(lambda within: _add_new_runs(session, runs, along, within)):
            return added
        return await session.whole(lambda within: _add_runs_with(session, runs, along, within))
    mark = new_mark()
    return await insert(session.runs, [run_document(session, run, mark) for run in runs])


async def _add_new_runs(session: Session, runs: Sequence[Run], along: Along, within: Any) -> list[bool]:
    """None of them is there."""
    mark = new_mark()
    await session.insert(RUNS, [run_document(session, run, mark) for run in runs], within)
    await insert_records(session, [record for run in runs for record in along.get(run.id, ())], within)
    return [True] * len(runs)


async def _add_runs_with(session: Session, runs: Sequence[Run], along: Along, within: Any) -> list[bool]:
    scene = await read_scene(session, (), runs, within)
    answers = [scene.add(run) for run in runs]
    if session.hold is None and not any(answers):
        raise Unwritten(answers)
    scene.records += [
        record for run, added in zip(runs, answers, strict=True) if added for record in along.get(run.id, ())
    ]
    await write_scene(session, scene, within)
    return answers


async def add_all_runs(session: Session, runs: Sequence[Run], along: Along, within: Any) -> bool:
    """All of them, as a part of a transaction. False: one would be refused."""
    scene = await read_scene(session, (), runs, within)
    if not all(scene.add(run) for run in runs):
        return False
    scene.records += [record for run in runs for record in along.get(run.id, ())]
    await write_scene(session, scene, within)
    return True


async def get_runs(session: Session, ids: Sequence[str]) -> list[Run | None]:
    found = load_runs(session, await session.find(queries.get_runs(session, ids)))
    by_id = {run.id: run for run in found}
    return [by_id.get(run_id) for run_id in ids]


async def get_run_by_key(session: Session, unique_key: str) -> Run | None:
    found = load_runs(session, await session.find(queries.run_by_key(session, [unique_key]), 1))
    return found[0] if found else None


async def unfinished_runs(session: Session, job_ids: Sequence[str]) -> dict[str, list[Run]]:
    answer: dict[str, list[Run]] = {job_id: [] for job_id in job_ids}
    for run in load_runs(session, await session.find(queries.unfinished_runs(session, job_ids))):
        answer[run.job_id or ""].append(run)
    return answer


async def list_runs(session: Session, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
    walks = listing.list_runs(session, where, after)
    # Several must see each run in one state.
    async with session.at_one_instant() if len(walks) > 1 else nullcontext() as instant:
        documents, below = joined([await _walked(session, walk, limit, instant) for walk in walks], limit)
    return Page(tuple(load_runs(session, documents)), None if below is None else below[len(session.prefix) :])


async def last_runs(
    session: Session, jobs: Sequence[str], since: Instant, until: Instant, limit: int
) -> dict[str, list[Run]]:
    if limit <= 0:
        return {job: [] for job in jobs}
    documents = await session.group(listing.last_runs(session, list(dict.fromkeys(jobs)), since, until, limit))
    return newest_of(jobs, load_runs(session, documents), limit)


async def _walked(session: Session, walk: listing.RunWalk, limit: int, instant: Any) -> Walk[str]:
    """Mostly all runs of a walk match, or there are few. Where many do not, the server reads all that may be looked at,
    also beyond the page: so that comes last."""
    found: list[tuple[str, Document]] = []
    left = SCAN_MAX
    for looks in (limit + 1, LOOKS * (limit + 1)):
        documents = await session.group(walk.looked_at(looks := min(looks, left)), within=instant)
        found += [(by_key(document), document) for document in documents if len(document) > 1]
        if len(found) > limit or len(documents) < looks:
            return Walk(found[: limit + 1])
        walk, left = walk.below(by_key(documents[-1])), left - looks
        if left == 0:
            return Walk(found, by_key(documents[-1]))
    rest = await session.group(walk.found(limit + 1 - len(found), left), within=instant)
    found += [(by_key(document), document) for document in rest]
    if len(found) > limit:
        return Walk(found)
    last = await session.find(walk.ids(), 1, skip=left - 1, within=instant)
    return Walk(found, by_key(last[0]) if last else None)


# ---- settling ---------------------------------------------------------------------------------------------------


async def settle_runs(session: Session, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
    changes = as_written(changes, steady)
    answers = await _settle_runs(session, changes, steady)
    await count_ends(session, compress(changes, answers))
    return answers


async def _settle_runs(session: Session, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
    """What brings nothing along needs no transaction, if it can't meet what does."""
    if changes and changes[0].replaces:
        return await session.whole(lambda within: _settle_with(session, changes, steady, within))
    if all(map(comes_alone, changes)):
        return await _settle_alone(session, changes, steady)
    touched = [run.id for change in changes for run in (change.run, *change.follow_ups)]
    if len(set(touched)) < len(touched):
        return await session.whole(lambda within: _settle_with(session, changes, steady, within))
    together = [change for change in changes if not comes_alone(change)]
    written = dict(zip(map(_run_id, together), await _settle_together(session, together, steady), strict=True))
    alone = [change for change in changes if comes_alone(change)]
    written.update(zip(map(_run_id, alone), await _settle_alone(session, alone, steady), strict=True))
    return [written[change.run.id] for change in changes]


def _run_id(change: RunChange) -> str:
    return change.run.id


async def _settle_together(session: Session, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
    """A run that another transaction is writing must not hinder the others: the batch is halved until it is alone."""
    written = await session.assuming(lambda within: _settle_with(session, changes, steady, within, assumed=True))
    if written is not None:
        return written
    if len(changes) == 1:
        return await session.whole(lambda within: _settle_with(session, changes, steady, within))
    try:
        return await session.transaction(lambda within: _settle_with(session, changes, steady, within))
    except Contended:
        half = len(changes) // 2
    first = await _settle_together(session, changes[:half], steady)
    return [*first, *await _settle_together(session, changes[half:], steady)]


async def _settle_with(
    session: Session, changes: Sequence[RunChange], steady: Instant, within: Any, *, assumed: bool = False
) -> list[bool]:
    """`assumed`: nothing is in the way of what follows."""
    added = [] if assumed else [run for change in changes for run in change.follow_ups]
    scene = await read_scene(session, [change.run for change in changes], added, within)
    answers = [scene.change(change, steady) for change in changes]
    await write_scene(session, scene, within, insert_records if assumed else add_records)
    return answers


async def _settle_alone(session: Session, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
    if not changes:
        return []
    answer = [False] * len(changes)
    for places in _rounds(changes):
        if len(places) == 1:
            answer[places[0]] = await _settle_one(session, changes[places[0]], steady)
            continue
        batch = {session.key(changes[place].run.id): changes[place] for place in places}
        written = await _settle_batch(session, batch, steady)
        for place in places:
            answer[place] = session.key(changes[place].run.id) in written
    return answer


def _rounds(changes: Sequence[RunChange]) -> Iterator[list[int]]:
    """The places of the changes, in order, so that no run is in a round twice."""
    places: list[int] = []
    ids: set[str] = set()
    for place, change in enumerate(changes):
        if change.run.id in ids:
            yield places
            places, ids = [], set()
        places.append(place)
        ids.add(change.run.id)
    yield places


async def _settle_one(session: Session, change: RunChange, steady: Instant) -> bool:
    guard = change.token, STATE_NUMBERS[change.state], change.held, steady
    where = queries.changeable([session.key(change.run.id)], *guard)
    operators = change_operators(changing_fields(change.run), new_mark())
    return bool((await session.runs.update_one(where, operators)).matched_count)


async def _settle_batch(session: Session, batch: dict[str, RunChange], steady: Instant) -> set[str]:
    """The keys of those written."""
    mark = new_mark()
    alike: dict[tuple[int, State, bool | None], list[str]] = {}
    for key, change in batch.items():
        alike.setdefault((change.token, change.state, change.held), []).append(key)
    statements: list[Statement] = []
    for (token, state, held), keys in alike.items():
        guard = token, STATE_NUMBERS[state], held, steady
        columns = changing_columns([batch[key].run for key in keys])
        for some, written in queries.settle_runs(keys, columns, mark):
            statements.append((queries.changeable(some, *guard), written))
    count = await write(session, statements)
    if count in (0, len(batch)):
        return set(batch) if count else set()
    found = await session.find(queries.marked_runs(list(batch), mark, whole=False), fresh=True)
    if len(found) != count:
        raise StoreUnavailable(
            f"MongoDB at {session.location.shown}: {count} of {len(batch)} changes were written, but others wrote "
            "to the same runs at once; read them again"
        )
    return {by_key(document) for document in found}


async def write(session: Session, statements: Sequence[Statement]) -> int:
    """Carry out updates, in one command; how many documents were found as their statements say."""
    if len(statements) == 1:
        where, change = statements[0]
        return int((await session.runs.update_many(where, change)).matched_count)
    operations = [
        update_one(where, change) if isinstance(where["_id"], str) else update_many(where, change)
        for where, change in statements
    ]
    return int((await session.runs.bulk_write(operations, ordered=True)).matched_count)


# ---- leases -----------------------------------------------------------------------------------------------------


async def heartbeat_runs(session: Session, beats: Sequence[Beat], steady: Instant) -> list[Pulse | None]:
    """Renew, then read the leases. A lease that is held under the token was never lost in between."""
    await write(session, _renewals(session, beats, steady))
    held = await session.find(queries.get_runs(session, (beat.run_id for beat in beats)), fresh=True)
    by_id = {document["_id"]: document for document in held}
    return [_pulse(by_id.get(session.key(beat.run_id)), beat, steady) for beat in beats]


def _renewals(session: Session, beats: Sequence[Beat], steady: Instant) -> list[Statement]:
    """Those without progress together; the others in their order, so that the last progress stays."""
    silent: dict[int, list[str]] = {}
    for beat in beats:
        if beat.progress is None:
            silent.setdefault(beat.token, []).append(session.key(beat.run_id))
    statements: list[Statement] = [
        (queries.beating_runs(keys, token, steady), queries.heartbeat_runs(steady, None))
        for token, keys in silent.items()
    ]
    for beat in beats:
        if beat.progress is not None:
            found = queries.beating_runs([session.key(beat.run_id)], beat.token, steady)
            statements.append((found, queries.heartbeat_runs(steady, beat.progress)))
    return statements


def _pulse(document: Document | None, beat: Beat, steady: Instant) -> Pulse | None:
    if document is None or document["token"] != beat.token or not 0 < document["state"] < 3:
        return None
    expires_at = document.get("lease_expires_at")
    if expires_at is None or expires_at <= steady:
        return None
    return Pulse(int(expires_at), document["state"] == CANCELLING)


async def overdue_runs(session: Session, now: Instant, limit: int, steady: Instant) -> tuple[list[Run], Instant | None]:
    found: list[tuple[Instant, str, Document]] = []
    ahead: list[Instant] = []
    async with session.at_one_instant() as instant:
        for query, next_at, field, present in (
            (queries.expired_runs, queries.next_expiry_at, "lease_expires_at", steady),
            (queries.unstarted_runs, queries.next_start_by, "start_by", now),
        ):
            first = await session.first(next_at(session, -1), within=instant)
            if first is not None and first <= present:  # else, as nearly always, one query says that nothing is overdue
                documents = await session.find(query(session, present), limit, within=instant) if limit > 0 else []
                found += [(document[field] - present, by_key(document), document) for document in documents]
                first = await session.first(next_at(session, present), within=instant)
            if first is not None:
                ahead.append(now + first - present)
    overdue = [document for _, _, document in sorted(found, key=_when)[: max(limit, 0)]]
    return load_runs(session, overdue), min(ahead, default=None)


def _when(entry: tuple[Instant, str, Document]) -> tuple[Instant, str]:
    return entry[:2]


# ---- forgetting -------------------------------------------------------------------------------------------------


async def prune_runs(session: Session, now: Instant, limit: int) -> int:
    if limit <= 0:
        return 0
    query = queries.prune_runs(session, now)
    found = await session.find(query, limit, fresh=True)
    pruned = await _delete(session, found, query.where)
    orphans = await session.group(queries.orphaned_jobs(session, limit))
    if orphans:
        keys = [by_key(document) for document in orphans]
        await session.jobs.delete_many({"_id": {"$in": keys}, "deleted": True})
        await delete_health(session, keys)
    return pruned


async def trim_runs(session: Session, job_id: str, keep: int, limit: int) -> int:
    """The newest of those to go is found by its place; the oldest go first."""
    if limit <= 0:
        return 0
    newest = await session.find(queries.trim_runs(session, job_id, newest_first=True), 1, skip=keep, fresh=True)
    if not newest:
        return 0
    query = queries.trim_runs(session, job_id, newest_first=False)
    found = await session.find(query, limit, fresh=True)
    surplus = [document for document in found if by_key(document) <= by_key(newest[0])]
    return await _delete(session, surplus, query.where)


async def _delete(session: Session, documents: Sequence[Document], where: Document) -> int:
    """Delete those that are still as they were found."""
    if not documents:
        return 0
    found = {**where, "_id": {"$in": [by_key(document) for document in documents]}}
    return int((await session.runs.delete_many(found, hint="_id_")).deleted_count)
