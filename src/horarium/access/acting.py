"""On whose behalf the present task acts: set at an edge, read where a change is written.

An edge (a request, a call of the library with `actor`) says who acts for as long as the call lasts; operations ask for
the audit entries of what they are about to write, and hand them to the store with it. So no operation can forget to
pass the actor on, and background loops (planner, rescuer, ...) have no origin and is not audited.

Work that is handed to another task takes the origin along as a value: a task that serves many callers acts for none.
"""

from __future__ import annotations

from contextvars import ContextVar

from horarium.access.audit import Origin

_ACTING: ContextVar[Origin | None] = ContextVar("horarium_acting", default=None)


class acting:  # noqa: N801 - read as a word: `with acting(origin):`
    """Changes within are this caller's (None: of no caller's)."""

    __slots__ = ("_origin", "_token")

    def __init__(self, origin: Origin | None) -> None:
        self._origin = origin

    def __enter__(self) -> None:
        self._token = _ACTING.set(self._origin)

    def __exit__(self, *raised: object) -> None:
        _ACTING.reset(self._token)


act_for, act_no_more = _ACTING.set, _ACTING.reset
"""The same in two steps, for an edge that is passed by each request: the second takes what the first gave."""


def who_acts() -> Origin | None:
    """Whose doing a change is."""
    return _ACTING.get()
