"""A claimed run as its function sees it, and how its end is reported."""

from __future__ import annotations

import os
import threading
import traceback
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from horarium.client.answers import Report, as_text
from horarium.client.api import Client
from horarium.client.lines import Lines
from horarium.clock import to_datetime
from horarium.model import ERROR_CHARS_MAX, RESULT_BYTES_MAX
from horarium.wire.views import RunView

LEASE_SECONDS_MIN = 1.0
REASON_CHARS_MAX = 1_000


class Failure(Exception):
    """Raised by the function of a worker: the attempt failed, with exactly this error, and with a result besides."""

    def __init__(self, error: str, *, retryable: bool = True, result: Any = UNSET) -> None:
        super().__init__(error)
        self.retryable = retryable
        self.result = result


class CancelEvent(threading.Event):
    """An event that knows whether the work has seen it set."""

    seen = False

    def is_set(self) -> bool:
        return self._note(super().is_set())

    def wait(self, timeout: float | None = None) -> bool:
        return self._note(super().wait(timeout))

    def _note(self, asked: bool) -> bool:
        self.seen = self.seen or asked
        return asked


class ClaimedRun:
    """A run as the function that performs it sees it. `cancel_requested`: it should end soon, be it that a cancel was
    asked, that its lease is lost, or that its worker stops and can't wait. A function that has seen it, and returns,
    has stopped: it is taken as though it had raised."""

    def __init__(self, view: RunView, client: Client, now: float, lines: Lines | None = None) -> None:
        assert not isinstance(view.lease, UnsetType), "a claimed run has a lease"
        self.view = view
        self.token = view.lease.token
        self.cancel_requested = CancelEvent()
        self.stops = False
        self.lease_lost = False
        self.worker_stops = False
        self._client = client
        self._lines = lines
        begun_at = view.started_at or view.lease.expires_at
        self.lease_seconds = max((view.lease.expires_at - begun_at).total_seconds(), LEASE_SECONDS_MIN)
        self._expired_at = view.lease.expires_at
        self.lease_ends = now + self.lease_seconds
        self.beat_at = now + self.lease_seconds / 3

    @property
    def id(self) -> str:
        """The run's id: the same for every attempt, so it serves as idempotency key."""
        return self.view.id

    @property
    def job(self) -> str | None:
        """The name of its job; None for a one-off run."""
        return self.view.job

    @property
    def queue(self) -> str:
        """Its queue, as workers name theirs."""
        return self.view.queue.removeprefix("pull/")

    @property
    def payload(self) -> Any:
        """The payload of the run, or else of its job."""
        return self.view.payload

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.view.attempt

    @property
    def fire_at(self) -> datetime:
        """The fire time for which the run is owed."""
        return self.view.fire_at

    def heartbeat(self, progress: Any = UNSET) -> None:
        """Keep `progress` with the run, and renew the lease (which also happens by itself). Raises LeaseLost."""
        if self._client.heartbeat(self.id, self.token, progress).cancel_requested:
            self.cancel()

    def log(self, text: str, stream: str = "log") -> None:
        """Add lines to the run's log, where all can read them at once. Never waits, never fails."""
        if self._lines is not None:
            self._lines.add(self, stream, text)

    def renewed(self, expires_at: datetime, now: float) -> None:
        """The lease lasts until `expires_at`, which is counted from its first end: the server's clock is not ours, and
        may jump. One that can't be renewed beyond the run's time limit is looked at again just when it ends."""
        left = self.lease_ends + (expires_at - self._expired_at).total_seconds() - now
        self.lease_ends = now + (left if abs(left) <= self.lease_seconds else self.lease_seconds)
        self._expired_at = expires_at
        self.beat_at = min(self.beat_at, max(self.lease_ends, now + self.lease_seconds / 30))

    def cancel(self) -> None:
        """A cancel was asked."""
        self.worker_stops = False
        self._ask()

    def give_up(self) -> None:
        """Its worker stops, and can't wait: what it leaves undone is done by another attempt."""
        self.worker_stops = not self.stops
        self._ask()

    def lose(self) -> None:
        """Its lease is lost: stop, and report nothing."""
        self.lease_lost = True
        self._ask()

    def _ask(self) -> None:
        self.stops = True
        self.cancel_requested.set()

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.job or self.queue}, attempt {self.attempt}>"


def report_of(run: ClaimedRun, outcome: str, **fields: Any) -> Report:
    texts = {name: as_text(value) for name, value in fields.items() if isinstance(value, str)}
    return Report(id=run.id, token=run.token, outcome=outcome, **{**fields, **texts})


def words_of(error: BaseException) -> str:
    """What an error says, if it can say anything."""
    if isinstance(error, SystemExit):
        return f"it called exit({error.code})"
    with suppress(Exception):
        if text := as_text(str(error)):
            return text
    return type(error).__name__


def completed(run: ClaimedRun, result: Any) -> Report:
    if result is None:
        return report_of(run, "completed")
    try:
        text = _as_json(result)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return report_of(run, "failed", error=f"its result can't be written as JSON: {error}", retryable=False)
    if len(text) > RESULT_BYTES_MAX:
        begins = text[: RESULT_BYTES_MAX // 4].decode(errors="replace")
        return report_of(run, "completed", result={"truncated": True, "bytes": len(text), "begins": begins})
    return report_of(run, "completed", result=msgspec.Raw(text))


def _as_json(result: Any) -> bytes:
    text = msgspec.json.encode(result)
    text.decode()
    return text


def failed(run: ClaimedRun, error: BaseException) -> Report:
    from horarium import Defer, Discard, Retry
    from horarium.rules.settling import RETRY_AFTER_SECONDS_MAX

    text = words_of(error)[:ERROR_CHARS_MAX]
    match error:
        case SystemExit() | Retry(after_seconds=None):
            return report_of(run, "failed", error=text)
        case Retry(after_seconds=float() | int() as seconds):
            pause = min(max(float(seconds), 0.0), float(RETRY_AFTER_SECONDS_MAX))
            return report_of(run, "failed", error=text, retry_after_seconds=pause)
        case Discard():
            return report_of(run, "failed", error=text, retryable=False)
        case Defer(until=until):
            return report_of(run, "deferred", until=to_datetime(until), reason=text[:REASON_CHARS_MAX])
    if run.worker_stops:
        text = f"its worker stopped: {text}"[:ERROR_CHARS_MAX]
    elif run.stops:
        return report_of(run, "cancelled", reason=f"stopped when asked to: {text}"[:REASON_CHARS_MAX])
    elif not isinstance(error, Failure):
        text = _described(error)[:ERROR_CHARS_MAX]
    if isinstance(error, Failure):
        result = error.result
        try:
            _as_json(None if isinstance(result, UnsetType) else result)
        except (TypeError, ValueError, OverflowError, RecursionError) as unwritable:
            text, result = f"{text} (its result can't be written as JSON: {unwritable})"[:ERROR_CHARS_MAX], UNSET
        return report_of(run, "failed", error=text, retryable=error.retryable, result=result)
    return report_of(run, "failed", error=text)


def _described(error: BaseException) -> str:
    """The error in one line, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {words_of(error)}{where}"
