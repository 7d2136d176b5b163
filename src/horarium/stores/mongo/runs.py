"""Runs, all but the claim: what `ports.Store` says of them, as functions on a session.

A batch of changes is one command, which the server answers with a count alone. Each write leaves a mark in what it
wrote; so when the count says that some of a batch lost, reading the mark back tells which. If somebody has written over
the mark within that moment, nobody can tell any longer, and the answer counts as lost: the caller asks again.

The hard thing is speed: a command that changes many documents alike costs a third of as many commands. What a claim
here brought is remembered, under the claim's mark: a document that still has it is as it was then, but for heartbeats.
So only what differs from then need be written, and what differs is mostly the same for a whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from horarium.clock import Instant
from horarium.errors import StoreUnavailable
from horarium.model import Run, RunChange
from horarium.ports import Beat, Page, Pulse, RunFilter
from horarium.stores.mongo import queries
from horarium.stores.mongo.connect import duplicates, new_mark, update_many, update_one
from horarium.stores.mongo.rows import (
    STATE_NUMBERS,
    change_operators,
    changed_since,
    changing_fields,
    load_runs,
    run_document,
)
from horarium.stores.mongo.session import Document, Session

CANCELLING = 2

Statement = tuple[Document, Document | list[Document]]
"""What must be so, and what to do then."""


def by_key(document: Document) -> str:
    key: str = document["_id"]
    return key


# ---- adding and reading -----------------------------------------------------------------------------------------


async def add_runs(session: Session, runs: Sequence[Run]) -> list[bool]:
    mark = new_mark()
    return await insert(session.runs, [run_document(session, run, mark) for run in runs])


async def insert(collection: Any, documents: Sequence[Document]) -> list[bool]:
    """Insert each document that no unique index is against. The server tells which those are."""
    try:
        await collection.insert_many(documents, ordered=False)
    except Exception as error:
        refused = duplicates(error)
        if refused is None:
            raise
        left_out = frozenset(refused)
        return [place not in left_out for place in range(len(documents))]
    return [True] * len(documents)


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
    found = load_runs(session, await session.find(queries.list_runs(session, where, after), limit + 1))
    more = len(found) > limit > 0
    return Page(tuple(found[:limit]), found[limit - 1].id if more else None)


# ---- settling ---------------------------------------------------------------------------------------------------


async def settle_runs(session: Session, changes: Sequence[RunChange], now: Instant) -> list[bool]:
    answer = [False] * len(changes)
    for places in _rounds(changes):
        if len(places) == 1:
            answer[places[0]] = await _settle_one(session, changes[places[0]], now)
            continue
        batch = {session.key(changes[place].run.id): changes[place] for place in places}
        written = await _settle_batch(session, batch, now)
        for place in places:
            answer[place] = session.key(changes[place].run.id) in written
    for change, written_ in zip(changes, answer, strict=True):
        if written_:
            session.claimed.pop(change.run.id, None)
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


async def _settle_one(session: Session, change: RunChange, now: Instant) -> bool:
    where, operators = _whole_change(session, change, now, new_mark())
    return bool((await session.runs.update_one(where, operators)).matched_count)


def _whole_change(session: Session, change: RunChange, now: Instant, mark: Any) -> tuple[Document, Document]:
    found = queries.settle_runs(
        [session.key(change.run.id)], change.token, STATE_NUMBERS[change.state], change.held, now
    )
    return found, change_operators(changing_fields(change.run), mark)


async def _settle_batch(session: Session, batch: dict[str, RunChange], now: Instant) -> set[str]:
    """The keys of those written. First what is known to be as it was claimed, many at once; then the rest."""
    groups = _Groups(session, now)
    rest = {key: change for key, change in batch.items() if not groups.take(key, change)}
    written = await _write_marked(session, groups.statements(), groups.keys, groups.mark)
    rest.update((key, batch[key]) for key in groups.keys if key not in written)
    if rest:
        mark = new_mark()
        statements = [_whole_change(session, change, now, mark) for change in rest.values()]
        written |= await _write_marked(session, statements, list(rest), mark)
    return written


class _Groups:
    """Changes of runs that were claimed here, those together that write the same."""

    def __init__(self, session: Session, now: Instant) -> None:
        self._session, self._now = session, now
        self._groups: dict[tuple[Any, ...], tuple[RunChange, Any, Document, list[str]]] = {}
        self.mark = new_mark()
        self.keys: list[str] = []

    def take(self, key: str, change: RunChange) -> bool:
        """Put a change where it belongs. False: of its run is not known how it was claimed."""
        run, claim_mark = self._session.claimed.get(change.run.id, (None, None))
        if run is None or run.token != change.token or run.state is not change.state:
            return False
        fields = changed_since(run, change)
        alike = claim_mark, change.token, change.held, *fields.items()
        group = self._groups.get(alike)
        if group is None:
            group = self._groups[alike] = change, claim_mark, fields, []
        group[3].append(key)
        self.keys.append(key)
        return True

    def statements(self) -> list[Statement]:
        return [
            (
                {
                    **queries.settle_runs(keys, change.token, STATE_NUMBERS[change.state], change.held, self._now),
                    "mark": claim_mark,
                },
                change_operators(fields, self.mark),
            )
            for change, claim_mark, fields, keys in self._groups.values()
        ]


async def _write_marked(session: Session, statements: Sequence[Statement], keys: Sequence[str], mark: Any) -> set[str]:
    """Carry out updates of these documents; the keys of those written."""
    if not statements:
        return set()
    count = await write(session, statements)
    if count == len(keys):
        return set(keys)
    if count == 0:
        return set()
    found = await session.find(queries.marked_runs(keys, mark, whole=False), fresh=True)
    if len(found) != count:
        raise StoreUnavailable(
            f"MongoDB at {session.location.shown}: {count} of {len(keys)} changes were written, but others wrote "
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


async def heartbeat_runs(session: Session, beats: Sequence[Beat], now: Instant) -> list[Pulse | None]:
    """Renew, then read how the leases now stand. A lease that stands under the token was never lost in between."""
    await write(session, _renewals(session, beats, now))
    standing = await session.find(queries.get_runs(session, (beat.run_id for beat in beats)), fresh=True)
    by_id = {document["_id"]: document for document in standing}
    return [_pulse(by_id.get(session.key(beat.run_id)), beat, now) for beat in beats]


def _renewals(session: Session, beats: Sequence[Beat], now: Instant) -> list[Statement]:
    """Those without progress together; the others in their order, so that the last progress stays."""
    silent: dict[int, list[str]] = {}
    for beat in beats:
        if beat.progress is None:
            silent.setdefault(beat.token, []).append(session.key(beat.run_id))
    statements: list[Statement] = [
        (queries.beating_runs(keys, token, now), queries.heartbeat_runs(now, None)) for token, keys in silent.items()
    ]
    for beat in beats:
        if beat.progress is not None:
            found = queries.beating_runs([session.key(beat.run_id)], beat.token, now)
            statements.append((found, queries.heartbeat_runs(now, beat.progress)))
    return statements


def _pulse(document: Document | None, beat: Beat, now: Instant) -> Pulse | None:
    if document is None or document["token"] != beat.token or not 0 < document["state"] < 3:
        return None
    expires_at = document.get("lease_expires_at")
    if expires_at is None or expires_at <= now:
        return None
    return Pulse(int(expires_at), document["state"] == CANCELLING)


async def overdue_runs(session: Session, now: Instant, limit: int) -> tuple[list[Run], Instant | None]:
    async with session.at_one_instant() as instant:
        found: list[tuple[Instant, str, Document]] = []
        for query, field in (
            (queries.expired_runs(session, now), "lease_expires_at"),
            (queries.unstarted_runs(session, now), "start_by"),
        ):
            if limit > 0:
                documents = await session.find(query, limit, within=instant)
                found += [(document[field], by_key(document), document) for document in documents]
        ahead = [
            await session.first(query, within=instant)
            for query in (queries.next_expiry_at(session, now), queries.next_start_by(session, now))
        ]
    overdue = [document for _, _, document in sorted(found, key=_when)[: max(limit, 0)]]
    return load_runs(session, overdue), min((at for at in ahead if at is not None), default=None)


def _when(entry: tuple[Instant, str, Document]) -> tuple[Instant, str]:
    return entry[:2]


# ---- forgetting -------------------------------------------------------------------------------------------------


async def prune_runs(session: Session, now: Instant, limit: int) -> int:
    if limit <= 0:
        return 0
    query = queries.prune_runs(session, now)
    found = await session.find(query, limit, fresh=True)
    forgotten = await _forget(session, found, query.where)
    orphans = await session.group(queries.orphaned_jobs(session, limit))
    if orphans:
        await session.jobs.delete_many({"_id": {"$in": [by_key(document) for document in orphans]}, "deleted": True})
    return forgotten


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
    return await _forget(session, surplus, query.where)


async def _forget(session: Session, documents: Sequence[Document], where: Document) -> int:
    """Delete those that are still as they were found."""
    if not documents:
        return 0
    found = {**where, "_id": {"$in": [by_key(document) for document in documents]}}
    return int((await session.runs.delete_many(found, hint="_id_")).deleted_count)
