"""Jobs and runs for tests: valid as they come, and as different from one another as they are numbered.

Everything is derived from its arguments, so that two calls with the same ones give equal values.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from msgspec.structs import replace

from horarium.clock import HOUR, SECOND, Instant
from horarium.model import HttpTarget, Job, Run, RunChange, State, run_id, uuid7

NOW: Instant = 1_800_000_000 * SECOND
"""2027-01-15T08:00:00Z, where tests begin."""

QUEUE = "http"
MILLISECOND = 1_000


def a_job(name: str = "job", **changes: Any) -> Job:
    """A job that nothing is planned for. Its id follows from its name."""
    job = Job(
        name=name,
        trigger={"type": "interval", "every_seconds": 60},
        target=HttpTarget(url="https://example.org/hook"),
        id=uuid7(NOW, _entropy(name)),
        anchor_at=NOW,
        planned_until=NOW,
        created_at=NOW,
        updated_at=NOW,
    )
    return replace(job, **changes)


def a_run(number: int = 0, of: Job | None = None, **changes: Any) -> Run:
    """A pending run, due at NOW. Its fire time, an hour before, grows with `number` by milliseconds, and so does its
    id. `of`: the job that it belongs to."""
    fire_at = NOW - HOUR + number * MILLISECOND
    identity = uuid7(fire_at, _entropy(f"run {number}")) if of is None else run_id(of.id, fire_at)
    run = Run(
        id=identity,
        queue=QUEUE if of is None else of.queue,
        fire_at=fire_at,
        due_at=NOW,
        created_at=NOW,
        job_id=None if of is None else of.id,
        job=None if of is None else of.name,
    )
    return replace(run, **changes)


def a_finished_run(number: int = 0, of: Job | None = None, **changes: Any) -> Run:
    """A run that completed at NOW and is kept for good."""
    return a_run(number, of, **{"state": State.COMPLETED, "attempt": 1, "token": 1, "finished_at": NOW, **changes})


def a_change(run: Run, *, held: bool | None = None, **changes: Any) -> RunChange:
    """Write these changes if the stored run still has the token and the state of `run`."""
    return RunChange(replace(run, **changes), run.token, run.state, held)


def completed(run: Run, *, held: bool | None = None) -> RunChange:
    """The change that completes a run at NOW."""
    return a_change(run, held=held, state=State.COMPLETED, finished_at=NOW, lease_expires_at=None)


def _entropy(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=10).digest()
