"""Runs claimed for a worker that left before the hand-over: released, after an outage too."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from horarium.errors import Outage
from horarium.operations.settling.claiming import Claiming
from horarium.ports import Claimed
from horarium.services.loop.service import Wake

LEFT = "its worker left before it was handed over"


class LeftClaims:
    """Claims that were handed to no worker; each is kept until a release of it was written."""

    def __init__(self, claiming: Claiming, wake: Wake) -> None:
        self._claiming = claiming
        self._wake = wake
        self._left: list[Claimed] = []

    def keep(self, claimed: Claimed) -> None:
        """Release this with the next try."""
        if claimed.runs:
            self._left.append(claimed)
            self._wake()

    def keep_answer(self, answer: asyncio.Future[Claimed]) -> None:
        """Release what this brought, if it brought anything."""
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            self.keep(answer.result())

    async def try_release(self) -> None:
        """Release all at once, if the store answers: this node may be about to stop."""
        with suppress(Outage):
            await self.release()

    async def release(self) -> None:
        """Release all. What an outage keeps from being written is kept, for the next try. Raises Outage."""
        while self._left:
            claimed = self._left.pop()
            try:
                await self._claiming.release(claimed, LEFT)
            except BaseException:
                self.keep(claimed)
                raise
