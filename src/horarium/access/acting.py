"""On whose behalf the present task acts: set at an edge, read where a change is written.

An edge (a request, a call of the library with `actor`) says who acts for as long as the call lasts; operations ask for
the audit entries of what they are about to write, and hand them to the store with it. So no operation can forget to
pass the actor on, and what runs by itself (planner, rescuer, ...) has no origin and is not audited.

Work that is handed to another task takes the origin along as a value: a task that serves many callers acts for none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from horarium.access.audit import Origin

_ACTING: ContextVar[Origin | None] = ContextVar("horarium_acting", default=None)


@contextmanager
def acting(origin: Origin | None) -> Iterator[None]:
    """What is changed within is this caller's doing (None: of no caller's)."""
    token = _ACTING.set(origin)
    try:
        yield
    finally:
        _ACTING.reset(token)


def who_acts() -> Origin | None:
    """Whose doing a change is."""
    return _ACTING.get()
