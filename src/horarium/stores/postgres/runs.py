"""Runs: what `ports.Store` says of them except the claim, as functions on a session.

Every batch is sorted by id before it is sent, so that two of them lock common rows in the same order. One that names a
run twice is cut into parts, which follow one another in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, TypeVar

from horarium.clock import Instant
from horarium.errors import Conflict
from horarium.model import UNFINISHED, Run, RunChange, State
from horarium.ports import NOTHING_ALONG, Along, Beat, Pulse
from horarium.stores.batches import run_identities, unlike
from horarium.stores.encoding import are_alike, as_written, comes_alone, decode_id, encode_id, encode_text
from horarium.stores.postgres.records import add_along, add_records
from horarium.stores.postgres.rows import (
    OWNER_COLUMN,
    QUEUE_COLUMN,
    alike_columns,
    change_columns,
    decode_runs,
    is_storable,
    storable,
)
from horarium.stores.postgres.session import Session

T = TypeVar("T")

NO_LOCK = "55P03"
MESSAGE_BYTES_MAX = 8_000_000
"""CockroachDB closes a connection that sends a message of more than 16 MiB."""
ERROR, HISTORY, RESULT_ALIKE = 12, 16, 5
"""Columns of changes, and of those that are alike."""


async def load(session: Session, rows: Sequence[Any]) -> list[Run]:
    """The runs of rows that begin with the columns of `runs` or `finished`."""
    queues = await session.queue_names([row[QUEUE_COLUMN] for row in rows])
    owners = await session.owners([row[OWNER_COLUMN] for row in rows])
    return decode_runs(rows, queues, owners)


@contextmanager
def keys_waited_for(runs: Sequence[Run]) -> Iterator[None]:
    """Around what adds these runs, perhaps on a connection of a caller's own. Raises Conflict for a unique key whose
    holder was waited for in vain."""
    try:
        yield
    except Exception as error:
        state = getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None)
        if state != NO_LOCK or all(run.unique_key is None for run in runs):
            raise
        raise Conflict(
            "unique_key: it is held by a run of a transaction that is under way and has not ended within 2 s; try it "
            "again once it has", field="unique_key"
        ) from error  # fmt: skip


async def add_runs(session: Session, runs: Sequence[Run], along: Along = NOTHING_ALONG) -> list[bool]:
    answers = await _add_runs(session, runs)
    await add_along(session, runs, answers, along)
    return answers


async def _add_runs(session: Session, runs: Sequence[Run]) -> list[bool]:
    answers: list[bool] = []
    for part in parts_to_add(runs):
        added = await session.insert_runs(in_order(part))
        if len(added) == len(part):
            answers.extend([True] * len(part))
        else:
            known = set(map(decode_id, added))
            answers.extend(run.id in known for run in part)
    return answers


def parts_to_add(runs: Sequence[Run]) -> Sequence[Sequence[Run]]:
    """Cut so that within a part no two are in each other's way: the order in which a part is inserted then decides
    nothing, and of two runs that can't both be, the first one given wins."""
    if len({run.id for run in runs}) == len(runs) and not any(run.unique_key is not None for run in runs):
        return [runs]
    return list(unlike(runs, run_identities))


def in_order(runs: Sequence[Run]) -> Sequence[Run]:
    """As they are inserted: two who add the same do not wait for each other in a circle. Runs of jobs without keys are
    left as they are; those who plan the same ones wait for the job."""
    if len(runs) == 1:
        return runs
    if any(run.unique_key is not None for run in runs):
        return sorted(runs, key=_key_and_id)
    return sorted(runs, key=_id) if runs[0].job_id is None and all(run.job_id is None for run in runs) else runs


async def get_runs(session: Session, ids: Sequence[str]) -> list[Run | None]:
    rows = await session.rows("get_runs", session.namespace_id, list(map(encode_id, ids)))
    by_id = {run.id: run for run in await load(session, rows)}
    return [by_id.get(run_id) for run_id in ids]


async def get_run_by_key(session: Session, unique_key: str) -> Run | None:
    rows = await session.rows("run_by_key", session.namespace_id, encode_text(unique_key))
    return next(iter(await load(session, rows)), None)


