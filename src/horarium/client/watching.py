"""The calls of the REST API that look at runs closely: what they say, and why they ran or did not."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from horarium.client.transport import API, Transport, segment
from horarium.model import UNFINISHED
from horarium.wire.views import RunView

LOG_WAIT_SECONDS = 15.0
RUN_WAIT_SECONDS = 50.0
"""Of one request; another follows."""


class Line(Struct, frozen=True):
    """One line of a run's log, as it is reported."""

    text: str
    stream: str = "stdout"
    at: datetime | None = None


class LogLine(Struct, frozen=True):
    """One line of a run's log, as it is read."""

    at: datetime
    stream: str
    text: str


class LogPage(Struct, frozen=True):
    """Lines of a run's log. `next_cursor`: where to go on; None once the run is over and all of it was read."""

    items: list[LogLine]
    next_cursor: str | None


class Explained(Struct, frozen=True):
    """Why a job ran, did not run, will run or will not run at an instant."""

    at: datetime
    fires: bool
    reason: str
    previous: datetime | None
    next: datetime | None
    disposition: str | UnsetType = UNSET
    run: RunView | UnsetType = UNSET
    missing: tuple[str, ...] = ()


class Watching:
    """A part of `Client`."""

    _transport: Transport

    def get_run(self, run_id: str, wait_seconds: float = 0.0) -> RunView:
        """The run of that id; with `wait_seconds` (at most 60), once it is over or that time has passed. Raises
        NotFound."""
        path, query = f"/runs/{segment(run_id)}", {"wait_seconds": wait_seconds or None}
        seconds = wait_seconds + 15.0 if wait_seconds else None
        return self._transport.call("GET", path, RunView, query=query, timeout_seconds=seconds)

    def wait_for(self, run_id: str, timeout: float | None = None) -> RunView:
        """The run, once it is over. `timeout` in seconds; left out: wait on. Raises NotFound, and TimeoutError where it
        is not over by then; the run goes on."""
        began = time.monotonic()
        while True:
            left = RUN_WAIT_SECONDS if timeout is None else began + timeout - time.monotonic()
            run = self.get_run(run_id, max(0.0, min(left, RUN_WAIT_SECONDS)))
            if run.state not in UNFINISHED:
                return run
            if timeout is not None and time.monotonic() >= began + timeout:
                raise TimeoutError(f"run {run_id} is still {run.state} after {timeout:g} s")

    def log(self, run_id: str, token: int, lines: Sequence[str | Line], *, within_seconds: float | None = None) -> None:
        """Add up to 1,000 lines to the log of a claimed run. Raises LeaseLost. `within_seconds`: one try only."""
        attempts = None if within_seconds is None else 1
        body = {"token": token, "lines": list(lines)}
        path = f"/runs/{segment(run_id)}/log"
        self._transport.request(
            "POST", API + path, body=body, repeatable=False, timeout_seconds=within_seconds, attempts_max=attempts
        )

    def run_log(self, run_id: str, after: str | None = None, wait_seconds: float = 0.0) -> LogPage:
        """Lines of a run since `after` (the `next_cursor` of the page before). With `wait_seconds`, at most 20, the
        answer comes as soon as there is a line."""
        query = {"after": after, "wait_seconds": wait_seconds}
        return self._transport.call("GET", f"/runs/{segment(run_id)}/log", LogPage, query=query)

    def follow_log(self, run_id: str, *, follow: bool = True) -> Iterator[LogLine]:
        """All that a run has said, and, with `follow`, what it says until it is over."""
        cursor: str | None = None
        while True:
            page = self.run_log(run_id, cursor, LOG_WAIT_SECONDS if follow and cursor is not None else 0.0)
            yield from page.items
            if page.next_cursor is None or (not follow and not page.items):
                return
            cursor = page.next_cursor

    def upcoming(
        self, since: datetime | None = None, until: datetime | None = None, limit: int = 100
    ) -> dict[str, Any]:
        """The next fire times of all jobs: `items` with `job` and `fire_at`, and whether that was `truncated`."""
        query = {"since": since, "until": until, "limit": limit}
        return self._transport.call("GET", "/upcoming", dict, query=query)

    def explain(self, name: str, at: datetime | None = None) -> Explained:
        """Why the job ran, did not run, will run or will not run then (left out: now)."""
        return self._transport.call("GET", f"/jobs/{segment(name)}/explain", Explained, query={"at": at})

    def explain_span(self, name: str, since: datetime, until: datetime) -> Iterator[Explained]:
        """The same for each fire time of a span, those that the rule excludes too."""
        return self._transport.items(f"/jobs/{segment(name)}/explain", Explained, {"since": since, "until": until})
