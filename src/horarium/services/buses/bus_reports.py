"""Reports of workers on a bus, read: a status, or a heartbeat, and nothing that is neither.

Pure. A report that can't be understood is None; a text that is merely too long (an error, a result) is cut, and one
that is almost JSON is mended, since to refuse it would mean to do the work again.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
from msgspec import Struct

from horarium.model import RESULT_BYTES_MAX, Cancelled, Failed, Outcome, Succeeded
from horarium.ports import Report

BODY_BYTES_MAX = 512 * 1024
ID_CHARS_MAX = 200
WORD_CHARS_MAX = 4_000


class Status(Struct, rename="camel"):
    """A status message. Only the first three fields must be there; what else is in it is not looked at."""

    job_name: str
    run_id: str
    status: Literal["running", "cancelled", "failed", "completed"]
    token: int | None = None
    error: Any = None
    reason: Any = None
    retryable: bool | None = None
    result: Any = None
    progress: Any = None


class Heartbeat(Struct, rename="camel"):
    """A heartbeat message."""

    job_name: str
    run_id: str
    token: int | None = None
    progress: Any = None


class Reading(Struct, frozen=True):
    """A report that was understood. `outcome` None: a sign of life."""

    report: Report
    run_id: str
    job: str
    token: int | None
    outcome: Outcome | None = None
    progress: bytes | None = None


_status = msgspec.json.Decoder(Status).decode
_heartbeat = msgspec.json.Decoder(Heartbeat).decode


def read(report: Report) -> Reading | None:
    """The report, understood; None: it is malformed."""
    if len(report.body) > BODY_BYTES_MAX:
        return None
    try:
        beat = _decoded(report)
        outcome = _outcome(beat) if isinstance(beat, Status) else None
        progress = _text(beat.progress)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
        return None
    if not _plain(beat.run_id, beat.token):
        return None
    if progress is not None and len(progress) > RESULT_BYTES_MAX:
        progress = None
    return Reading(report, beat.run_id, beat.job_name, beat.token, outcome, progress)


_NAMES = {name.lower(): name for name in Status.__struct_encode_fields__}


def _decoded(report: Report) -> Status | Heartbeat:
    decode = _heartbeat if report.kind == "heartbeat" else _status
    try:
        return decode(report.body)
    except msgspec.DecodeError:
        return decode(_mended(report.body))


def _mended(body: bytes) -> bytes:
    """The report without what some writers of JSON let through: a byte order mark, NaN and infinities (null instead),
    half a surrogate pair (`?` instead), names in other capitals. Raises ValueError, RecursionError."""
    value = json.loads(body.decode("utf-8-sig"), parse_constant=lambda _: None)
    if isinstance(value, dict):
        value = {_NAMES.get(name.lower(), name): item for name, item in value.items()}
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _plain(run_id: str, token: int | None) -> bool:
    """Whether every store can be asked for these."""
    return (
        0 < len(run_id) <= ID_CHARS_MAX
        and run_id.isascii()
        and run_id.isprintable()
        and (token is None or 0 <= token < 2**63)
    )


def _outcome(status: Status) -> Outcome | None:
    match status.status:
        case "completed":
            return Succeeded(_result(status.result))
        case "failed":
            error = _word(status.error) or "the worker gave no reason"
            return Failed(error, status.retryable is not False, result=_result(status.result))
        case "cancelled":
            return Cancelled(_word(status.reason) or _word(status.error) or "stopped by its worker")
        case "running":
            return None


def _word(value: Any) -> str:
    if value is None:
        return ""
    return (value if isinstance(value, str) else msgspec.json.encode(value).decode())[:WORD_CHARS_MAX]


def _text(value: Any) -> bytes | None:
    return None if value is None else msgspec.json.encode(value)


def _result(value: Any) -> bytes | None:
    text = _text(value)
    if text is not None and len(text) > RESULT_BYTES_MAX:
        kept = text[: RESULT_BYTES_MAX // 4].decode(errors="replace")
        return msgspec.json.encode({"truncated": True, "bytes": len(text), "begins": kept})
    return text
