"""The contents of a program: its handlers, by name, and the jobs that it makes by decorator.

Here a function is found by its name and a name by its function, and jobs and args are checked against the handlers that
are registered. A handler that is not registered here may be another process's: nothing is known of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horarium.delivery.handler import Handler, HandlerFunction
from horarium.errors import HorariumError, InvalidJob
from horarium.library.declaring import JobSpec
from horarium.library.fields import job_fields
from horarium.library.one_offs import encode
from horarium.model import HandlerTarget
from horarium.wire.definitions import JobDefinition, read_definition


class Program:
    """The handlers and jobs of one program. Both are given before the scheduler is started (`running`)."""

    def __init__(self, name: str | None, handlers: dict[str, Handler], running: Callable[[], bool]) -> None:
        self.name = name
        self._handlers = handlers
        self._running = running
        self.jobs: list[JobDefinition] = []
        self.declared = False

    def add_handler(self, name: str, function: HandlerFunction, concurrency: int | None) -> None:
        """Register a function under a name. Raises InvalidJob."""
        if self._running():
            raise InvalidJob(f"handler {name!r}: register handlers before the scheduler is started")
        if name in self._handlers:
            raise InvalidJob(f"handler {name!r} is registered already")
        read_definition({"name": name, "trigger": {}, "target": {"type": "handler", "name": name}})
        self._handlers[name] = Handler(name, function, concurrency)

    def add_job(
        self, function: HandlerFunction, name: str | None, trigger: Any, args: Any, fields: Mapping[str, Any]
    ) -> None:
        """Keep a job that calls this function, which becomes a handler unless it is one. Raises InvalidJob."""
        handler = self._name_of(function)
        if handler is None:
            handler = function.__name__
            self.add_handler(handler, function, None)
        given: Any = {"handler": handler, "args": args, **fields}
        self.jobs.append(self.definition(JobSpec(name or handler, trigger, given)))

    def check_stopped(self, what: str) -> None:
        """Raises InvalidJob once the scheduler runs."""
        if self._running():
            raise InvalidJob(f"{what}: do it before the scheduler is started; afterwards, use add_job")

    def definition(self, spec: JobSpec) -> JobDefinition:
        """The checked definition of a job. A handler that is registered here must be able to take its args."""
        fields: dict[str, Any] = {**spec.fields}
        if fields.get("handler") is not None:
            fields["handler"] = self.handler_name(fields["handler"], InvalidJob)
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
        return next((name for name, one in self._handlers.items() if one.function == function), None)

    def check_args(self, name: str, payloads: Sequence[bytes | None]) -> None:
        """Raises WrongArguments if a handler that is registered here can't be called with one of these."""
        handler = self._handlers.get(name)
        if handler is not None and not handler.arguments.free:
            for payload in payloads:
                handler.arguments.of(payload, {})
