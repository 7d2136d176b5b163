"""Which topics are published after a write, so that those who wait need not poll."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from horarium.model import Plan, Run, State
from horarium.ports import CANCEL, Signal, queue_topic
from horarium.rules.reconciling import asks_to_stop


def announce_runs(signal: Signal, runs: Iterable[Run]) -> None:
    """There is something to claim."""
    for queue in sorted({run.queue for run in runs if run.state is State.PENDING}):
        signal.publish(queue_topic(queue))


def announce(signal: Signal, plans: Sequence[Plan]) -> None:
    """These plans were carried out."""
    announce_runs(signal, (run for planned in plans for run in planned.runs))
    if any(map(asks_to_stop, plans)):
        signal.publish(CANCEL)
