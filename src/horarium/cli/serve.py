"""`horarium serve` and each role alone: flags to settings, settings to the server's wiring.

The flags are made from the table of settings, so that a setting has a flag as soon as it exists.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from horarium.cli.shell import json_option
from horarium.server.checks import check_settings
from horarium.server.config import ENV_PREFIX, Setting, table
from horarium.server.sources import load_settings

EXAMPLES = {
    "serve": """
\b
Examples:
  horarium serve
  horarium serve --store postgresql://horarium@db/horarium --host 0.0.0.0 --api-key "$KEY"
  horarium serve --config horarium.yaml --log-format json
  horarium serve --roles api,planner
  horarium serve --store postgresql://horarium@db/horarium --processes auto
""",
    "role": """
\b
Example:
  horarium {role} --store postgresql://horarium@db/horarium
""",
}


def setting_options(command: Callable[..., Any], without: tuple[str, ...] = ()) -> Callable[..., Any]:
    """A flag for each setting, and `--config`."""
    for setting in reversed(table()):
        if setting.name in without or not setting.flag:
            continue
        if setting.file_name:
            command = _file_option(setting, setting.file_name)(command)
        command = _option(setting)(command)
    command = click.option(
        "--help-doors",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_help_doors,
        help="Show the options for clients of other schedulers and exit.",
    )(command)
    return click.option(
        "--config",
        envvar="HORARIUM_CONFIG",
        metavar="FILE",
        help="Settings as a YAML file (HORARIUM_CONFIG); the environment and flags win over it.",
    )(command)


def _option(setting: Setting) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    fixed: dict[str, Any] = {"help": _help(setting), "hidden": setting.of_doors}
    if setting.is_switch:
        return click.option(f"{setting.flag}/--no-{setting.flag[2:]}", setting.name, default=None, **fixed)
    repeatable = setting.is_list and setting.default == ()
    return click.option(setting.flag, setting.name, multiple=repeatable, metavar="VALUE", **fixed)


def _help(setting: Setting) -> str:
    return f"{setting.help} Expected: {setting.expected}. [{setting.env}{_default(setting)}]"


def _help_doors(context: click.Context, option: click.Parameter, asked: bool) -> None:
    if not asked:
        return
    shown = [setting for setting in table() if setting.of_doors and setting.flag]
    formatter = context.make_formatter()
    with formatter.section("Options for clients of other schedulers"):
        formatter.write_dl([(s.flag + ("" if s.is_switch else " VALUE"), _help(s)) for s in shown])
    click.echo(formatter.getvalue(), nl=False)
    context.exit()


def _file_option(setting: Setting, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    help = f"File that holds {setting.flag}, so that it is seen in no list of processes. [{ENV_PREFIX}{name.upper()}]"
    return click.option(setting.file_flag, name, metavar="FILE", help=help)


def _default(setting: Setting) -> str:
    if setting.default is None or setting.default == ():
        return ""
    shown = ",".join(setting.default) if setting.is_list else str(setting.default)
    shown = shown.lower() if isinstance(setting.default, bool) else shown
    return f"; default: {shown}"


def _run(config: str | None, as_json: bool, flags: dict[str, Any]) -> None:
    if as_json and flags.get("log_format") is None:
        flags["log_format"] = "json"
    settings = load_settings(flags, os.environ, config)
    check_settings(settings)
    from horarium.server.cpus import usable_cpus

    count = usable_cpus() if settings.processes == "auto" else settings.processes
    if count > 1:
        from horarium.server.supervisor import run_processes

        sys.exit(run_processes(settings, count))
    gc.disable()  # of what a start loads and makes nothing is garbage; once it serves, it is looked for again
    from horarium.server.process import run_server

    sys.exit(run_server(settings))


@click.command(help="Run a server until a signal stops it.\n" + EXAMPLES["serve"])
@setting_options
@json_option
def serve(config: str | None, as_json: bool, **flags: Any) -> None:
    _run(config, as_json, flags)


def _role(name: str, does: str) -> click.Command:
    def run(config: str | None, as_json: bool, **flags: Any) -> None:
        _run(config, as_json, {**flags, "roles": name})

    command = setting_options(json_option(run), without=("roles",))
    return click.command(name, help=f"{does}\n{EXAMPLES['role'].format(role=name)}")(command)


api = _role("api", "Run only the API.")
planner = _role("planner", "Run only the planner, which turns fire times into runs.")
dispatcher = _role("dispatcher", "Run only the dispatcher, which delivers runs to HTTP targets and buses.")
rescuer = _role("rescuer", "Run only the rescuer, which takes runs back from workers that fell silent.")
pruner = _role("pruner", "Run only the pruner, which deletes old runs.")
