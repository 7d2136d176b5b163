"""Jobs as the API shows them: with every default spelt out.

The policies and targets leave their defaults out where they are stored. Whoever reads a job over HTTP should not need
to know them, so here they are written in full. What is shown can be put back as it is.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from horarium.definitions import JobView, job_view
from horarium.model import BusTarget, HandlerTarget, HttpTarget, Job, QueueTarget
from horarium.policies import CatchUp, Concurrency, Retention, Retry, Timeouts

S = TypeVar("S", bound=Struct)

_FULL: dict[type[Struct], Any] = {
    kind: msgspec.defstruct(kind.__name__, [], bases=(kind,), frozen=True, omit_defaults=False)
    for kind in (CatchUp, Retry, Timeouts, Retention, Concurrency, HttpTarget, HandlerTarget, QueueTarget, BusTarget)
}


def in_full(value: S) -> S:
    """The same value, of a type that leaves no default out of its JSON."""
    full: S = _FULL[type(value)](*msgspec.structs.astuple(value))
    return full


def shown_job(job: Job) -> JobView:
    """A job, with every default spelt out."""
    return shown_view(job_view(job))


def shown_view(view: JobView) -> JobView:
    """The same view, with every default spelt out."""
    view.target = in_full(view.target)
    view.catch_up = in_full(view.catch_up)
    view.retry = in_full(view.retry)
    view.timeouts = in_full(view.timeouts)
    view.retention = in_full(view.retention)
    if view.concurrency is not None:
        view.concurrency = in_full(view.concurrency)
    return view
