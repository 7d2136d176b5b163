"""Lets what a handler records itself with OpenTelemetry belong to the trace of its run."""

from __future__ import annotations

import sys
from collections.abc import Callable


def enter_trace(traceparent: str | None) -> Callable[[], None]:
    """From now on, in this task, the span of the attempt is the current one; returns how to leave it. Where the program
    has not loaded OpenTelemetry there is nothing to do."""
    if traceparent is None or "opentelemetry.trace" not in sys.modules:
        return _nothing
    from opentelemetry.context import attach, detach
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    _, trace_id, span_id, flags = traceparent.split("-")
    span = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    token = attach(set_span_in_context(NonRecordingSpan(span)))
    return lambda: detach(token)


def _nothing() -> None:
    """There was nothing to enter."""
