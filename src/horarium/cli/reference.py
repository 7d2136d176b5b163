"""The reference of every command in Markdown, as it stands in docs/cli.md: made from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from horarium.cli import cli

BEGINS, ENDS = "<!-- reference -->\n", "<!-- end of reference -->\n"


def reference() -> str:
    """All commands and their options, between two marks."""
    return BEGINS + "\n".join(_sections(cli, "horarium")) + "\n" + ENDS


def _sections(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None, f"{name} is listed"
            yield from _sections(found, f"{path} {name}")
        return
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield f"### {path}\n\n    {usage}\n"
    yield inspect.cleandoc(command.help or "").replace("\b\n", "\n").replace("\n  ", "\n      ") + "\n"
    yield "| option | meaning |\n| --- | --- |"
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield f"| `{_cell(record[0])}` | {_cell(record[1])} |"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
