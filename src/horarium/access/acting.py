"""On whose behalf the present task acts: set at an edge, read where a change is written.

An edge (a request, a call of the library with `actor`) says who acts for as long as the call lasts; operations ask for
the audit entries of what they are about to write, and hand them to the store with it. So no operation can forget to
pass the actor on, and background loops (planner, rescuer, ...) have no origin and is not audited.

A caller that is bound, and only reads, is set apart from that: while it does, the store shows what it may see, and
nothing else (`operations.bounds.reaching`).

Work that is handed to another task takes the origin along as a value: a task that serves many callers acts for none.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from horarium.access.audit import Origin
from horarium.access.roles import Principal

_READING: ContextVar[Principal | None] = ContextVar("horarium_reading", default=None)
_ACTING: ContextVar[Origin | None] = ContextVar("horarium_acting", default=None)


class _Within:
    """A value that holds within."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[Any], value: object) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, *raised: object) -> None:
        self._variable.reset(self._token)


def acting(origin: Origin | None) -> AbstractContextManager[None]:
    """Changes within are this caller's (None: of no caller's)."""
    return _Within(_ACTING, origin)


def who_acts() -> Origin | None:
    """Whose doing a change is."""
    return _ACTING.get()


def reading(caller: Principal | None) -> AbstractContextManager[None]:
    """What is read within is what this caller may see (None: all)."""
    return _Within(_READING, caller if caller is not None and caller.bound else None)


def who_reads() -> Principal | None:
    """The bound caller whose reads these are."""
    return _READING.get()


def bound_caller() -> Principal | None:
    """Who reads or acts, if it is bound."""
    reader, origin = _READING.get(), _ACTING.get()
    if reader is None and origin is not None and origin.principal.bound:
        return origin.principal
    return reader
