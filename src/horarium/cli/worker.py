"""`horarium worker`: performs runs with a function of the user's own code.

`module:function` is called with each claimed run (see `client.worker`); `module:scheduler`, anything with a
`run_forever`, runs by itself on its own store.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import click

from horarium.cli.fields import DURATION
from horarium.cli.shell import connect, server_options
from horarium.errors import InvalidSetting

QUEUES_MAX = 100


@click.command(
    help="""Perform runs with a Python function, until a signal stops it.

\b
The function gets each run (run.id, run.job, run.payload, run.attempt, run.cancel_requested); what it returns is the
result, raising is a failure. On SIGTERM the worker finishes what runs and gives back what it has not begun.
\b
Examples:
  horarium worker --queue reports --app myapp.tasks:make_report
  horarium worker --app myapp.main:scheduler
"""
)
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Queue to serve; repeatable.")
@click.option("--app", required=True, metavar="MODULE:NAME", help="The function, or a Scheduler with handlers.")
@click.option("--slots", type=click.IntRange(1, 256), default=8, show_default=True, help="Runs performed at one time.")
@click.option(
    "--prefetch", type=click.IntRange(0, 1_000), default=0, show_default=True, help="Runs claimed ahead of a free slot."
)
@click.option("--grace", type=DURATION, default=30.0, metavar="DURATION", help="How long a stop waits. [default: 30s]")
@click.option("--name", metavar="NAME", help="Name of the worker; left out: host and process id.")
@server_options
def worker(
    queues: tuple[str, ...],
    app: str,
    slots: int,
    prefetch: int,
    grace: float,
    name: str | None,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    _log(as_json)
    performer = load_app(app)
    run_forever = getattr(performer, "run_forever", None)
    if run_forever is not None:
        asyncio.run(_run_scheduler(performer))
        return
    if not callable(performer):
        raise InvalidSetting(f"--app: {app} is no function; name one, or a Scheduler", field="app")
    if not queues:
        raise click.UsageError("--queue is missing: name the queues whose runs the function performs")
    if len(queues) > QUEUES_MAX:
        raise click.UsageError(f"--queue: {len(queues)} queues; at most {QUEUES_MAX} are served by one worker")
    from horarium.client.worker import Worker

    with connect(url, api_key) as client:
        function = _blocking(performer)
        Worker(
            client, queues, function, name=name, slots=slots, prefetch=prefetch, grace_seconds=grace
        ).run_until_signal()


def load_app(app: str) -> Any:
    """The object that `module:name` names, from the installed packages or the current directory."""
    module_name, colon, path = app.partition(":")
    if not colon or not module_name or not path:
        raise InvalidSetting(f"--app: {app!r} is not MODULE:NAME, such as myapp.tasks:make_report", field="app")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise InvalidSetting(f"--app: there is no module {module_name!r} here or installed", field="app") from None
    for part in path.split("."):
        if not hasattr(found, part):
            raise InvalidSetting(f"--app: module {module_name!r} has no {path!r}", field="app")
        found = getattr(found, part)
    return found


def _blocking(function: Callable[..., Any]) -> Callable[..., Any]:
    """An async function gets an event loop of its own for each run."""
    if not inspect.iscoroutinefunction(function):
        return function
    return lambda run: asyncio.run(function(run))


async def _run_scheduler(scheduler: Any) -> None:
    if hasattr(scheduler, "__aenter__"):
        async with scheduler:
            await scheduler.run_forever()
    else:
        await scheduler.run_forever()


class JsonLines(logging.Formatter):
    """Each record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": self.formatTime(record), "level": record.levelname.lower(), "event": record.getMessage()}
        return json.dumps(line if record.exc_info is None else {**line, "error": self.formatException(record.exc_info)})


def _log(as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
