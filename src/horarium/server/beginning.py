"""How the requests of one connection begin: after all that has arrived was read, each in its turn.

A request that is whole, and for which the application needs no task (`api.whole.AtOnce`), is carried out right there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from horarium.server.turns import Turns
from horarium.services.at_once import begin

InTask = Callable[[RequestResponseCycle, Any], None]


class Beginning:
    """One request at a time: the next begins once the one before has its answer. `in_task`: how one begins that needs a
    task. `tasks`: those under way, which the server waits for when it stops."""

    __slots__ = ("_app", "_at_once", "_held", "_in_task", "_next", "_tasks", "_turns")

    def __init__(self, turns: Turns, app: Any, in_task: InTask, tasks: set[asyncio.Task[None]]) -> None:
        self._turns, self._app, self._in_task, self._tasks = turns, app, in_task, tasks
        self._at_once: Callable[[Any], Any | None] = getattr(app, "at_once", _never)
        self._held = False
        self._next: RequestResponseCycle | None = None

    def hold(self) -> None:
        """Begin none until `go_on`."""
        self._held = True

    def add(self, cycle: RequestResponseCycle) -> None:
        """This one is to begin."""
        self._next = cycle
        if not self._held:
            self.go_on()

    def go_on(self) -> None:
        """Begin what is to begin."""
        self._held = True  # what is answered meanwhile calls for the next one: it begins here, not within the answer
        while (cycle := self._next) is not None:
            self._next = None
            self._turns.take(partial(self._begin, cycle))
        self._held = False

    def _begin(self, cycle: RequestResponseCycle) -> None:
        answer = None if cycle.more_body else self._at_once(cycle.scope)
        if answer is None:
            self._in_task(cycle, self._app)
            return
        held, self._held = self._held, True
        going_on = begin(cycle.run_asgi(answer))
        if isinstance(going_on, asyncio.Task):
            going_on.add_done_callback(self._tasks.discard)
            self._tasks.add(going_on)
        if not held:
            self.go_on()


def _never(scope: Any) -> None:
    """An application that knows nothing of it."""
