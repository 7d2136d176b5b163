"""The calls of the client that add one-off runs, and that retry or cancel many runs. One call may be many requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack

import msgspec
from msgspec import UNSET, Struct

from horarium.client.answers import Answered
from horarium.client.transport import API, Transport, decoded, segment
from horarium.errors import HorariumError, InvalidRequest
from horarium.wire.history import PastRun
from horarium.wire.one_offs import RunDefinition
from horarium.wire.views import AddedRunView, RunView

RUNS_MAX = 1_000
RUNS_BYTES_MAX = 960 * 1024
"""JSON text of the runs in one request; the server reads a body of 1 MiB."""


class RunFields(TypedDict, total=False):
    """Fields of a one-off run beside its target and its payload."""

    at: datetime | None
    delay_seconds: float | None
    priority: int
    unique_key: str | None
    retry: Mapping[str, Any]
    timeouts: Mapping[str, Any]
    retention: Mapping[str, Any]
    concurrency: Mapping[str, Any] | None
    unique: Mapping[str, Any] | None
    debounce: Mapping[str, Any] | None


class Filter(TypedDict, total=False):
    """Which runs are meant: `ids`, or those that fit all of the rest; how many a second; `dry_run`: only count."""

    ids: Sequence[str]
    job: str | None
    states: Sequence[str]
    queue: str | None
    since: datetime | None
    until: datetime | None
    error_contains: str | None
    per_second: float | None
    dry_run: bool


class AddedRun(Struct, frozen=True):
    """The result for one run of many. `outcome`: created, exists (`id` is the run that holds its key) or failed."""

    id: str | None
    outcome: str
    error: HorariumError | None = None


class Bulk(Struct):
    """How many runs matched, to how many it was done, and why not to the others."""

    matched: int = 0
    done: int = 0
    left: dict[str, int] = {}


Progress = Callable[[Bulk], object]
"""Is called after each request with the count so far."""


class _Batch(Bulk):
    cursor: str | None = None


class ManyRuns:
    """A part of `Client`."""

    _transport: Transport

    def add_run(
        self, target: Mapping[str, Any], payload: Any = UNSET, **fields: Unpack[RunFields]
    ) -> tuple[RunView, bool]:
        """A run that belongs to no job, and whether it is new: of runs with one `unique_key` only the first is made."""
        body = {"target": target, **fields, **({} if payload is UNSET else {"payload": payload})}
        headers = {"Idempotency-Key": self._transport.new_key()}
        answer = self._transport.request("POST", API + "/runs", body=body, headers=headers)
        return decoded(answer, AddedRunView), answer.status == 201

    def add_runs(self, runs: Iterable[RunDefinition | Mapping[str, Any]]) -> Iterator[AddedRun]:
        """Many of them, as many in one request as fit: what became of each, in their order, as it comes in."""
        for batch in _batches(runs):
            body, headers = {"runs": batch}, {"Idempotency-Key": self._transport.new_key()}
            for line in self._transport.call("POST", "/runs/batch", list[Answered], body=body, headers=headers):
                yield AddedRun(line.id, line.outcome, line.error())

    def add_history(self, job: str, system: str, runs: Iterable[PastRun | Mapping[str, Any]]) -> Counter[str]:
        """Runs of this job that another system performed: how many were `added`, were `known`, or are `too_old` for the
        job to keep. Adding them again changes nothing."""
        done: Counter[str] = Counter(added=0, known=0, too_old=0)
        for batch in _batches(runs):
            body = {"system": system, "runs": batch}
            done.update(self._transport.call("POST", f"/jobs/{segment(job)}/history", dict[str, int], body=body))
        return done

    def retry_runs(self, progress: Progress | None = None, **which: Unpack[Filter]) -> Bulk:
        """New runs for the work of those that are meant (of a filter: failed ones, unless it has `states`). Each run is
        retried once for as long as its retry is kept, so this may be called again. `per_second`: the new runs fall due
        at this pace."""
        return _work_through(self._transport, "/runs/retry", _body(which), progress)

    def cancel_runs(
        self, progress: Progress | None = None, *, reason: str | None = None, **which: Unpack[Filter]
    ) -> Bulk:
        """Cancel those that are meant: pending ones at once, running ones are asked to stop."""
        body = _body(which) if reason is None else {**_body(which), "reason": reason}
        return _work_through(self._transport, "/runs/cancel", body, progress)


def _batches(runs: Iterable[Struct | Mapping[str, Any]]) -> Iterator[list[msgspec.Raw]]:
    batch: list[msgspec.Raw] = []
    size = 0
    for run in runs:
        try:
            text = msgspec.json.encode(run)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"runs: one can't be written as JSON: {error}", field="runs") from None
        if batch and (len(batch) >= RUNS_MAX or size + len(text) > RUNS_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(msgspec.Raw(text))
        size += len(text) + 1
    if batch:
        yield batch


def _body(which: Filter) -> dict[str, Any]:
    fields: dict[str, Any] = {name: value for name, value in which.items() if name not in ("states", "ids")}
    states = list(which.get("states", ()))
    ids = {"ids": list(which["ids"])} if "ids" in which else {}
    return {**fields, **({"state": states} if states else {}), **ids}


def _work_through(transport: Transport, path: str, body: dict[str, Any], progress: Progress | None) -> Bulk:
    """Send it, again and again with the cursor of the answer, until nothing is left."""
    total = Bulk()
    ids = body.get("ids")
    for part in [{}] if ids is None else [{"ids": ids[at : at + RUNS_MAX]} for at in range(0, len(ids), RUNS_MAX)]:
        cursor: str | None = None
        while True:
            asked = {**body, **part, **({"cursor": cursor} if cursor else {})}
            batch = transport.call("POST", path, _Batch, body=asked)
            total.matched += batch.matched
            total.done += batch.done
            total.left = {why: total.left.get(why, 0) + batch.left.get(why, 0) for why in total.left | batch.left}
            if progress is not None:
                progress(total)
            cursor = batch.cursor
            if cursor is None:
                break
    return total


__all__ = ["AddedRun", "Bulk", "ManyRuns", "RunFields"]
