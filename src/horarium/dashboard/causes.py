"""The cause behind a line of the verdict, as a person takes note of it: since when, and of what sort."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from horarium.clock import Instant
from horarium.dashboard.marks import error_sort
from horarium.model import Health, Node, Run, State
from horarium.model.channels import Untold
from horarium.operations.deciding.acknowledging import Acknowledged, Cause
from horarium.ports import QueueStats

T = TypeVar("T")


def parted(
    acks: Mapping[str, Acknowledged], now: Instant, items: Iterable[T], cause_of: Callable[[T], Cause]
) -> tuple[list[T], list[T]]:
    """Those that are open, and those that are acknowledged."""
    both: tuple[list[T], list[T]] = ([], [])
    for item in items:
        cause = cause_of(item)
        ack = acks.get(cause.key)
        both[ack is not None and ack.covers(cause, now)].append(item)
    return both


def failing(name: str, health: Health) -> Cause:
    """A job that fails, since its first failure in a row, with this error."""
    last = health.last_run
    assert last is not None
    sort = error_sort(last.error) if last.state is State.FAILED else ""
    return Cause(f"failing/{name}", health.failing_since or last.finished_at, sort)


def by_error(ill: Mapping[str, Health], acks: Mapping[str, Acknowledged]) -> list[list[str]]:
    """The jobs by the error that they fail with, and by the words of who took note; those of most jobs first, else as
    they were."""
    groups: dict[object, list[str]] = {}
    for name, health in ill.items():
        cause, last = failing(name, health), health.last_run
        ack, alone = acks.get(cause.key), not cause.sort or last is None or not last.error
        groups.setdefault(name if alone else (cause.sort, ack and (ack.by, ack.reason)), []).append(name)
    return sorted(groups.values(), key=lambda names: -len(names))


def late(name: str, run: Run) -> Cause:
    """A job of which this run is late."""
    return Cause(f"late/{name}", run.due_at)


def untold(name: str, untold: Untold) -> Cause:
    """A channel that does not take messages, since the first that it did not take."""
    return Cause(f"undelivered/{name}", untold.since, error_sort(untold.error))


def lost(node: Node) -> Cause:
    """A node without a sign of life."""
    return Cause(f"lost/{node.name}", node.beat_at)


def unserved(queue: QueueStats, now: Instant) -> Cause:
    """A queue that no worker serves, for as long as its oldest run waits."""
    return Cause(f"unserved/{queue.queue}", now if queue.oldest_due_at is None else queue.oldest_due_at)
