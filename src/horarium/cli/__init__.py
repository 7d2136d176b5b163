"""The command `horarium`.

Parses, calls the client (or the server's wiring), prints. It must start fast, so a command's module is imported only
when that command is called. Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted. A user's mistake is one
clear sentence on stderr (with `--json`, one problem as JSON), never a stack trace.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horarium.cli.tree import COMMANDS, SUMMARIES, cli
    from horarium.server.config import Settings


INTERRUPTED = 130
OF_A_COMMAND_LINE = ("click", "gettext", "locale", "horarium.cli")
"""What a server has no use for once its flags are read."""


class ServerAskedFor(SystemExit):
    """Ends a command whose process goes on as a server. The exit status is that of the server."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(0)
        self.settings = settings


def main() -> None:
    """The entry point."""
    settings = _settings_of_a_server()
    if settings is not None:
        from horarium.server.later import forget

        forget(*OF_A_COMMAND_LINE)
        from horarium.server.starting import start

        try:
            sys.exit(start(settings))
        except KeyboardInterrupt:  # before the server listens for signals
            sys.exit(INTERRUPTED)


def _settings_of_a_server() -> Settings | None:
    """What the command line asks a server for; None where it asked for something else, which is done by now."""
    from horarium.cli.tree import cli

    try:
        cli()
    except ServerAskedFor as asked:
        return asked.settings
    return None


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module("horarium.cli.tree"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["COMMANDS", "SUMMARIES", "cli", "main"]
