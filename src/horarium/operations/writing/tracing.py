"""Under which trace the present task asks for runs: set at an edge, read where a run is made."""

from __future__ import annotations

from contextvars import ContextVar

from horarium.model import Run, State
from horarium.rules.tracing import marked, planned_context, read_traceparent

_ASKED: ContextVar[str | None] = ContextVar("horarium_trace", default=None)


class asked_under:  # noqa: N801 - read as a word: `with asked_under(trace):`
    """Runs that are asked for within belong to this trace (None, or no traceparent: to none)."""

    __slots__ = ("_token", "_trace")

    def __init__(self, traceparent: str | None) -> None:
        self._trace = None if traceparent is None else read_traceparent(traceparent)

    def __enter__(self) -> None:
        self._token = _ASKED.set(self._trace)

    def __exit__(self, *raised: object) -> None:
        _ASKED.reset(self._token)


def asked_trace() -> str | None:
    """The trace under which the present task asks."""
    return _ASKED.get()


class Tracing:
    """Marks new runs. `recording`: this node records spans, so a run that comes without a trace begins one."""

    def __init__(self, recording: bool = False) -> None:
        self.recording = recording

    def mark(self, run: Run, traceparent: str | None = None) -> Run:
        """The run as one of the trace under which it was asked for."""
        if run.state is not State.PENDING or (traceparent is None and not self.recording):
            return run
        return marked(run, traceparent or planned_context(run), self.recording)
