"""The broker as it is seen from here: whether it can be reached, and whether it confirms what it takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from horarium.errors import BusUnavailable

PATIENCE_SECONDS = 2.0
"""How long a publish waits for a connection."""

log = logging.getLogger("horarium")


class Standing:
    """Whether the broker can be reached. `problem`: its fault, if it has one."""

    def __init__(self, kind: str) -> None:
        self.problem: str | None = None
        self._kind = kind
        self._up = asyncio.Event()

    @property
    def is_up(self) -> bool:
        return self._up.is_set()

    def went_up(self) -> None:
        log.info("%s: connected", self._kind)
        self.problem = None
        self._up.set()

    def went_down(self, reason: str, *, wanted: bool = False) -> None:
        """`wanted`: this side closed the connection; there is nothing to warn of."""
        if self.problem is None and not wanted:
            log.warning("%s: %s; connecting again", self._kind, reason)
        self.problem = f"{self._kind}: {reason}"
        self._up.clear()

    async def wait_up(self) -> None:
        """Wait a moment for the connection. Raises BusUnavailable."""
        if self._up.is_set():
            return
        try:
            await asyncio.wait_for(self._up.wait(), PATIENCE_SECONDS)
        except TimeoutError:
            raise BusUnavailable(self.problem or f"{self._kind}: not connected") from None


class Proof:
    """The debt of a broker that left a message unconfirmed: to confirm one, before others are sent to it."""

    def __init__(self, kind: str) -> None:
        self.is_owed = False
        self._kind = kind
        self._under_way = False

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Around sending one message; given if that raises nothing. Raises BusUnavailable for a second one."""
        if self._under_way:
            raise BusUnavailable(f"{self._kind}: waiting for the broker to confirm a message again")
        self._under_way = True
        try:
            yield
            self.is_owed = False
        finally:
            self._under_way = False
