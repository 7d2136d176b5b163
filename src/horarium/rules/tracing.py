"""Traces of runs: which one a run belongs to, and what its attempts hand on, as W3C Trace Context writes it.

A run that belongs to a trace says so in a line of its history: the `traceparent` under which it was asked for or
planned, and whether this system records spans itself. The ids of an attempt's span follow from the run and its token
alone, so any node can hand them on, and any other can record the span once the attempt has ended.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import NamedTuple

from msgspec.structs import replace

from horarium.model import Event, EventKind, Run, State

RECORDED = "trace recorded under "
PASSED_ON = "trace "
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


class Traced(NamedTuple):
    """The trace of a run, the span that asked for it, and whether spans of the run are recorded."""

    trace_id: str
    parent_id: str
    recorded: bool


def read_traceparent(text: str | None) -> str | None:
    """The header as it is passed on; None for any other text."""
    found = _TRACEPARENT.fullmatch(text.strip().lower()) if text else None
    if found is None or text is None or text.startswith("ff") or not (int(found[1], 16) and int(found[2], 16)):
        return None
    return f"00-{found[1]}-{found[2]}-{found[3]}"


def planned_context(run: Run) -> str:
    """The trace that begins with the planning of this run."""
    return f"00-{_digits('trace', run.id, 16)}-{_digits('plan', run.id, 8)}-01"


def marked(run: Run, traceparent: str, recorded: bool) -> Run:
    """The new run, as one of this trace."""
    said = (RECORDED if recorded else PASSED_ON) + traceparent
    event = Event(run.created_at, State.PENDING, said, EventKind.TRACED)
    return replace(run, history=(event, *run.history))


def trace_of(run: Run) -> Traced | None:
    """The trace to which a run belongs."""
    for event in run.history[:2]:
        if event.kind is EventKind.TRACED:
            recorded = event.message.startswith(RECORDED)
            found = _TRACEPARENT.search(event.message)
            return None if found is None else Traced(found[1], found[2], recorded)
    return None


def attempt_id(run: Run) -> str:
    """The id of the span of the run's present attempt."""
    return _digits(f"attempt {run.token}", run.id, 8)


def handed_on(run: Run) -> str | None:
    """What the target of an attempt gets as `traceparent`: the attempt's own span where it is recorded, else the one
    that asked for the run."""
    traced = trace_of(run)
    if traced is None:
        return None
    span = attempt_id(run) if traced.recorded else traced.parent_id
    return f"00-{traced.trace_id}-{span}-01"


def _digits(what: str, run_id: str, size: int) -> str:
    return blake2b(f"{what} {run_id}".encode(), digest_size=size).hexdigest()
