"""Calls of the library in the name of an actor: what they change is then in the audit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from os import urandom
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from horarium.access.acting import acting, who_acts
from horarium.access.audit import Origin
from horarium.access.roles import Role, principal

REQUEST_ID_BYTES = 16


class Named(Protocol):
    """What has an actor, or none."""

    actor: str | None


S = TypeVar("S", bound=Named)
P = ParamSpec("P")
T = TypeVar("T")


def in_name_of_actor(
    method: Callable[Concatenate[S, P], Awaitable[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The method, called in the name of the object's actor, if it has one; else of who acts already."""

    @wraps(method)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self.actor is None:
            return await method(self, *args, **kwargs)
        caller = principal(self.actor, self.actor, "local", [Role.ADMIN])
        origin = who_acts() or Origin(principal=caller, request_id=urandom(REQUEST_ID_BYTES).hex())
        with acting(origin):
            return await method(self, *args, **kwargs)

    return call
