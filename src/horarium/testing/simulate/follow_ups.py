"""What ought to follow from what happened to runs, worked out a second time: each follow-up once, and no other.

The books tell of every change of a run as it is written, and of every follow-up as it is added. What a change owes is
said here by the states alone, in other words than the rule's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from horarium.model import CLAIMED, UNFINISHED, Disposition, Follow, Job, Occasion, Run, State
from horarium.model.targets import FOLLOW_QUEUE, NOTIFY_QUEUE

ON = {
    "job-0": {
        "completed": [{"trigger": "job-1"}, {"notify": "ops"}],
        "failed": [{"notify": "ops"}, {"trigger": "job-2"}],
        "cancelled": [{"notify": "ops"}],
        "missed": [{"notify": "ops"}, {"trigger": "job-2", "payload": {"why": "missed"}}],
    },
    "job-1": {
        "completed": [{"trigger": "job-2", "payload": "result"}],
        "attempt_failed": [{"notify": "ops"}],
        "failed": [{"notify": "chat"}],
        "not_started": [{"notify": "ops"}],
    },
    "job-3": {"cancelled": [{"trigger": "job-2"}], "attempt_failed": [{"trigger": "job-4"}]},
}
"""What follows from the runs of each job. No job follows from itself, so every chain has an end."""


class FollowUps:
    """What is owed, and what was made."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        self._owed: set[str] = set()
        self._made: dict[str, int] = {}

    def changed(self, old: Run | None, new: Run, job: Job | None) -> None:
        """A run of this job was written."""
        if job is not None:
            self._owed.update(_keys(old, new, job))

    def added(self, run: Run, job: Job | None) -> None:
        """A run was added, perhaps one that follows."""
        self.changed(None, run, job)
        if run.queue not in (NOTIFY_QUEUE, FOLLOW_QUEUE) or run.unique_key is None:
            return
        self._made[run.unique_key] = self._made.get(run.unique_key, 0) + 1

    def check(self, exact: bool) -> None:
        """Compare the two. `exact` is false where the clock was stepped: then one may be made that nothing owes."""
        for key in sorted(self._owed - self._made.keys()):
            self._fail(f"follow-up {key} is owed and was never made")
        for key, times in sorted(self._made.items() if exact else ()):
            if times > 1 or key not in self._owed:
                self._fail(f"follow-up {key} was made {times} times, and is owed {int(key in self._owed)} times")


def _keys(old: Run | None, new: Run, job: Job) -> Iterator[str]:
    heard: set[str | None] = set()
    for part, occasion in _happened(old, new):
        for follow in job.on.get(occasion, ()):
            if follow.notify is None or follow.notify not in heard:
                yield f"{new.id}/{part}/{_action(follow)}"
            heard.add(follow.notify)


def _happened(old: Run | None, new: Run) -> list[tuple[str, Occasion]]:
    attempt = (f"attempt_failed.{new.attempt}", Occasion.ATTEMPT_FAILED)
    if old is None:
        missed = new.disposition is Disposition.MISSED
        return [("missed", Occasion.MISSED)] if missed else []
    if old.state not in UNFINISHED or new.state is old.state or new.disposition is Disposition.WITHDRAWN:
        return []
    match new.state:
        case State.COMPLETED:
            return [("completed", Occasion.COMPLETED)]
        case State.CANCELLED:
            return [("cancelled", Occasion.CANCELLED)]
        case State.FAILED if old.state is State.PENDING:
            return [("not_started", Occasion.NOT_STARTED), ("failed", Occasion.FAILED)]
        case State.FAILED:
            return [("failed", Occasion.FAILED), attempt]
        case State.PENDING if old.state in CLAIMED and new.attempt == old.attempt:
            return [attempt]
        case _:
            return []


def _action(follow: Follow) -> str:
    return f"notify:{follow.notify}" if follow.trigger is None else f"trigger:{follow.trigger}"