async def unfinished_runs(session: Session, job_ids: Sequence[str]) -> dict[str, list[Run]]:
    rows = await session.rows("unfinished_runs", session.namespace_id, storable(job_ids))
    found: dict[str, list[Run]] = {job_id: [] for job_id in job_ids}
    for run in await load(session, rows):
        assert run.job_id is not None
        found[run.job_id].append(run)
    return found


# ---- changes ----------------------------------------------------------------------------------------------------


def simply(changes: Sequence[RunChange]) -> str | None:
    """The statement that makes all of these, if it is one, which needs no transaction around it."""
    if changes[0].replaces or any(map(_follow_ups, changes)) or any(map(_records, changes)):
        return None
    names = set(_statements(changes).values())
    return names.pop() if len(names) == 1 and len(set(map(_run_id, changes))) == len(changes) else None


async def settle_simply(session: Session, name: str, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
    """As `settle_runs`, by this statement."""
    ordered = sorted(as_written(changes, steady), key=_run_id)
    written = await _write_part(session, name, ordered, steady)
    if all(written):
        return [True] * len(changes)
    known = {change.run.id for change, did in zip(ordered, written, strict=True) if did}
    return [change.run.id in known for change in changes]


async def settle_runs(session: Session, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
    if changes[0].replaces:
        await session.lock_runs(change.run.id for change in changes)
        return [await _replace_run(session, change) for change in changes]
    changes = as_written(changes, steady)
    alone = all(map(comes_alone, changes))
    parts = [list(changes)] if alone else list(_parts(changes))
    if len(parts) > 1 or len(set(_statements(changes).values())) > 1:
        await session.lock_runs(change.run.id for change in changes)
    write = _settle_part if alone else _settle_and_follow
    return [answer for part in parts for answer in await write(session, part, steady)]


async def _replace_run(session: Session, change: RunChange) -> bool:
    withdrawn = [encode_id(change.run.id)], [change.token]
    if not await session.rows("withdraw_runs", session.namespace_id, *withdrawn):
        return False
    await _add_runs(session, [change.run])
    await add_records(session, change.records)
    return True


def _parts(changes: Sequence[RunChange]) -> Iterator[list[RunChange]]:
    """Cut before a change of what followed from one before it."""
    part: list[RunChange] = []
    following: set[str] = set()
    for change in changes:
        if change.run.id in following:
            yield part
            part, following = [], set()
        part.append(change)
        following.update(run.id for run in change.follow_ups)
    yield part


async def _settle_and_follow(session: Session, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
    answers = await _settle_part(session, changes, steady)
    written = [change for change, did in zip(changes, answers, strict=True) if did]
    if follow_ups := [run for change in written for run in change.follow_ups]:
        await _add_runs(session, follow_ups)
    await add_records(session, (record for change in written for record in change.records))
    return answers


async def _settle_part(session: Session, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
    answers: list[bool] = [False] * len(changes)
    statements = _statements(changes)
    for wave in _waves(changes, [change.run.id for change in changes]):
        wave.sort(key=lambda numbered: numbered[1].run.id)
        for name in ("settle_runs", "finish_runs", "amend_runs"):
            part = [numbered for numbered in wave if statements[_states(numbered[1])] == name]
            if part:
                written = await _write_part(session, name, [change for _, change in part], steady)
                for (place, _), did in zip(part, written, strict=True):
                    answers[place] = did
    return answers


async def _write_part(session: Session, name: str, changes: Sequence[RunChange], steady: Instant) -> Sequence[bool]:
    """One statement, or several where it would be too large, and which of the changes were written."""
    if name == "finish_runs" and session.tells_alike and are_alike(changes):
        columns = alike_columns(changes)
        name = "finish_alike_of_jobs" if [True for each in changes if each.run.job_id is not None] else "finish_alike"
        if _is_too_large(columns[RESULT_ALIKE : RESULT_ALIKE + 1], changes):
            return await _write_halves(session, "finish_runs", changes, steady)
        written = await session.one(name, session.namespace_id, steady, *columns) or ()
    else:
        columns = change_columns(changes)
        if _is_too_large(columns[ERROR : HISTORY + 1], changes):
            return await _write_halves(session, name, changes, steady)
        rows = await session.rows(name, session.namespace_id, steady, *columns)
        written = (rows[0][0] or ()) if name == "finish_runs" else [row[0] for row in rows]
    if len(written) == len(changes):
        return [True] * len(changes)
    known = set(written)
    return [blob in known for blob in columns[0] or ()]


async def _write_halves(session: Session, name: str, changes: Sequence[RunChange], steady: Instant) -> Sequence[bool]:
    half = len(changes) // 2
    first = await _write_part(session, name, changes[:half], steady)
    return [*first, *await _write_part(session, name, changes[half:], steady)]


def _is_too_large(columns: Sequence[Any], changes: Sequence[RunChange]) -> bool:
    texts = (text for column in columns for text in column or () if isinstance(text, bytes))
    return len(changes) > 1 and sum(map(len, texts)) > MESSAGE_BYTES_MAX


_states = attrgetter("state", "run.state")
_run_id, _follow_ups, _records = attrgetter("run.id"), attrgetter("follow_ups"), attrgetter("records")
_id = attrgetter("id")


def _key_and_id(run: Run) -> tuple[str, str]:
    return run.unique_key or "", run.id


def _statements(changes: Sequence[RunChange]) -> dict[tuple[State, State], str]:
    """Which statement makes each kind of change, by the states before and after."""
    return {states: _statement(*states) for states in set(map(_states, changes))}


def _statement(before: State, after: State) -> str:
    if before not in UNFINISHED:
        assert after not in UNFINISHED, f"a run that is {before} can't be {after}"
        return "amend_runs"
    return "settle_runs" if after in UNFINISHED else "finish_runs"


def _waves(items: Sequence[T], keys: Sequence[str]) -> list[list[tuple[int, T]]]:
    """The items, numbered and in order, cut so that no key comes twice within a wave and each key's own stay in
    order."""
    numbered = list(enumerate(items))
    if len(set(keys)) == len(keys):
        return [numbered]
    waves: list[list[tuple[int, T]]] = []
    seen: dict[str, int] = {}
    for key, item in zip(keys, numbered, strict=True):
        place = seen[key] = seen.get(key, -1) + 1
        if place == len(waves):
            waves.append([])
        waves[place].append(item)
    return waves


# ---- leases -----------------------------------------------------------------------------------------------------


async def heartbeat_runs(session: Session, beats: Sequence[Beat], steady: Instant) -> list[Pulse | None]:
    pulses: list[Pulse | None] = [None] * len(beats)
    for wave in _waves(beats, [beat.run_id for beat in beats]):
        wave.sort(key=lambda item: item[1].run_id)
        ids = [encode_id(beat.run_id) for _, beat in wave]
        tokens, progress = [beat.token for _, beat in wave], [beat.progress for _, beat in wave]
        rows = await session.rows("heartbeat_runs", session.namespace_id, steady, ids, tokens, progress)
        found = {row[0]: Pulse(row[1], row[2]) for row in rows}
        for (place, _), blob in zip(wave, ids, strict=True):
            pulses[place] = found.get(blob)
    return pulses


async def overdue_runs(session: Session, now: Instant, limit: int, steady: Instant) -> tuple[list[Run], Instant | None]:
    shift = steady - now
    first: Instant | None = await session.one("next_overdue_at", session.namespace_id, -1, shift)
    if first is None or first > now:
        return [], first  # as nearly always: one statement says so
    runs = await load(session, await session.rows("overdue_runs", session.namespace_id, now, limit, shift))
    return runs, await session.one("next_overdue_at", session.namespace_id, now, shift)


# ---- forgetting -------------------------------------------------------------------------------------------------


async def prune_runs(session: Session, now: Instant, limit: int) -> int:
    count = await session.change("prune_runs", session.namespace_id, now, limit)
    await session.fold_job_counts()
    if await session.one("lock_owners", session.namespace_id):
        await session.change("delete_jobs", session.namespace_id, limit)
    return count


async def trim_runs(session: Session, job_id: str, keep: int, limit: int) -> int:
    if not is_storable(job_id):
        return 0
    return await session.change("trim_runs", session.namespace_id, job_id, keep, limit)
