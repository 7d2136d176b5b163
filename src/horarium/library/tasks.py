"""The functions of a program as typed tasks: `await send.enqueue(to="a")`, where `send` is a handler.

The decorators of a scheduler give back the function that they were given: called as itself, it does what it did. It has
attributes more, `enqueue`, `with_args` and `with_options`. The parameters of the first two are those of the function
without the run, so that type checkers see a wrong argument where it is written.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, Unpack, cast, overload

from horarium.delivery.arguments import Arguments
from horarium.delivery.context import RunContext
from horarium.delivery.handler import Errors, HandlerFunction, Judge
from horarium.errors import InvalidRequest, WrongArguments
from horarium.library.one_offs import EnqueueFields, RunFields, TaskCall, Then, encode
from horarium.library.values import Run
from horarium.model import RunFollow
from horarium.model.follows import FOLLOWS_MAX
from horarium.policies import Concurrency, Debounce, Retry, Unique

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E")

Enqueued = Coroutine[Any, Any, Run]


class TaskOptions(EnqueueFields, total=False):
    """How the runs of a task are made: the keyword arguments of `enqueue`."""

    unique_key: str | None
    unique: Unique | Mapping[str, Any] | None
    debounce: Debounce | Mapping[str, Any] | None
    connection: Any
    actor: str | None


class HandlerOptions(RunFields, total=False):
    """How a handler is performed, and the defaults of each run of it: what `enqueue` or a job says itself wins.

    `concurrency`: a number, of runs that this process performs at one time, or the policy, over all processes.
    `retry_for`: errors after which a run is tried again (left out: all); `give_up_on`: those after which it is not;
    `retry_if` (or `retry` itself, if it is a function): of the run and the error: False (not again), True or None (as
    the policy says), or after how many seconds. `unique`: each call of `enqueue` is unique by this key, in which
    `{args.NAME}` is an argument. `queue`: performed only by processes that serve this queue (`configure(queues=...)`,
    `horarium worker --queue`), or that name none. `pool="process"`: a plain function of its args alone is called in a
    process of its own, which a time limit ends."""

    concurrency: int | Concurrency | str | Mapping[str, Any] | None  # type: ignore[misc]
    retry: Retry | Mapping[str, Any] | Judge | None  # type: ignore[misc]
    retry_for: type[BaseException] | Errors
    give_up_on: type[BaseException] | Errors
    retry_if: Judge
    unique: Unique | Mapping[str, Any] | None
    queue: str | None
    pool: Literal["process"] | None


class Task(Generic[P, E]):
    """A handler to enqueue."""

    def __init__(self, function: HandlerFunction, enqueue: Callable[..., E], options: Mapping[str, Any]) -> None:
        self.function = function
        self._enqueue = enqueue
        self._options = dict(options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> E:
        """A run of it with these arguments: what the scheduler's `enqueue` answers, to be awaited where that is."""
        return self._enqueue(self.function, self._given(args, kwargs), **self._options)

    def with_args(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """The task with its args, to follow from another one: `pay.with_options(then=send.with_args(to="a"))`."""
        return TaskCall(self.function, self._given(args, kwargs), self._options)

    def with_options(self, **options: Unpack[TaskOptions]) -> Self:
        """The same task, whose runs are made so: `send.with_options(delay="5m").enqueue(to="a")`."""
        return type(self)(self.function, self._enqueue, {**self._options, **options})

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**_named(self.function, args, kwargs), **kwargs} if args else kwargs


class TaskWithRun(Task[P, E], Generic[P, R, E]):
    """A handler that is given its run first."""

    def __call__(self, run: RunContext, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, self.function(run, *args, **kwargs))


class TaskAlone(Task[P, E], Generic[P, R, E]):
    """A handler that asks for no run."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, self.function(*args, **kwargs))


class Decorator(Generic[E]):
    """Registers a function, and makes it a task. `enqueue`: that of the scheduler."""

    def __init__(self, register: Callable[[HandlerFunction], None], enqueue: Callable[..., E]) -> None:
        self._register = register
        self._enqueue = enqueue

    @overload
    def __call__(self, function: Callable[Concatenate[RunContext, P], R], /) -> TaskWithRun[P, R, E]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> TaskAlone[P, R, E]: ...

    def __call__(self, function: Any, /) -> Any:
        function = function_of(function)
        self._register(function)
        task: TaskAlone[Any, Any, E] = TaskAlone(function, self._enqueue, {})
        try:
            function.enqueue, function.with_options, function.with_args = (
                task.enqueue,
                task.with_options,
                task.with_args,
            )
        except AttributeError:  # a method, which has no attributes of its own
            return task
        return function


def function_of(given: object) -> Any:
    """The function of a task; anything else as it is."""
    return given.function if isinstance(given, Task) else given


def following(given: Then | Sequence[Then] | None, read: Callable[[TaskCall], RunFollow]) -> tuple[RunFollow, ...]:
    """The runs that follow, each as `read` understands it. Raises InvalidRequest."""
    if given is None:
        return ()
    several = isinstance(given, list | tuple) and not isinstance(given, TaskCall)
    calls = [_call(each) for each in (cast(Sequence[Then], given) if several else (given,))]
    if len(calls) > FOLLOWS_MAX:
        raise InvalidRequest(f"then: {len(calls)} runs; at most {FOLLOWS_MAX} follow from one", field="then")
    follows = tuple(map(read, calls))
    encode("then", follows)
    return follows


def _call(given: Any) -> TaskCall:
    if isinstance(given, Mapping):
        options = dict(given)
        return TaskCall(options.pop("handler", None), options.pop("args", None), options)
    if isinstance(given, TaskCall):
        return given
    return TaskCall(function_of(given), None, given._options if isinstance(given, Task) else {})


def _named(function: HandlerFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Positional arguments, by name. Raises WrongArguments."""
    run = Arguments(getattr(function, "__name__", "handler"), function).run
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name != run]
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    if len(args) > len(names):
        raise WrongArguments(f"args: {len(args)} arguments by position were given, and it takes {len(names)}")
    given = dict(zip(names, args, strict=False))
    if twice := given.keys() & kwargs.keys():
        raise WrongArguments(f"argument {min(twice)!r} is given twice, by position and by name", field="args")
    return given
