"""`--app MODULE:NAME`: the object in the user's own code that performs runs."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import click

from horarium.errors import InvalidSetting


def load_app(app: str) -> Any:
    """The object that `module:name` names, from the installed packages or the current directory. Raises InvalidSetting;
    for a module that fails when it is imported, after its traceback was shown."""
    module_name, colon, path = app.partition(":")
    if not colon or not module_name or not path or "/" in module_name or module_name.startswith("."):
        raise InvalidSetting(f"--app: {app!r} is not MODULE:NAME, such as myapp.tasks:make_report", field="app")
    found = _import(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise InvalidSetting(f"--app: module {module_name!r} has no {path!r}", field="app")
        found = getattr(found, part)
    return found


def _import(name: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise InvalidSetting(f"--app: there is no module {name!r} here or installed", field="app") from None
        _show(error)
        raise InvalidSetting(f"--app: module {name!r} can't be imported: {error}", field="app") from None
    except Exception as error:
        _show(error)
        raise InvalidSetting(
            f"--app: module {name!r} can't be imported: {type(error).__name__}: {error}", field="app"
        ) from None


def _show(error: Exception) -> None:
    trace: TracebackType | None = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    click.echo("".join(traceback.format_exception(type(error), error, trace)).rstrip(), err=True)


def _is_ours(file: str) -> bool:
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")


def is_scheduler(found: Any) -> bool:
    """Whether it is a Scheduler or a SyncScheduler, or runs by itself as these do."""
    return hasattr(found, "run_forever")


def run_scheduler(
    scheduler: Any,
    *,
    slots: int | None = None,
    grace: float | None = None,
    name: str | None = None,
    queues: Sequence[str] | None = None,
) -> None:
    """Run it until a signal stops it. Given values replace those that it was made with."""
    scheduler.configure(handler_concurrency=slots, grace_seconds=grace, node_name=name, queues=queues)
    if inspect.iscoroutinefunction(scheduler.run_forever):
        asyncio.run(_run(scheduler))
        return
    try:
        scheduler.run_forever()
    finally:
        scheduler.close()


async def _run(scheduler: Any) -> None:
    async with scheduler:
        await scheduler.run_forever()
