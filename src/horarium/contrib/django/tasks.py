"""A backend of Django's Tasks framework (Django 6, or the package `django-tasks` before it):

    TASKS = {"default": {"BACKEND": "horarium.contrib.django.tasks.HorariumBackend"}}

Each queue of the backend is a handler of the project's scheduler, by the name `django.ALIAS.QUEUE`, and a queue of
handlers: `manage.py horarium worker --queue QUEUE` performs its tasks alone. OPTIONS are those of a handler. A task is
called once, unless OPTIONS have a `retry`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from traceback import format_exception
from typing import Any

import msgspec
from django.db import connections
from django.utils.module_loading import import_string

from horarium.contrib.django import scheduler
from horarium.delivery.context import RunContext
from horarium.delivery.handler import Defer, Discard, Retry
from horarium.errors import NotFound
from horarium.library.values import Run
from horarium.model import State

try:
    ROOT = import_module("django.tasks").__name__
except ModuleNotFoundError:
    ROOT = import_module("django_tasks").__name__
_base, _signals = import_module(f"{ROOT}.base"), import_module(f"{ROOT}.signals")
_json: Any = import_module("django.utils.json" if ROOT == "django.tasks" else "django_tasks.utils")
_Base: Any = import_module(f"{ROOT}.backends.base").BaseTaskBackend

STATUS = {
    State.PENDING: "READY",
    State.RUNNING: "RUNNING",
    State.CANCELLING: "RUNNING",
    State.COMPLETED: "SUCCESSFUL",
}
"""Every other state is FAILED."""
ERRORS_MAX = 5
TRACEBACK_CHARS_MAX = 8_000

REGISTERED: dict[str, frozenset[str]] = {}
"""The queues of each alias that have handlers: Django makes a backend in each thread."""


class HorariumBackend(_Base):
    """Tasks are runs of the scheduler of `settings.HORARIUM`."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        options = {"retry": {"attempts_max": 1}, **self.options}
        for queue in sorted(self.queues - REGISTERED.get(alias, frozenset())):
            scheduler.add_handler(self._handler(queue), self._perform, queue=queue, **options)
        REGISTERED[alias] = frozenset(self.queues)

    def _handler(self, queue: str) -> str:
        return f"django.{self.alias}.{queue}"

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A run of the task. In a transaction of the database in which the store is, it is part of that."""
        self.validate_task(task)
        payload = {"task": task.module_path, "args": _json.normalize_json(list(args)), "kwargs": {}}
        payload["kwargs"] = _json.normalize_json(dict(kwargs))
        how: dict[str, Any] = {"at": task.run_after, "priority": task.priority}
        if scheduler.database is not None and connections[scheduler.database].in_atomic_block:
            how["connection"] = connections[scheduler.database]
        result = self._result(scheduler.enqueue(self._handler(task.queue_name), payload, **how))
        _signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """The task's result. Raises TaskResultDoesNotExist."""
        missing = import_module(f"{ROOT}.exceptions").TaskResultDoesNotExist
        try:
            run = scheduler.get_run(result_id)
        except NotFound:
            raise missing(result_id) from None
        if not run.queue.startswith(f"handler/{self._handler('')}"):
            raise missing(result_id)
        return self._result(run)

    def _result(self, run: Run) -> Any:
        asked = msgspec.json.decode(run.payload or b"{}")
        events = [event for event in run.history if event.state is State.RUNNING]
        task = import_string(asked["task"]).using(
            priority=run.priority, queue_name=run.queue.rpartition(".")[2], backend=self.alias
        )
        result = _base.TaskResult(
            task=task,
            id=run.id,
            status=_base.TaskResultStatus(STATUS.get(run.state, "FAILED")),
            enqueued_at=run.created_at,
            started_at=events[0].at if events else None,
            last_attempted_at=events[-1].at if events else None,
            finished_at=run.finished_at,
            args=asked["args"],
            kwargs=asked["kwargs"],
            backend=self.alias,
            errors=[_base.TaskError(**one) for one in _errors(run.progress)],
            worker_ids=[event.message.rpartition(" claimed by ")[2] for event in events],
        )
        if run.state is State.COMPLETED and run.result is not None:
            object.__setattr__(result, "_return_value", msgspec.json.decode(run.result))
        return result

    def _perform(self, run: RunContext, task: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        found, result = import_string(task), self.get_result(run.id)
        _signals.task_started.send(type(self), task_result=result)
        given = [_base.TaskContext(task_result=result), *args] if found.takes_context else args
        try:
            value = _json.normalize_json(found.call(*given, **kwargs))
        except (Retry, Defer, Discard):
            raise
        except Exception as error:
            self._ended(result, "FAILED", error)
            kept = [
                {"exception_class_path": one.exception_class_path, "traceback": one.traceback} for one in result.errors
            ]
            run.progress({"errors": kept[-ERRORS_MAX:]})
            raise
        object.__setattr__(result, "_return_value", value)
        self._ended(result, "SUCCESSFUL")
        return value

    def _ended(self, result: Any, status: str, error: Exception | None = None) -> None:
        if error is not None:
            kind, trace = type(error), "".join(format_exception(error))
            path = f"{kind.__module__}.{kind.__qualname__}"
            result.errors.append(_base.TaskError(exception_class_path=path, traceback=trace[-TRACEBACK_CHARS_MAX:]))
        object.__setattr__(result, "status", _base.TaskResultStatus(status))
        _signals.task_finished.send(type(self), task_result=result)


def _errors(progress: bytes | None) -> list[dict[str, str]]:
    """Those of its attempts, as far as they are kept."""
    errors: list[dict[str, str]] = [] if progress is None else msgspec.json.decode(progress)["errors"]
    return errors


def backend_of(alias: str) -> Any:
    """The backend of that alias in `settings.TASKS`."""
    return import_module(ROOT).task_backends[alias]
