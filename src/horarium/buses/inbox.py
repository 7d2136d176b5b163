"""The way back: the jobs whose reports are wanted, and the reports that have been received and not taken yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from horarium.ports import Report


class Interest:
    """The jobs whose reports are wanted: those listed, and those of which an action was published. `changed` is set
    with every change, for the session to clear."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.over = False
        self._listed: frozenset[str] = frozenset()
        self._published: set[str] = set()

    @property
    def jobs(self) -> set[str]:
        return set() if self.over else {*self._listed, *self._published}

    def list_jobs(self, jobs: Iterable[str]) -> None:
        """These, instead of those listed before."""
        listed = frozenset(jobs)
        if listed != self._listed:
            self._listed = listed
            self._published -= listed
            self.changed.set()

    def add(self, job: str) -> None:
        """An action of this job is published."""
        if job not in self._listed and job not in self._published:
            self._published.add(job)
            self.changed.set()

    def end(self) -> None:
        """No report is wanted any more."""
        self.over = True
        self.changed.set()


class Inbox:
    """Reports in the order in which they came. `wake` is called when the first of them comes in."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._reports: deque[Report] = deque()

    def __len__(self) -> int:
        return len(self._reports)

    def add(self, report: Report) -> None:
        self._reports.append(report)
        if len(self._reports) == 1:
            self.wake()

    def take(self, limit: int) -> list[Report]:
        count = min(limit, len(self._reports))
        return [self._reports.popleft() for _ in range(count)]

    def clear(self) -> None:
        self._reports.clear()
