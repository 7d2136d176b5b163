"""Closer looks for programs: logs of runs, and why jobs ran or did not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from math import isnan
from typing import Any, TypeVar, overload

import msgspec
from msgspec import Struct

from horarium.clock import moment, to_datetime, to_instant
from horarium.delivery.arguments import made_of
from horarium.errors import InvalidRequest, StateConflict
from horarium.library.named import Part
from horarium.library.one_offs import delay_seconds
from horarium.library.values import Run, Stats, id_of, stats_of
from horarium.model import State, in_wall_time, shown_state
from horarium.triggers.words import nearest, quote

T = TypeVar("T")


class LogLine(Struct, frozen=True):
    """One line of a run's log."""

    at: datetime
    stream: str
    text: str


class Explained(Struct, frozen=True):
    """Why a job ran, did not run, will run or will not run at an instant. `fires`: whether it did or will. `previous`
    and `next`: the fire times of its rule around it. `missing`: the jobs whose run has not come in its window."""

    at: datetime
    fires: bool
    reason: str
    disposition: str | None
    run: Run | None
    previous: datetime | None
    next: datetime | None
    missing: tuple[str, ...] = ()


def states_of(given: State | str | Sequence[State | str]) -> frozenset[State]:
    """The states that are asked for: one, or several. Raises InvalidRequest, which names the nearest."""
    names = [given] if isinstance(given, str) else given
    known = [str(state) for state in State]
    for name in names:
        if name not in known:
            raise InvalidRequest(
                f"states: {quote(str(name))} is none of {', '.join(known)}{nearest(str(name), known)}", field="states"
            )
    return frozenset(map(State, names))


def timeout_seconds(timeout: timedelta | float | None) -> float | None:
    """A timeout in seconds. Raises InvalidRequest for any other value."""
    seconds = None if timeout is None else delay_seconds(timeout, "timeout")
    if seconds is not None and isnan(seconds):
        raise InvalidRequest("timeout: nan is no time", field="timeout")
    return seconds


class Looking(Part):
    """Runs, looked at closely."""

    async def wait_for(self, run_id: Run | str, timeout: float | timedelta | None = None) -> Run:
        """The run, once it is over: completed, failed, cancelled or skipped. `timeout` in seconds; left out: wait on.
        Raises NotFound, and TimeoutError where it is not over by then; the run goes on."""
        seconds = timeout_seconds(timeout)
        run = await self._operations.waiting.until_over(id_of(run_id), seconds)
        if not run.finished:
            over = "the scheduler stopped" if seconds is None else f"after {seconds:g} s"
            raise TimeoutError(f"run {run.id} is still {shown_state(run)}: {over}")
        return Run(run)

    async def run_log(self, run_id: Run | str) -> list[LogLine]:
        """All that a run has said so far, as far as it is kept. Raises NotFound."""
        from horarium.operations.runs.logs import LINES_MAX

        found: list[LogLine] = []
        after: int | None = 0
        while after is not None:
            page = await self._operations.logs.read(id_of(run_id), after, LINES_MAX)
            found += [LogLine(to_datetime(line.at), line.stream, line.text) for line in page.lines]
            after = page.next_line if page.lines else None
        return found

    @overload
    async def result(self, run: Run | str) -> Any: ...

    @overload
    async def result(self, run: Run | str, as_: type[T]) -> T: ...

    async def result(self, run: Run | str, as_: Any = Any) -> Any:
        """What a completed run has returned, read again and converted to a type: `await scheduler.result(run,
        as_=Report)`. Raises NotFound; StateConflict for one that is not completed, with its state and its error; and
        InvalidRequest for a result that is not of this type."""
        found = await self._operations.runs.get_run(id_of(run))
        if found.state is not State.COMPLETED:
            error = "" if found.error is None else f": {found.error}"
            raise StateConflict(f"run {found.id} has no result: it is {found.state}{error}")
        try:
            return msgspec.json.decode(b"null" if found.result is None else found.result, type=as_, dec_hook=made_of)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"the result of run {found.id} is no {as_!r}: {error}", field="as_") from None

    async def stats(self) -> Stats:
        """Counts by queue, and which queues no worker serves."""
        return stats_of(await self._operations.stats())

    async def explain(self, job: str, at: datetime | None = None) -> Explained:
        """Why a job ran, did not run, will run or will not run at an instant (left out: now). Raises NotFound."""
        told = await self._operations.explaining.at(job, None if at is None else to_instant(at))
        return Explained(
            to_datetime(told.at),
            told.fires,
            told.reason,
            told.disposition,
            None if told.run is None else Run(in_wall_time(told.run, self._operations.clock)),
            moment(told.previous),
            moment(told.next),
            told.missing,
        )
