"""Jobs: what `ports.Store` says of them, as functions on a session.

Plans are carried out in one transaction for the batch. First it is hoped that every job still has the version that was
read and that no run is in the way: then nothing need be read at all. If that fails, mostly since another node has
planned the same jobs, nothing is written, and the batch is gone through plan by plan: what is stored is read in one
snapshot, the effect of each plan is worked out in memory, and what came of it is written. Whatever others write
meanwhile makes the transaction start again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import Job, Plan, Run, RunChange, State
from horarium.ports import JobFilter, Page
from horarium.stores.mongo import queries
from horarium.stores.mongo.connect import delete_many, duplicates, new_mark, replace_one
from horarium.stores.mongo.rows import CHANGING, job_document, load_job, load_runs, run_document
from horarium.stores.mongo.runs import insert
from horarium.stores.mongo.session import TRIES_MAX, Contended, Lost, Session


async def add_jobs(session: Session, jobs: Sequence[Job]) -> list[bool]:
    return await insert(session.jobs, [job_document(session, job, job.version) for job in jobs])


async def get_jobs(session: Session, names: Sequence[str]) -> list[Job | None]:
    found = await session.find(queries.get_jobs(session, names))
    by_name = {document["name"]: load_job(document) for document in found}
    return [by_name.get(name) for name in names]


async def get_jobs_by_id(session: Session, ids: Sequence[str]) -> list[Job | None]:
    by_id = await jobs_by_id(session, ids)
    return [by_id.get(job_id) for job_id in ids]


async def jobs_by_id(session: Session, ids: Sequence[str]) -> dict[str, Job]:
    """Those that exist."""
    if not ids:
        return {}
    found = await session.find(queries.get_jobs_by_id(session, ids))
    return {job.id: job for job in map(load_job, found)}


async def list_jobs(session: Session, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
    found = [load_job(document) for document in await session.find(queries.list_jobs(session, where, after), limit + 1)]
    more = len(found) > limit > 0
    return Page(tuple(found[:limit]), found[limit - 1].name if more else None)


async def due_jobs(session: Session, until: Instant, limit: int) -> tuple[list[Job], Instant | None]:
    async with session.at_one_instant() as instant:
        found = await session.find(queries.due_jobs(session, until), limit + 1, within=instant)
        if len(found) > limit:
            return [load_job(document) for document in found[:limit]], int(found[limit]["next_fire_at"])
        beyond: Instant | None = await session.first(queries.next_job_at(session, until), within=instant)
    return [load_job(document) for document in found], beyond


# ---- plans ------------------------------------------------------------------------------------------------------


TRIES_DIVIDED = 3
"""How often a part of a batch is tried, when the whole was in vain."""


async def commit_plans(session: Session, plans: Sequence[Plan], now: Instant, tries: int = TRIES_MAX) -> list[bool]:
    """A job that somebody else is writing must not hinder the others: the batch is halved until it stands alone, and
    its plan loses."""
    try:
        return await _commit_together(session, plans, now, tries)
    except Contended:
        if len(plans) == 1:
            return [False]
    half = len(plans) // 2
    first = await commit_plans(session, plans[:half], now, TRIES_DIVIDED)
    return [*first, *await commit_plans(session, plans[half:], now, TRIES_DIVIDED)]


async def _commit_together(session: Session, plans: Sequence[Plan], now: Instant, tries: int) -> list[bool]:
    if _is_simple(plans):
        try:
            return await session.attempt(lambda within: _commit_all(session, plans, within))
        except (Lost, Contended):
            pass
    return await session.transaction(lambda within: _commit_each(session, plans, now, within), tries=tries)


def _is_simple(plans: Sequence[Plan]) -> bool:
    """Whether the plans only add runs, each to a job of its own."""
    if any(plan.changes or plan.withdrawals for plan in plans):
        return False
    return len({plan.job.id for plan in plans}) == len(plans)


async def _commit_all(session: Session, plans: Sequence[Plan], within: Any) -> list[bool]:
    if await _write_jobs(session, plans, within) != len(plans):
        raise Lost
    mark = new_mark()
    documents = [run_document(session, run, mark) for plan in plans for run in plan.runs]
    if documents:
        try:
            await session.runs.insert_many(documents, session=within)
        except Exception as error:
            if duplicates(error) is None:
                raise
            raise Lost from error
    return [True] * len(plans)


async def _write_jobs(session: Session, plans: Sequence[Plan], within: Any) -> int:
    """Compare and set. How many still had the version that was read."""
    writes = [
        replace_one(
            {"_id": session.key(plan.job.id), "version": plan.job.version},
            job_document(session, plan.job, plan.job.version + 1),
        )
        for plan in sorted(plans, key=_job_id_of)
    ]
    return int((await session.jobs.bulk_write(writes, session=within)).matched_count)


def _job_id_of(plan: Plan) -> str:
    return plan.job.id


async def _commit_each(session: Session, plans: Sequence[Plan], now: Instant, within: Any) -> list[bool]:
    jobs = await session.find(queries.job_versions(session, (plan.job.id for plan in plans)), within=within)
    versions = {document["_id"]: document["version"] for document in jobs}
    carried_out: list[Plan] = []
    answer: list[bool] = []
    for plan in plans:
        key = session.key(plan.job.id)
        answer.append(versions.get(key) == plan.job.version)
        if answer[-1]:
            versions[key] += 1
            carried_out.append(plan)
    if carried_out:
        await _replace_jobs(session, carried_out, within)
        await _follow(session, carried_out, now, within)
    return answer


async def _replace_jobs(session: Session, plans: Sequence[Plan], within: Any) -> None:
    """As the last plan of each says."""
    last = {plan.job.id: plan for plan in plans}
    documents = [job_document(session, last[job_id].job, last[job_id].job.version + 1) for job_id in sorted(last)]
    writes = [replace_one({"_id": document["_id"]}, document) for document in documents]
    await session.jobs.bulk_write(writes, session=within)


async def _follow(session: Session, plans: Sequence[Plan], now: Instant, within: Any) -> None:
    """What the plans do to runs: worked out in memory, then written: what goes, what stays, what comes."""
    scene = await _read_scene(session, plans, within)
    for plan in plans:
        for change in plan.changes:
            scene.change(change, now)
        for run in plan.withdrawals:
            scene.withdraw(run)
        for run in plan.runs:
            scene.add(run)
    gone, kept, new = scene.outcome()
    mark = new_mark()
    writes = [
        replace_one({"_id": session.key(run.id)}, run_document(session, run, mark)) for run in sorted(kept, key=_id_of)
    ]
    if gone:
        writes.insert(0, delete_many({"_id": {"$in": session.keys(gone)}}))
    if writes:
        await session.runs.bulk_write(writes, session=within)
    if new:
        await session.runs.insert_many([run_document(session, run, mark) for run in new], session=within)


def _id_of(run: Run) -> str:
    return run.id


async def _read_scene(session: Session, plans: Sequence[Plan], within: Any) -> Scene:
    """The stored runs that the plans name, or that may be in the way of what they add."""
    added = [run for plan in plans for run in plan.runs]
    named = [change.run for plan in plans for change in plan.changes]
    named += [run for plan in plans for run in plan.withdrawals]
    found = await session.find(queries.get_runs(session, (run.id for run in [*added, *named])), within=within)
    scene = Scene(load_runs(session, found))
    if keys := sorted({run.unique_key for run in added if run.unique_key is not None}):
        holders = await session.find(queries.run_by_key(session, keys), within=within)
        scene.keys.update({run.unique_key: run.id for run in load_runs(session, holders) if run.unique_key is not None})
    owned = [run for run in added if run.job_id is not None]
    if owned:
        fires = [run.fire_at for run in owned]
        query = queries.runs_by_fire(session, (run.job_id or "" for run in owned), min(fires), max(fires))
        for document in await session.find(query, within=within):
            scene.fires[document["job_id"], int(document["fire_at"])] = document["_id"][len(session.prefix) :]
    return scene


class Scene:
    """Some stored runs, and what becomes of them. `keys` and `fires`: which id holds a unique key, a fire time."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._before = {run.id: run for run in runs}
        self._now = dict(self._before)
        self.keys = {run.unique_key: run.id for run in runs if run.unique_key is not None}
        self.fires = {(run.job_id, run.fire_at): run.id for run in runs if run.job_id is not None}

    def change(self, change: RunChange, now: Instant) -> None:
        """Write a change, unless its run has moved on."""
        stored = self._now.get(change.run.id)
        if stored is not None and _unmoved(stored, change, now):
            self._now[stored.id] = replace(stored, **{name: getattr(change.run, name) for name in CHANGING})

    def withdraw(self, read: Run) -> None:
        """Delete a run that is still pending under the token that was read."""
        run = self._now.get(read.id)
        if run is None or run.state is not State.PENDING or run.token != read.token:
            return
        del self._now[run.id]
        if run.unique_key is not None:
            del self.keys[run.unique_key]
        if run.job_id is not None:
            del self.fires[run.job_id, run.fire_at]

    def add(self, run: Run) -> None:
        """Insert a run, unless its id, its unique key or its fire time is taken."""
        if run.id in self._now or run.unique_key in self.keys or (run.job_id, run.fire_at) in self.fires:
            return
        self._now[run.id] = run
        if run.unique_key is not None:
            self.keys[run.unique_key] = run.id
        if run.job_id is not None:
            self.fires[run.job_id, run.fire_at] = run.id

    def outcome(self) -> tuple[list[str], list[Run], list[Run]]:
        """The ids that are gone, the runs that are other than before, and the new ones."""
        gone = [run_id for run_id in self._before if run_id not in self._now]
        kept = [run for run in self._now.values() if run.id in self._before and run is not self._before[run.id]]
        new = [run for run in self._now.values() if run.id not in self._before]
        return gone, kept, new


def _unmoved(stored: Run, change: RunChange, now: Instant) -> bool:
    if stored.token != change.token or stored.state is not change.state:
        return False
    if change.held is None:
        return True
    return stored.lease_expires_at is not None and (stored.lease_expires_at > now) is change.held
