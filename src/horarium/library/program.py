"""The contents of a program: its handlers, by name, and the jobs that it makes by decorator.

Here a function is found by its name and a name by its function, and jobs and args are checked against the handlers that
are registered. A handler that is not registered here may be another process's: nothing is known of it.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from horarium.delivery.context import RunContext
from horarium.delivery.handler import Around, Errors, Handler, HandlerFunction, Inside, Rules
from horarium.delivery.pool import Pool
from horarium.errors import HorariumError, InvalidJob, UnknownArgument
from horarium.library.declaring import JobSpec
from horarium.library.fields import check_names, job_fields, trigger_spec
from horarium.library.one_offs import TIMES, RunFields, encode, one_offs, unique_rule, wanted
from horarium.library.tasks import HandlerOptions, function_of
from horarium.model import HandlerTarget, Name
from horarium.policies import Unique
from horarium.rules.keys import check_template
from horarium.wire.faults import converted

if TYPE_CHECKING:
    from horarium.wire.definitions import JobDefinition

KEYED = ("rate", "concurrency", "fair")
_NAMED = re.compile(r"\{(?:args|payload)\.([^{}.]+)")
Hook = Callable[[], Any]
"""Called when a scheduler starts or has stopped; what it returns is awaited, if it can be."""


async def call_hooks(hooks: Sequence[Hook]) -> None:
    """Call these one after the other."""
    for hook in hooks:
        answer = hook()
        if inspect.isawaitable(answer):
            await answer


def _again(before: HandlerFunction, function: HandlerFunction) -> bool:
    """Whether a function is defined again where there is no file: a cell of a notebook that is run twice."""
    names = [(getattr(each, "__module__", ""), getattr(each, "__qualname__", "")) for each in (before, function)]
    return names[0] == names[1] and names[0][0] == "__main__" and _is_interactive()


def _is_interactive() -> bool:
    return not hasattr(sys.modules["__main__"], "__file__")


def _errors(given: type[BaseException] | Errors | None) -> Errors | None:
    """One class of errors, or several. Raises InvalidJob."""
    classes = given if given is None or isinstance(given, tuple) else (given,)
    for one in classes or ():
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise InvalidJob(f"retry_for, give_up_on: {one!r} is not a class of exceptions, or a tuple of these")
    return classes


def _named(function: HandlerFunction, keys: Sequence[Any]) -> dict[str, str | float]:
    """The defaults of the parameters that these keys name: the function alone knows them."""
    named = set(_NAMED.findall(str(keys)))
    given = {each.name: each.default for each in inspect.signature(function).parameters.values() if each.name in named}
    return {name: default for name, default in given.items() if isinstance(default, str | int | float)}


def _own_name(function: Any) -> str:
    """The name of a function, by which it is a handler. Raises InvalidJob for one that has none."""
    name: str | None = getattr(function, "__name__", None)
    if callable(function) and (name is None or "<" in name):
        raise InvalidJob(f"handler: {function!r} has no name; give it one, as in handler('name')", field="name")
    return name or repr(function)


def _check_name(name: Any) -> None:
    """Raises InvalidJob for a handler's name that can't be one."""
    converted(name, Name, "name", InvalidJob)


class Program:
    """The handlers and jobs of one program. Both are given before the scheduler is started (`running`)."""

    def __init__(self, name: str | None, handlers: dict[str, Handler], running: Callable[[], bool]) -> None:
        self.name = name
        self._handlers = handlers
        self._running = running
        self._defaults: dict[str, Mapping[str, Any]] = {}
        self.uniques: dict[str, Unique] = {}
        """By queue, the rule by which runs of its handler are unique, unless a call has one of its own."""
        self.named: dict[str, Mapping[str, Any]] = {}
        """By handler that has any, the defaults of arguments that its keys name."""
        self.arounds: list[Around] = []
        self.insides: list[Inside] = []
        self._pool = Pool()
        self.startups: list[Hook] = []
        self.shutdowns: list[Hook] = []
        self.jobs: list[JobDefinition] = []
        self.declared = False

    def add_handler(self, name: str, function: HandlerFunction, options: Mapping[str, Any]) -> None:
        """Register a function under a name. Raises InvalidJob, InvalidRequest or UnknownArgument."""
        check_names(options, list(HandlerOptions.__annotations__), UnknownArgument)
        if self._running():
            raise InvalidJob(f"handler {name!r}: register handlers before the scheduler is started")
        if name in self._handlers and not _again(self._handlers[name].function, function):
            raise InvalidJob(f"handler {name!r} is registered already")
        _check_name(name)
        defaults = {option: value for option, value in options.items() if option in RunFields.__annotations__}
        judge = defaults.pop("retry") if callable(defaults.get("retry")) else options.get("retry_if")
        if judge is not None and callable(options.get("retry")) and options.get("retry_if") is not None:
            raise InvalidJob(f"handler {name!r}: retry is a function, and so is retry_if; give one of them")
        if judge is not None and (not callable(judge) or inspect.iscoroutinefunction(judge)):
            raise InvalidJob(f"handler {name!r}: retry_if must be a plain function of the run and the error")
        places = defaults.pop("concurrency") if type(defaults.get("concurrency")) is int else None
        one_offs(name, [], wanted(defaults), 0, bytes(10))
        rules = Rules(
            retry_for=_errors(options.get("retry_for")),
            give_up_on=_errors(options.get("give_up_on")) or (),
            judge=judge,
            arounds=self.arounds,
            insides=self.insides,
        )
        if (wanted_pool := options.get("pool")) not in (None, "process"):
            raise InvalidJob(f"handler {name!r}: pool must be 'process', not {wanted_pool!r}")
        queue, unique = options.get("queue"), unique_rule(None, options.get("unique"), None, None)
        if not (queue is None or (isinstance(queue, str) and queue)):
            raise InvalidJob(f"handler {name!r}: queue must be a name, not {queue!r}")
        if isinstance(unique, Unique):
            check_template(unique.key, "unique.key")
            self.uniques[f"handler/{name}"] = unique
        self._handlers[name] = Handler(name, function, places, rules, self._pool if wanted_pool else None, queue)
        self._defaults[name] = defaults
        if named := _named(function, [*map(defaults.get, KEYED), unique]):
            self.named[name] = named

    def with_defaults(self, handler: object, given: Mapping[str, Any], *, of_job: bool = False) -> Mapping[str, Any]:
        """The keyword arguments of a call, and those of its handler that it does not give itself. A job, and a call
        that says when its run is due, have their own times."""
        found = self._defaults.get(handler) if isinstance(handler, str) else None
        if not found:
            return given
        if of_job or any(given.get(name) is not None for name in TIMES):
            found = {name: value for name, value in found.items() if name not in TIMES}
        return {**found, **given}

    def with_named(self, handler: object, args: Any) -> Any:
        """The args of a run, with the default of each that a key of this handler names and they leave out."""
        named = self.named.get(handler) if isinstance(handler, str) else None
        return {**named, **(args or {})} if named and (args is None or isinstance(args, Mapping)) else args

    def all_with_named(self, handler: str, args: Sequence[Any]) -> list[Any]:
        """The same of each of these."""
        return [self.with_named(handler, each) for each in args]

    def add_around(self, function: Callable[[RunContext], Any]) -> None:
        """Have handlers called within this context. Raises InvalidJob."""
        self.check_stopped("around")
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise InvalidJob("around: give a generator function of the run, async or plain, which yields once")
        if inspect.isgeneratorfunction(inside := inspect.unwrap(function)):
            self.insides.append(contextmanager(function) if inside is function else function)
        else:
            self.arounds.append(asynccontextmanager(function) if inspect.isasyncgenfunction(function) else function)

    def add_hook(self, hooks: list[Hook], function: Hook) -> None:
        """Have it called at the start, or at the end. Raises InvalidJob."""
        yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if not callable(function) or yields:
            raise InvalidJob("on_startup, on_shutdown: give a function, async or plain, which does not yield")
        hooks.append(function)

    def registering(self, name: str | None, options: Mapping[str, Any]) -> Callable[[HandlerFunction], None]:
        """What registers a function. Raises InvalidJob if no name was meant."""
        if name is not None and not isinstance(name, str):
            raise InvalidJob("handler: write @scheduler.handler() or @scheduler.handler('name'), with parentheses")
        return lambda function: self.add_handler(name or _own_name(function), function, options)

    def scheduling(
        self, trigger: Any, name: str | None, args: Any, fields: Mapping[str, Any]
    ) -> Callable[[HandlerFunction], None]:
        """What gives a function a job. Raises InvalidTrigger, or InvalidJob once the scheduler runs."""
        trigger_spec(trigger)
        self.check_stopped("job")
        return lambda function: self.add_job(function, name, trigger, args, fields)

    def add_job(
        self, function: HandlerFunction, name: str | None, trigger: Any, args: Any, fields: Mapping[str, Any]
    ) -> None:
        """Keep a job that calls this function, which becomes a handler unless it is one. Raises InvalidJob."""
        handler = self._name_of(function)
        if handler is None:
            handler = _own_name(function)
            self.add_handler(handler, function, {})
        given: Any = {"handler": handler, "args": args, **fields}
        definition = self.definition(JobSpec(name or handler, trigger, given))
        if _is_interactive():
            self.jobs = [job for job in self.jobs if job.name != definition.name]
        self.jobs.append(definition)

    def check_stopped(self, what: str) -> None:
        """Raises InvalidJob once the scheduler runs."""
        if self._running():
            raise InvalidJob(f"{what}: do it before the scheduler is started; afterwards, use add_job")

    def definition(self, spec: JobSpec) -> JobDefinition:
        """The checked definition of a job. A handler that is registered here must be able to take its args."""
        fields: dict[str, Any] = {**spec.fields}
        if fields.get("handler") is not None:
            handler = self.handler_name(fields["handler"], InvalidJob)
            fields = {**self.with_defaults(handler, {**fields, "handler": handler}, of_job=True)}
            fields["args"] = self.with_named(handler, fields.get("args"))
        from horarium.wire.definitions import read_definition

        definition = read_definition(job_fields(spec.name, spec.trigger, fields))
        if isinstance(definition.target, HandlerTarget):
            self.check_args(definition.target.name, [encode("args", definition.target.args)])
        return definition

    def handler_name(self, given: object, error: type[HorariumError]) -> Any:
        """The name of a handler, which may be given by its function. Raises `error` for one that is not registered."""
        if isinstance(given, str) or not callable(given):
            return given
        name = self._name_of(given)
        if name is None:
            shown = getattr(given, "__name__", type(given).__name__)
            raise error(
                f"handler: the function {shown} is not registered; put @scheduler.handler() above it, or give the name "
                "of a handler that another process has",
                field="handler",
            )
        return name

    def registered(self, given: object) -> Handler | None:
        """The handler that is registered here, by its name or its function."""
        return self._handlers.get(given if isinstance(given, str) else self._name_of(given) or "")

    def _name_of(self, function: object) -> str | None:
        function = function_of(function)
        return next((name for name, one in self._handlers.items() if one.function == function), None)

    def check_args(self, name: str, payloads: Sequence[bytes | None]) -> None:
        """Raises WrongArguments if a handler that is registered here can't be called with one of these."""
        handler = self._handlers.get(name)
        if handler is not None:
            for payload in payloads:
                handler.arguments.check(payload)
