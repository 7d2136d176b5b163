"""Work that is begun by the one that asks for it, in place of a task: what waits for nothing is done when `begin` returns.

A task costs its own making, a round of the event loop, and a look at the sockets in between. Work that turns out to
wait goes on in a task. Until it does, it is in none, so that nothing in it may ask which task it is in: timers
(`asyncio.timeout`) do, and so do drivers of stores. It is for stores that never wait (`ports.answers_at_once`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def begin(work: Coroutine[Any, Any, T]) -> tuple[T] | asyncio.Task[T]:
    """Do this as far as it goes without waiting. What it gave, or the task in which it goes on. Raises what it raises.
    What it sets of its context stays with it."""
    context = copy_context()
    try:
        waits_for = context.run(work.send, None)
    except StopIteration as ended:
        return (ended.value,)
    return asyncio.get_running_loop().create_task(_go_on(work, waits_for), context=context)


@coroutine
def _go_on(work: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """The rest of work that waits for this."""
    while True:
        try:
            yield waits_for
        except BaseException as error:
            try:
                waits_for = work.throw(error)
            except StopIteration as ended:
                return ended.value  # type: ignore[no-any-return]
        else:
            return (yield from work.__await__())


__all__ = ["begin"]
