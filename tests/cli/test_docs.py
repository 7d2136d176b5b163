"""docs/cli.md says what the commands say; every command has a help with an example."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from horarium.cli import COMMANDS, cli
from horarium.cli.job import job
from horarium.cli.run import run
from horarium.server.config import table

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "cli.md").read_text()


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


ALL = list(commands())


def test_the_reference_in_the_docs_is_that_of_the_commands() -> None:
    reference = runpy.run_path(str(ROOT / "tools" / "cli_reference.py"))["reference"]
    assert reference() in DOCS, "write it again: python tools/cli_reference.py"


@pytest.mark.parametrize("path", [path for path, _ in ALL], ids=" ".join)
def test_every_command_stands_in_the_docs_and_shows_an_example(path: tuple[str, ...]) -> None:
    assert f"### horarium {' '.join(path)}\n" in DOCS
    shown = CliRunner().invoke(cli, [*path, "--help"])
    assert shown.exit_code == 0
    assert "Example" in shown.stdout
    assert f"horarium {' '.join(path)}" in shown.stdout


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_every_command_prints_json_and_every_option_has_a_help(path: tuple[str, ...], command: click.Command) -> None:
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    assert "--json" in {flag for option in options for flag in option.opts}
    assert all(option.help for option in options)
    assert all(f"`{option.opts[0]}" in DOCS for option in options if not option.hidden)


def test_serve_has_a_flag_for_every_setting() -> None:
    (serve,) = (command for path, command in ALL if path == ("serve",))
    flags = {flag for option in serve.params for flag in option.opts}
    assert flags >= {setting.flag for setting in table() if setting.flag}


def test_settings_of_doors_are_shown_by_a_help_of_their_own() -> None:
    """Who has no clients of another scheduler need not read of them."""
    everybodys = CliRunner().invoke(cli, ["serve", "--help"]).stdout
    of_doors = CliRunner().invoke(cli, ["serve", "--help-doors"])
    assert of_doors.exit_code == 0
    assert "--help-doors" in everybodys
    for flag in ("--door VALUE", "--door-open", "--simple-scheduler-bus", "--scrape-ready-pop-seconds"):
        assert flag in of_doors.stdout
        assert flag not in everybodys
    assert "--store" not in of_doors.stdout
    for idle in ("--scrape-jitter-seconds", "--scrape-default-interval-seconds"):
        refused = CliRunner().invoke(cli, ["serve", idle, "1"])
        assert refused.exit_code == 2, "a setting of other commands has no effect here"


def test_every_group_sums_up_its_commands() -> None:
    assert all(summary.endswith(".") for _, summary in COMMANDS.values())
    for group in (job, run):
        assert all(name in CliRunner().invoke(group, ["--help"]).stdout for name in group.list_commands(None))  # type: ignore[arg-type]
