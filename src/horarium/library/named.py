"""Calls of the library in the name of an actor: what they change is then in the audit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from inspect import signature
from os import urandom
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from horarium.access.acting import acting, who_acts
from horarium.access.audit import Origin
from horarium.access.roles import Role, principal
from horarium.errors import InvalidRequest

if TYPE_CHECKING:
    from horarium.operations.facade import Operations

REQUEST_ID_BYTES = 16
ACTOR_CHARS_MAX = 255


class Part:
    """A part of the methods of a `Scheduler`, in the name of its actor, if it has one."""

    actor: str | None

    @property
    @abstractmethod
    def _operations(self) -> Operations:
        """Where the calls go."""


S = TypeVar("S", bound=Part)
P = ParamSpec("P")
T = TypeVar("T")


def in_name_of_actor(
    method: Callable[Concatenate[S, P], Awaitable[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The method, called in the name of the actor that the call gives (`actor=`), else of the object's, if it has one;
    else of who acts already. The reason that it gives is a text: any other would be kept, and could not be read."""
    names = list(signature(method).parameters)
    place = names.index("reason") - 1 if "reason" in names else None

    @wraps(method)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if place is not None:
            _check_reason(args[place] if place < len(args) else kwargs.get("reason"))
        given = kwargs.get("actor")
        if given is None and self.actor is None:
            return await method(self, *args, **kwargs)
        with acting(origin_of(given, self.actor)):
            return await method(self, *args, **kwargs)

    return call


def _check_reason(given: object) -> None:
    if not (given is None or isinstance(given, str)):
        raise InvalidRequest(f"reason: expected a text, not {type(given).__name__}", field="reason")


def origin_of(given: object, usual: str | None) -> Origin | None:
    """Who acts: the actor of this call, else who acts already, else the usual one. Raises InvalidRequest."""
    if given is None:
        acts = who_acts()
        if acts is not None or usual is None:
            return acts
    actor = usual if given is None else given
    if not isinstance(actor, str) or not 0 < len(actor) <= ACTOR_CHARS_MAX:
        raise InvalidRequest(f"actor: expected a name of 1 to {ACTOR_CHARS_MAX} characters", field="actor")
    caller = principal(actor, actor, "local", [Role.ADMIN])
    return Origin(principal=caller, request_id=urandom(REQUEST_ID_BYTES).hex())
