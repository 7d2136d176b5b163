"""`horarium channel`: where notifications go."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from horarium.cli.fields import DURATION
from horarium.cli.output import Column, print_fields, print_json, say
from horarium.cli.shell import Lazy, Server, on_server
from horarium.errors import HorariumError

if TYPE_CHECKING:
    from horarium.wire.views import RunView

TEST_SECONDS = 60.0
LOOK_EVERY_SECONDS = 0.2
COLUMNS = (
    Column("name", whole=True),
    Column("type", whole=True),
    Column("to", of=lambda each: ", ".join(each.get("to") or [each["url"]])),
    Column("undelivered", of=lambda each: (each.get("undelivered") or {}).get("error")),
)
TYPES = ("webhook", "email", "apprise")
_FINISHED = ("completed", "failed", "cancelled")

channel = Lazy(name="channel", help="Where notifications go: webhooks, email, and what the library apprise speaks to.")
NAME = click.argument("name")


@channel.command(
    help="Define a channel, or replace it.\n\n\b\nExamples:\n"
    "  horarium channel add ops --webhook https://example.org/alerts --signing-secret whsec_...\n"
    "  horarium channel add oncall --email ann@example.org --email bob@example.org\n"
    "  horarium channel add chat --apprise 'slack://TOKEN_A/TOKEN_B/TOKEN_C'\n"
    '  horarium channel add room --webhook https://example.org/room --template \'{"text": "{{message}} {{url}}"}\''
)
@NAME
@click.option("--webhook", metavar="URL", help="A signed POST to this URL.")
@click.option("--email", multiple=True, metavar="ADDRESS", help="A message to this address; repeatable.")
@click.option("--apprise", metavar="URL", help="A service by its URL, as the library apprise reads it.")
@click.option("--signing-secret", metavar="WHSEC", help="Webhook: signs its requests; left out, the server's does.")
@click.option("--group", type=DURATION, metavar="DURATION", help="How long a message waits for more of the same.")
@click.option(
    "--quiet", type=DURATION, metavar="DURATION", help="How long nothing more is said of the same; an hour if left out."
)
@click.option(
    "--template", metavar="TEXT", help="The message: text, or JSON for a webhook, with {{message}}, {{job}} and others."
)
@click.option("--system/--no-system", default=None, help="Whether it hears of lost nodes and queues without workers.")
@on_server
def add(
    server: Server,
    name: str,
    webhook: str | None,
    email: tuple[str, ...],
    apprise: str | None,
    signing_secret: str | None,
    group: float | None,
    quiet: float | None,
    template: str | None,
    system: bool | None,
) -> None:
    fields = {
        "group_seconds": group, "quiet_seconds": quiet, "system": system, "signing_secret": signing_secret,
        "template": _template(template, webhook),
    }  # fmt: skip
    definition = {
        **_place(webhook, email, apprise),
        **{key: value for key, value in fields.items() if value is not None},
    }
    made, created = server.client.channels.put(name, definition)
    server.tell(made, f"Channel {name} {'added' if created else 'replaced'}. Try it: horarium channel test {name}")


def _place(webhook: str | None, email: tuple[str, ...], apprise: str | None) -> dict[str, Any]:
    given = [kind for kind, value in zip(TYPES, (webhook, email, apprise), strict=True) if value]
    if len(given) != 1:
        raise click.UsageError("give one of --webhook, --email and --apprise")
    (kind,) = given
    return {"type": kind, **({"to": list(email)} if email else {"url": webhook or apprise})}


def _template(text: str | None, webhook: str | None) -> Any:
    if text is None or webhook is None:
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--template: the body of a webhook is JSON: {error}") from None


@channel.command("list", help="List channels.\n\n\b\nExample:\n  horarium channel list --json")
@on_server
def list_channels(server: Server) -> None:
    found = list(server.client.channels.list())
    server.tell_all(found, COLUMNS, "There are no channels. Add one: horarium channel add NAME --webhook URL")


@channel.command(help="Show a channel; its secrets are masked.\n\n\b\nExample:\n  horarium channel show ops")
@NAME
@on_server
def show(server: Server, name: str) -> None:
    found = server.client.channels.get(name)
    server.tell(found, lambda: print_fields(found.items()))


@channel.command(help="Send a test message, and show the result.\n\n\b\nExample:\n  horarium channel test ops")
@NAME
@on_server
def test(server: Server, name: str) -> None:
    _show_sent(server, name, server.client.channels.test(name))


@channel.command(
    "send-by",
    help="Send by another channel the events that a channel did not take, and show the result.\n\n\b\nExample:\n"
    "  horarium channel send-by ops oncall",
)
@NAME
@click.argument("other")
@on_server
def send_by(server: Server, name: str, other: str) -> None:
    _show_sent(server, other, server.client.channels.send_by(name, other))


def _show_sent(server: Server, name: str, run: RunView) -> None:
    """The run once it has ended, or as it is after a minute, by this channel."""
    until = time.monotonic() + TEST_SECONDS
    while run.state not in _FINISHED and time.monotonic() < until:
        time.sleep(LOOK_EVERY_SECONDS)
        run = server.client.get_run(run.id)
    if server.as_json:
        print_json(run)
    if run.state != "completed":
        raise HorariumError(f"channel {name}: {run.error or 'the message was not sent; does a dispatcher run?'}")
    refused = run.result.get("refused", {}) if isinstance(run.result, dict) else {}
    if refused:
        who = ", ".join(f"{address} ({answer})" for address, answer in refused.items())
        raise HorariumError(f"channel {name}: the mail server took the message, but not for {who}")
    if not server.as_json:
        say(f"Channel {name} took the message.")


@channel.command(help="Remove a channel.\n\n\b\nExample:\n  horarium channel remove ops")
@NAME
@on_server
def remove(server: Server, name: str) -> None:
    server.client.channels.delete(name)
    server.tell({"removed": name}, f"Channel {name} removed.")
