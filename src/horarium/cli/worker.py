"""`horarium worker`: performs runs with a function of the user's own code, or as shell commands.

`module:function` is called with each claimed run (see `client.worker`); `module:scheduler` runs by itself on its own
store (see `cli.app`). `--allow-commands` starts the programs of command targets (see `client.commands`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import click

from horarium.cli.app import is_scheduler, load_app, run_scheduler
from horarium.cli.fields import DURATION
from horarium.cli.reload import end_with, run_reloading
from horarium.cli.shell import connect, server_options
from horarium.errors import InvalidSetting
from horarium.interrupts import ignore_signals
from horarium.server.logs import lines_to_stderr

QUEUES_MAX = 100


@click.command(
    help="""Perform runs with a Python function, or as shell commands, until a signal stops it.

\b
The function gets each run (run.id, run.job, run.payload, run.attempt, run.cancel_requested); what it returns is the
result, raising is a failure. On SIGTERM the worker finishes its runs and gives back those that have not begun.
\b
With --allow-commands, it starts the programs of command targets: {"type": "command", "command": ["pg_dump", "db"]}.
Anyone who may define jobs or runs then starts programs as the user that this worker runs as.
\b
A Scheduler (--app myapp.main:scheduler) performs the runs of its own handlers, on its own store: no server is
needed, and --slots, --grace and --name replace what it was made with. With --queue it performs only handlers of these
queues: @scheduler.handler(queue="heavy"), and `default` for those that name none.
\b
Examples:
  horarium worker --queue reports --app myapp.tasks:make_report
  horarium worker --queue shell --allow-commands
  horarium worker --queue shell --allow-command pg_dump --allow-command '/opt/jobs/*'
  horarium worker --app myapp.main:scheduler
  horarium worker --app myapp.main:scheduler --reload
"""
)
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Queue to serve; repeatable.")
@click.option("--app", metavar="MODULE:NAME", help="The function, or a Scheduler with handlers.")
@click.option("--allow-commands", is_flag=True, help="Perform runs as shell commands: any program.")
@click.option(
    "--allow-command",
    "programs",
    multiple=True,
    metavar="PATTERN",
    help="Perform runs as shell commands: only such programs, a name or a whole path, * is a wildcard; repeatable.",
)
@click.option(
    "--kill-after",
    type=DURATION,
    default=3.0,
    metavar="DURATION",
    help="Commands: from SIGTERM to SIGKILL. [default: 3s]",
)
@click.option(
    "--pass-env",
    multiple=True,
    metavar="NAME",
    help="Commands: a variable of the worker that they find, beside PATH, HOME, LANG and their kin; * is a wildcard; "
    "repeatable.",
)
@click.option("--slots", type=click.IntRange(1, 256), default=8, show_default=True, help="Runs performed at one time.")
@click.option(
    "--prefetch", type=click.IntRange(0, 1_000), default=0, show_default=True, help="Runs claimed ahead of a free slot."
)
@click.option("--grace", type=DURATION, default=30.0, metavar="DURATION", help="How long a stop waits. [default: 30s]")
@click.option("--reload", is_flag=True, help="Development: start again when a .py file under this directory changes.")
@click.option("--parent", type=int, hidden=True, help="The process that restarts this one; it ends with that.")
@click.option("--name", metavar="NAME", help="Name of the worker; left out: host and process id.")
@server_options
def worker(
    queues: tuple[str, ...],
    app: str | None,
    allow_commands: bool,
    programs: tuple[str, ...],
    kill_after: float,
    pass_env: tuple[str, ...],
    slots: int,
    prefetch: int,
    grace: float,
    reload: bool,
    parent: int | None,
    name: str | None,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    _log(as_json)
    if app is None:
        _hide_from_commands(reload)
    if reload:
        sys.exit(run_reloading(sys.argv[1:]))
    if parent is not None:
        end_with(parent)
    if app is not None and (allow_commands or programs):
        raise click.UsageError("give --app or --allow-commands, not both: start one worker for each")
    if app is None:
        performer = _commands(allow_commands, programs, kill_after, pass_env)
    else:
        performer = load_app(app)
        if is_scheduler(performer):
            run_scheduler(
                performer,
                slots=slots if _is_given("slots") else None,
                grace=grace if _is_given("grace") else None,
                name=name,
                queues=queues or None,
            )
            ignore_signals()
            return
        if not callable(performer):
            raise InvalidSetting(f"--app: {app} is no function; name one, or a Scheduler", field="app")
    _check_queues(queues)
    from horarium.client.worker import CANCEL_GRACE_SECONDS, Worker

    if app is None:
        _end_with_us(performer.kill_all)
    with connect(url, api_key) as client:
        Worker(
            client,
            queues,
            _blocking(performer),
            name=name,
            slots=slots,
            prefetch=prefetch,
            grace_seconds=grace,
            cancel_grace_seconds=max(CANCEL_GRACE_SECONDS, kill_after + 2.0),
        ).run_until_signal()
        ignore_signals()


def _check_queues(queues: tuple[str, ...]) -> None:
    if not queues:
        raise click.UsageError("--queue is missing: name the queues whose runs are performed")
    if len(queues) > QUEUES_MAX:
        raise click.UsageError(f"--queue: {len(queues)} queues; at most {QUEUES_MAX} are served by one worker")


def _hide_from_commands(reload: bool) -> None:
    """The key is not for commands to read. One that reloads hands it on to the process that it starts."""
    from horarium.client.hiding import hide

    hide([] if reload else ["HORARIUM_API_KEY"])


def _commands(allow_commands: bool, programs: tuple[str, ...], kill_after: float, pass_env: tuple[str, ...]) -> Any:
    """The performer of commands."""
    if allow_commands and programs:
        raise click.UsageError("give --allow-commands for any program, or --allow-command for some, not both")
    if not allow_commands and not programs:
        raise click.UsageError("--app is missing; or give --allow-commands, to start the programs of command targets")
    from horarium.client.commands import Commands

    return Commands(programs, grace_seconds=kill_after, pass_env=pass_env)


def _end_with_us(kill_all: Callable[[], None]) -> None:
    """A signal that ends this process at once (the second one) ends the commands too."""

    def on_signal(number: int, frame: object) -> None:
        kill_all()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)


def _is_given(option: str) -> bool:
    """Whether it was given on the command line: a Scheduler has defaults of its own."""
    source = click.get_current_context().get_parameter_source(option)
    return source is click.core.ParameterSource.COMMANDLINE


def _blocking(function: Callable[..., Any]) -> Callable[..., Any]:
    """An async function gets an event loop of its own for each run."""
    if not inspect.iscoroutinefunction(function):
        return function
    return lambda run: asyncio.run(function(run))


def _log(as_json: bool) -> None:
    """As a server logs, unless the program has said how."""
    logging.basicConfig(level=logging.INFO, handlers=[lines_to_stderr(as_json=as_json)])
