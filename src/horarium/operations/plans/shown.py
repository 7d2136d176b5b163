"""Plans and forecasts as plain data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from horarium.clock import to_text
from horarium.errors import HorariumError
from horarium.operations.looking.forecasting import Forecast
from horarium.operations.plans.fires import FireDifferences, Peak
from horarium.operations.plans.making import Change, Plan
from horarium.operations.plans.stored import Listed
from horarium.rules.forecasting import Bucket

NO_FIRES = FireDifferences()
PIECE_BYTES = 64 * 1024


def error_shown(error: HorariumError) -> dict[str, Any]:
    shown = {"code": error.code, "detail": error.message}
    return shown if error.field is None else {**shown, "field": error.field}


def plan_shown(plan: Plan[Any]) -> dict[str, Any]:
    """A plan whose changes are as `change_shown` has them, or as JSON of that."""
    return {
        "id": plan.id,
        "changes": plan.changes,
        "fires_at_once": plan.fires_at_once,
        "peak": {"before": _peak(plan.before), "after": _peak(plan.after)},
        "warnings": msgspec.to_builtins(plan.warnings),
        "expires_at": to_text(plan.expires_at),
    }


def change_shown(change: Change, problem: Callable[[HorariumError], Any] = error_shown) -> dict[str, Any]:
    """`problem` says the error of a definition."""
    shown: dict[str, Any] = {"kind": change.kind, "name": change.name, "action": change.action}
    shown |= {"fields": msgspec.to_builtins(change.fields), "fires": msgspec.to_builtins(change.fires or NO_FIRES)}
    if change.jobs:
        shown["jobs"] = msgspec.to_builtins(change.jobs)
    if change.error is not None:
        shown["problem"] = msgspec.to_builtins(problem(change.error))
    return shown


def listed_shown(plan: Listed) -> dict[str, Any]:
    return {**msgspec.to_builtins(plan), "expires_at": to_text(plan.expires_at)}


def _peak(peak: Peak | None) -> dict[str, Any] | None:
    return None if peak is None else {"at": to_text(peak.at), "starts": peak.starts}


def forecast_shown(forecast: Forecast) -> dict[str, Any]:
    return {"buckets": [_bucket(bucket) for bucket in forecast.buckets], **_marked(forecast)}


def forecast_text(forecast: Forecast) -> list[bytes]:
    """The same as JSON, in pieces, made one bucket after another: all of them as plain data take ten times as much
    memory, and one long text twice as much while it grows."""
    pieces, text = list[bytes](), bytearray(b'{"buckets":[')
    for bucket in forecast.buckets:
        text += msgspec.json.encode(_bucket(bucket))
        text += b","
        if len(text) > PIECE_BYTES:
            pieces.append(bytes(text[:-1]))
            text[:] = b","
    text[-1:] = b"]," + msgspec.json.encode(_marked(forecast))[1:]
    return [*pieces, bytes(text)]


def _marked(forecast: Forecast) -> dict[str, Any]:
    named = {"peaks": forecast.peaks, "quiet": forecast.quiet}
    shown: dict[str, Any] = {name: [_bucket(bucket) for bucket in some] for name, some in named.items()}
    return {**shown, "left_out": forecast.left_out}


def _bucket(bucket: Bucket) -> dict[str, Any]:
    return {"at": to_text(bucket.at), "starts": bucket.starts, "running": bucket.running}
