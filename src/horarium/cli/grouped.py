"""Help in sections: a command with fifty flags says what each group of them is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

SERVER = ("url", "api_key", "as_json")


def group(title: str, options: Sequence[Callable[..., Any]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add options to a function that becomes a command, as one section of its help."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        before = {parameter.name for parameter in parameters(command)}
        for option in reversed(options):
            command = option(command)
        names = [parameter.name for parameter in parameters(command) if parameter.name not in before]
        groups: dict[str, str] = getattr(command, "__horarium_groups__", {})
        command.__horarium_groups__ = {**groups, **{str(name): title for name in names}}  # type: ignore[attr-defined]
        return command

    return add


def parameters(command: Callable[..., Any]) -> list[click.Parameter]:
    """The parameters that options have added to a function."""
    return list(getattr(command, "__click_params__", []))


class Grouped(click.Command):
    """A command whose options are shown by group, in the order in which they were declared."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._groups: dict[str, str] = getattr(how.get("callback"), "__horarium_groups__", {})

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            if not isinstance(parameter, click.Option):
                continue
            record = parameter.get_help_record(context)
            if record is not None:
                sections.setdefault(self._title(parameter), []).append(record)
        for title in sorted(sections, key=lambda title: title == "Server and output"):
            with formatter.section(title):
                formatter.write_dl(sections[title])

    def _title(self, parameter: click.Parameter) -> str:
        name = str(parameter.name)
        is_shared = name in SERVER or "--help" in parameter.opts
        return self._groups.get(name, "Server and output" if is_shared else "Options")
