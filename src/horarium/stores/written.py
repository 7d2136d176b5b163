"""How often it was seen that something was written to a store: a server says a mark when it is asked, another one after
each write by any process. A change is told at once to listeners."""

from __future__ import annotations

from collections.abc import Callable


def _nothing() -> None:
    """No one listens."""


class Written:
    """Used on one event loop."""

    def __init__(self) -> None:
        self._mark: object = None
        self._count = 0
        self.tell: Callable[[], None] = _nothing
        """Called when it was seen that something was written."""

    def saw(self, mark: object) -> None:
        """The last mark of the server. None: it did not answer, or can't tell."""
        if mark != self._mark:
            self._mark, self._count = mark, self._count + 1
            self.tell()

    def count(self) -> int | None:
        """`ports.Signal.writes`, as of when the server was last asked. A server that no one uses writes now and then
        for itself. None: it was not asked, did not answer, or can't tell."""
        return None if self._mark is None else self._count
