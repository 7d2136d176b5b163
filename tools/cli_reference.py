"""Writes the reference in docs/cli.md from the commands themselves: `python tools/cli_reference.py`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from horarium.cli.tree import cli
from horarium.server.config import ROLES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
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
    yield _text(command.help or "") + "\n"
    if path in _ROLES:
        yield "Its options are those of `horarium serve`, without `--roles`.\n"
        return
    yield "| option | meaning |\n| --- | --- |"
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1]:
            yield f"| `{_cell(record[0])}` | {_cell(record[1])} |"
    yield ""


_ROLES = tuple(f"horarium {role}" for role in ROLES)


def _text(help: str) -> str:
    """A command's help, its examples as code."""
    lines: list[str] = []
    for line in inspect.cleandoc(help).replace("\b\n", "").splitlines():
        is_code = line.startswith("  ")
        if is_code and lines and lines[-1] and not lines[-1].startswith("  "):
            lines.append("")
        lines.append(f"  {line}" if is_code else line)
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGINS)
    PAGE.write_text(before + reference() + rest.partition(ENDS)[2], encoding="utf-8")
