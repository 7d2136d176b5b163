"""Spans for OpenTelemetry: one for each plan of a run, one for each attempt, sent by its own exporter.

Spans are made when an attempt has ended, by the node that writes its end, with ids that follow from the run: an
endpoint or a worker was given the same id. The standard `OTEL_*` variables choose the receiver.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from horarium.clock import Instant
from horarium.model import EventKind, Run, State
from horarium.rules.tracing import attempt_id, planned_context, read_traceparent, trace_of

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SERVICE = "horarium"
_PUT_BACK = (EventKind.FAILED, EventKind.LOST, EventKind.TIMED_OUT)


def wanted() -> bool:
    """Whether the environment asks for traces: it names where they go, and does not switch them off."""
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    return not off and any(os.environ.get(name) for name in ENDPOINTS)


def make_spans() -> Spans | None:
    """The recorder of spans; None where it is not asked for, or the extra `otel` is missing."""
    if not wanted():
        return None
    try:
        return Spans()
    except ImportError:
        return None


class _Ids:
    """Gives the ids that were set just before."""

    def __init__(self) -> None:
        self.trace_id = 1
        self.span_id = 1

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id

    def is_trace_id_random(self) -> bool:
        return False


class Spans:
    """Raises ImportError without the extra `otel`. None of its methods waits, and none fails."""

    def __init__(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._ids = _Ids()
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": SERVICE}
        ids: Any = self._ids
        self._provider = TracerProvider(id_generator=ids, resource=Resource.create(named), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer(SERVICE)

    def planned(self, runs: Sequence[Run]) -> None:
        """Runs were planned."""
        for run in runs:
            traced = trace_of(run)
            own = planned_context(run)
            if traced is not None and traced.recorded and read_traceparent(own) == f"00-{traced[0]}-{traced[1]}-01":
                self._record(
                    f"plan {run.job or run.queue}", run, traced.trace_id, traced.parent_id, None, run.created_at
                )

    def settled(self, runs: Sequence[Run]) -> None:
        """Attempts ended."""
        for run in runs:
            traced = trace_of(run)
            put_back = run.history[-1] if run.state is State.PENDING and run.history else None
            if traced is None or not traced.recorded or run.token == 0:
                continue
            failed = run.state is State.FAILED or (put_back is not None and put_back.kind in _PUT_BACK)
            began = run.started_at or (run.history[-2].at if put_back and len(run.history) > 1 else run.due_at)
            self._record(
                f"run {run.job or run.queue}",
                run,
                traced.trace_id,
                attempt_id(run),
                traced.parent_id,
                began,
                ended=run.finished_at or (put_back.at if put_back else None),
                error=(run.error or str(run.state)) if failed else None,
            )

    def _record(
        self,
        name: str,
        run: Run,
        trace_id: str,
        span_id: str,
        parent_id: str | None,
        began: Instant,
        *,
        ended: Instant | None = None,
        error: str | None = None,
    ) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import Link, NonRecordingSpan, SpanKind, Status, StatusCode, set_span_in_context

        self._ids.trace_id, self._ids.span_id = int(trace_id, 16), int(span_id, 16)
        links: list[Link] = []
        context = Context()
        if parent_id is not None:
            parent = _context(trace_id, parent_id)
            links.append(Link(parent, {"horarium.cause": str(run.cause)}))
            context = set_span_in_context(NonRecordingSpan(parent), context)
        attributes: dict[str, str | int] = {
            "horarium.run.id": run.id, "horarium.job": run.job or "", "horarium.queue": run.queue,
            "horarium.attempt": run.attempt, "horarium.cause": str(run.cause), "horarium.state": str(run.state),
        }  # fmt: skip
        kind = SpanKind.PRODUCER if parent_id is None else SpanKind.CLIENT
        span = self._tracer.start_span(
            name, context=context, kind=kind, attributes=attributes, links=links, start_time=began * 1_000
        )
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end((ended or began) * 1_000)

    def close(self) -> None:
        """Send waiting spans, for a few seconds at most."""
        self._provider.force_flush(3_000)
        self._provider.shutdown()


def _context(trace_id: str, span_id: str) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(1))
