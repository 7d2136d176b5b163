"""Which topics are published after a write, so that those who wait need not poll."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from horarium.model import Job, Plan, Run, State
from horarium.ports import CANCEL, JOBS, Signal, Topic, queue_topic
from horarium.rules.joins import is_join
from horarium.rules.reconciling import asks_to_stop

JOINS, JOIN_ENDS = Topic("joins"), Topic("join-ends")
"""A job that follows from runs of others was defined or edited; runs have ended from which some follow."""
_PENDING = State.PENDING


def announce_runs(signal: Signal, runs: Iterable[Run]) -> None:
    """There is something to claim."""
    for queue in sorted({run.queue for run in runs if run.state is _PENDING}):
        signal.publish(queue_topic(queue))


def announce_jobs(signal: Signal, jobs: Iterable[Job]) -> None:
    """Jobs were defined or changed."""
    signal.publish(JOBS)
    if any(map(is_join, jobs)):
        signal.publish(JOINS)


def announce(signal: Signal, plans: Sequence[Plan]) -> None:
    """These plans were carried out."""
    announce_runs(signal, (run for planned in plans for run in planned.runs))
    if any(map(asks_to_stop, plans)):
        signal.publish(CANCEL)
