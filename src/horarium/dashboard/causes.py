"""The acknowledged causes among those behind the lines of the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from horarium.clock import Instant
from horarium.model import Health
from horarium.operations.deciding.acknowledging import Acknowledged, Cause
from horarium.operations.looking.attending import of_failing

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


def by_error(ill: Mapping[str, Health], acks: Mapping[str, Acknowledged]) -> list[list[str]]:
    """The jobs by the error that they fail with, and by the words of who took note; those of most jobs first, else as
    they were."""
    groups: dict[object, list[str]] = {}
    for name, health in ill.items():
        cause, last = of_failing(name, health), health.last_run
        ack, alone = acks.get(cause.key), not cause.sort or last is None or not last.error
        groups.setdefault(name if alone else (cause.sort, ack and (ack.by, ack.reason)), []).append(name)
    return sorted(groups.values(), key=lambda names: -len(names))
