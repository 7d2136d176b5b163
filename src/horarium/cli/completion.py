"""`horarium completion`: the script that lets a shell complete commands and flags."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(
    help="""Print the completion script for a shell.

\b
Examples:
  horarium completion bash > /etc/bash_completion.d/horarium
  horarium completion zsh > "${fpath[1]}/_horarium"
  horarium completion fish > ~/.config/fish/completions/horarium.fish
""",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.option("--json", "as_json", is_flag=True, help="Print the script as a JSON string.")
def completion(shell: str, as_json: bool) -> None:
    import json

    from horarium.cli.tree import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click knows these three"
    script = kind(cli, {}, "horarium", "_HORARIUM_COMPLETE").source()
    click.echo(json.dumps(script) if as_json else script)
