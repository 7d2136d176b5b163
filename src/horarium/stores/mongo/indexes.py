"""The schema: collections, and the indexes that each query counts on. Numbered, forward only, never edited.

Everything begins with the namespace `n`. Indexes are partial wherever they can be: what claiming, planning and rescuing
walk through holds unfinished work alone, however long history grows. States are numbers in the order of a run's life:
0 pending, 1 running, 2 cancelling (below 3: unfinished), 3 completed, 4 failed, 5 cancelled, 6 skipped.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

NAMES = ("runs", "jobs", "nodes", "gates", "schema", "records", "intents", "wakes", "health")
RUNS, JOBS, NODES, GATES, SCHEMA, RECORDS, INTENTS, WAKES, HEALTH = (f"horarium_{name}" for name in NAMES)

GATES_KEPT_SECONDS = 24 * 3600
"""How long the gate of a key or a job is kept without a claim."""

PENDING: dict[str, Any] = {"state": 0}
CLAIMED: dict[str, Any] = {"state": {"$gt": 0, "$lt": 3}}
UNFINISHED: dict[str, Any] = {"state": {"$lt": 3}}
ENDED: dict[str, Any] = {"state": {"$gt": 3}}
FINISHED: dict[str, Any] = {"state": {"$gt": 2}}
PRESENT: dict[str, Any] = {"$exists": True}


class Index(Struct, frozen=True):
    """One index. `where`: what it contains (None: everything)."""

    collection: str
    name: str
    keys: dict[str, int]
    where: dict[str, Any] | None = None
    unique: bool = False
    expire_seconds: int | None = None

    def model(self) -> dict[str, Any]:
        """As the server takes it."""
        spec: dict[str, Any] = {"name": self.name, "key": self.keys}
        if self.where is not None:
            spec["partialFilterExpression"] = self.where
        if self.unique:
            spec["unique"] = True
        if self.expire_seconds is not None:
            spec["expireAfterSeconds"] = self.expire_seconds
        return spec


class Migration(Struct, frozen=True):
    """One step of the schema. Applying it again must change nothing. `needs`: code must know the migration of this
    number to work on the schema; 0: any code can, since a step only adds (see `stores/migrations.py`)."""

    number: int
    name: str
    indexes: tuple[Index, ...]
    needs: int = 0


MIGRATIONS = (
    Migration(
        1,
        "schema",
        (
            Index(JOBS, "jobs_by_name", {"n": 1, "name": 1}, {"deleted": False}, unique=True),
            Index(JOBS, "jobs_due", {"n": 1, "next_fire_at": 1, "_id": 1}, {"deleted": False, "next_fire_at": PRESENT}),
            Index(JOBS, "jobs_labelled", {"n": 1, "labels": 1, "name": 1}, {"deleted": False, "labels": PRESENT}),
            Index(JOBS, "jobs_deleted", {"n": 1, "_id": 1}, {"deleted": True}),
            Index(JOBS, "jobs_ahead", {"n": 1, "planned_until": 1, "_id": 1}, {"deleted": False}),
            Index(JOBS, "jobs_trimmed", {"n": 1, "runs_kept": 1, "name": 1}, {"deleted": False, "runs_kept": PRESENT}),
            Index(JOBS, "jobs_counted", {"n": 1, "deleted": 1, "enabled": 1, "name": 1}),
            Index(JOBS, "jobs_by_finish", {"n": 1, "finished": 1, "name": 1}, {"deleted": False}),
            Index(RUNS, "runs_by_fire", {"n": 1, "job_id": 1, "fire_at": 1}, {"job_id": PRESENT}, unique=True),
            Index(RUNS, "runs_by_key", {"n": 1, "unique_key": 1}, {"unique_key": PRESENT}, unique=True),
            Index(RUNS, "runs_of_name", {"n": 1, "job": 1, "_id": 1}, {"job": PRESENT}),
            Index(RUNS, "runs_waiting", {"n": 1, "state": 1, "queue": 1, "due_at": 1}, PENDING),
            Index(RUNS, "runs_start_by", {"n": 1, "start_by": 1, "_id": 1}, {**PENDING, "start_by": PRESENT}),
            Index(RUNS, "runs_claimed", {"n": 1, "lease_expires_at": 1, "_id": 1}, CLAIMED),
            Index(RUNS, "runs_claimed_under", {"n": 1, "concurrency_key": 1}, {**CLAIMED, "concurrency_key": PRESENT}),
            Index(
                RUNS,
                "runs_unfinished",
                {"n": 1, "job_id": 1, "fire_at": 1, "_id": 1, "state": 1},
                {**UNFINISHED, "job_id": PRESENT},
            ),
            Index(RUNS, "runs_finished", {"n": 1, "job_id": 1, "_id": 1}, {**FINISHED, "job_id": PRESENT}),
            Index(RUNS, "runs_prunable", {"n": 1, "prune_at": 1, "_id": 1}, {**FINISHED, "prune_at": PRESENT}),
            # What may be held back, by what does so: of each gate the first run is found however many wait behind it.
            Index(
                RUNS,
                "runs_behind_gate",
                {"n": 1, "state": 1, "gated": 1, "queue": 1, "gate": 1, "due_at": 1, "_id": 1},
                {**PENDING, "gated": True},
            ),
            # What nothing holds back is found beside it.
            Index(
                RUNS, "runs_in_lane", {"n": 1, "queue": 1, "gated": 1, "priority": -1, "due_at": 1, "_id": 1}, PENDING
            ),
            Index(RUNS, "runs_of_queue", {"n": 1, "queue": 1, "_id": 1}),
            Index(RUNS, "runs_pending", {"n": 1, "_id": 1}, PENDING),
            # What went well is most of history: what did not has its own indexes, by state.
            Index(RUNS, "runs_ended", {"n": 1, "state": 1, "_id": 1}, ENDED),
            Index(RUNS, "runs_ended_of_queue", {"n": 1, "queue": 1, "state": 1, "_id": 1}, ENDED),
            Index(RUNS, "runs_ended_of_name", {"n": 1, "job": 1, "state": 1, "_id": 1}, {**ENDED, "job": PRESENT}),
            # Begins differently from `runs_of_name`, since no two indexes may have the same keys.
            Index(RUNS, "runs_unfinished_of_name", {"job": 1, "n": 1, "_id": 1}, {**UNFINISHED, "job": PRESENT}),
            Index(NODES, "nodes_by_name", {"n": 1, "name": 1}, unique=True),
            Index(GATES, "gates_used", {"used_at": 1}, expire_seconds=GATES_KEPT_SECONDS),
            Index(RECORDS, "records_labelled", {"n": 1, "labels": 1, "_id": 1}, {"labels": PRESENT}),
            Index(HEALTH, "jobs_failing", {"n": 1, "failing_since": 1}, {"failing_since": PRESENT}),
        ),
    ),
)
