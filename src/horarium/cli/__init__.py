"""The command `horarium`.

Parses, calls the client (or the server's wiring), prints. It must start fast, so a command's module is imported only
when that command is called. Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted. A user's mistake is one
clear sentence on stderr (with `--json`, one problem as JSON), never a stack trace.
"""

from __future__ import annotations

from horarium.cli.tree import COMMANDS, cli


def main() -> None:
    cli()


__all__ = ["COMMANDS", "cli", "main"]
