"""Calls of the library: their plain arguments are of the types that they are said to be, and what is changed in the
name of an actor is then in the audit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import wraps
from inspect import iscoroutinefunction, signature
from os import urandom
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from horarium.access.acting import acting, who_acts
from horarium.access.audit import Origin
from horarium.access.roles import Role, principal
from horarium.errors import InvalidRequest
from horarium.triggers.words import quote

if TYPE_CHECKING:
    from horarium.operations.facade import Operations

REQUEST_ID_BYTES = 16
ACTOR_CHARS_MAX = 255


class Part:
    """A part of the methods of a `Scheduler`, in the name of its actor, if it has one. The arguments of each that is
    awaited are checked (`Plain`)."""

    actor: str | None

    def __init_subclass__(cls) -> None:
        for name, method in list(vars(cls).items()):
            if iscoroutinefunction(method) and not hasattr(method, "__wrapped__") and (plain := _plain_of(method)):
                setattr(cls, name, _checked(method, plain))

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
    else of who acts already. Its arguments are checked."""
    plain = _plain_of(method)

    @wraps(method)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        _check(plain, args, kwargs)
        given = kwargs.get("actor")
        try:
            if given is None and self.actor is None:
                return await method(self, *args, **kwargs)
            with acting(origin_of(given, self.actor)):
                return await method(self, *args, **kwargs)
        except UnicodeEncodeError as error:
            raise _no_text(error) from None

    return call


def _checked(method: Callable[..., Awaitable[T]], plain: list[Plain]) -> Callable[..., Coroutine[Any, Any, T]]:
    @wraps(method)
    async def call(self: Part, /, *args: Any, **kwargs: Any) -> T:
        _check(plain, args, kwargs)
        try:
            return await method(self, *args, **kwargs)
        except UnicodeEncodeError as error:
            raise _no_text(error) from None

    return call


class Plain(NamedTuple):
    """A parameter of a plain type: where it is given, and what it may be."""

    name: str
    place: int
    kinds: tuple[type, ...]
    words: str


def _plain_of(method: Callable[..., Any]) -> list[Plain]:
    found = []
    for place, each in enumerate(signature(method).parameters.values()):
        kind, _, rest = str(each.annotation).partition(" | ")
        if kind in KINDS and rest in ("", "None"):
            expected, words = KINDS[kind]
            found.append(Plain(each.name, place - 1, (expected, type(None)) if rest else (expected,), words))
    return found


KINDS = {"str": (str, "a text"), "int": (int, "a whole number")}
"""Annotations that are checked here; arguments with others are converted, or read, by the method."""


def _check(plain: list[Plain], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    for name, place, kinds, words in plain:
        if place < len(args):
            given = args[place]
        elif name in kwargs:
            given = kwargs[name]
        else:
            continue
        if not isinstance(given, kinds):
            raise InvalidRequest(f"{name}: expected {words}, not {quote(given)}", field=name)


def _no_text(error: UnicodeEncodeError) -> InvalidRequest:
    return InvalidRequest(f"{quote(error.object)}: it holds half of a surrogate pair, which is no text")


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
