"""What changes, withdrawals and additions do to runs, computed in memory inside a transaction, then written.

Stored rows are read in the transaction's snapshot; a concurrent write makes it start again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import Run, RunChange, State, leased
from horarium.model.records import Record
from horarium.stores.encoding import is_unmoved
from horarium.stores.mongo import queries
from horarium.stores.mongo.connect import new_mark
from horarium.stores.mongo.indexes import RUNS
from horarium.stores.mongo.records import AddRecords, add_records
from horarium.stores.mongo.rows import CHANGING, changing_columns, load_runs, run_document
from horarium.stores.mongo.session import Session
from horarium.stores.mongo.writes import deleting, replacing, updating


async def read_scene(session: Session, named: Sequence[Run], added: Sequence[Run], within: Any) -> Scene:
    """The stored runs that are `named`, or that may be in the way of those to be `added`."""
    if not (named or added):
        return Scene(())
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


async def write_scene(session: Session, scene: Scene, within: Any, add: AddRecords = add_records) -> None:
    """Removed, kept and new runs; and the records."""
    gone, kept, new = scene.outcome()
    mark = new_mark()
    kept.sort(key=_id_of)
    writes = [replacing(RUNS, run_document(session, run, mark)) for run in kept if scene.is_new(run)]
    changed = [run for run in kept if not scene.is_new(run)]
    if changed:
        keys = session.keys(run.id for run in changed)
        for some, change in queries.settle_runs(keys, changing_columns(changed), mark):
            writes.append(updating(RUNS, some, change))
    if gone:
        writes.insert(0, deleting(RUNS, session.keys(gone)))
    await session.write(writes, within)
    await session.insert(RUNS, [run_document(session, run, mark) for run in new], within)
    await add(session, scene.records, within)


def _id_of(run: Run) -> str:
    return run.id


class Scene:
    """Some stored runs, and what becomes of them. `keys` and `fires`: which id holds a unique key, a fire time."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._before = {run.id: run for run in runs}
        self._now = dict(self._before)
        self.keys = {run.unique_key: run.id for run in runs if run.unique_key is not None}
        self.fires = {(run.job_id, run.fire_at): run.id for run in runs if run.job_id is not None}
        self.records: list[Record] = []

    def change(self, change: RunChange, steady: Instant) -> bool:
        """Write a change, and what it brings along, unless its run has moved on."""
        if change.replaces:
            if withdrawn := self.withdraw(replace(change.run, token=change.token)):
                self.add(change.run)
                self.records += change.records
            return withdrawn
        stored = self._now.get(change.run.id)
        if stored is None or not is_unmoved(stored, change, steady):
            return False
        run = leased(change.run, steady)
        self._now[stored.id] = replace(stored, **{name: getattr(run, name) for name in CHANGING})
        for run in change.follow_ups:
            self.add(run)
        self.records += change.records
        return True

    def withdraw(self, read: Run) -> bool:
        """Delete a run that is still pending under the token that was read. Whether it was there so."""
        run = self._now.get(read.id)
        if run is None or run.state is not State.PENDING or run.token != read.token:
            return False
        del self._now[run.id]
        if run.unique_key is not None:
            del self.keys[run.unique_key]
        if run.job_id is not None:
            del self.fires[run.job_id, run.fire_at]
        return True

    def add(self, run: Run) -> bool:
        """Insert a run, unless its id, its unique key or its fire time is taken."""
        if run.id in self._now or run.unique_key in self.keys or (run.job_id, run.fire_at) in self.fires:
            return False
        self._now[run.id] = run
        if run.unique_key is not None:
            self.keys[run.unique_key] = run.id
        if run.job_id is not None:
            self.fires[run.job_id, run.fire_at] = run.id
        return True

    def is_new(self, run: Run) -> bool:
        """Whether more of it is new than a change may write."""
        before = self._before[run.id]
        return replace(before, **{name: getattr(run, name) for name in CHANGING}) != run

    def outcome(self) -> tuple[list[str], list[Run], list[Run]]:
        """The ids of deleted runs, the changed runs, and the new ones."""
        gone = [run_id for run_id in self._before if run_id not in self._now]
        kept = [run for run in self._now.values() if run.id in self._before and run is not self._before[run.id]]
        new = [run for run in self._now.values() if run.id not in self._before]
        return gone, kept, new
