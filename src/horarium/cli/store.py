"""`horarium store`: prepare a store before servers start, see whether it can be written to, move it to another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import click

from horarium.cli.output import print_json
from horarium.cli.shell import Lazy, json_option
from horarium.errors import StoreRefused
from horarium.server.config import mask_url, table
from horarium.server.sources import load_settings

store = Lazy(
    name="store",
    commands={
        "migrate": ("horarium.cli.store:migrate", "Create the schema, or bring it up to date."),
        "check": ("horarium.cli.store:check", "Prove that the store can be read and written."),
        "copy": ("horarium.cli.store_copy:copy", "Copy all jobs and runs to another store."),
    },
    help="Prepare, check or copy a store.",
)


def _store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = json_option(command)
    for setting in table():
        if setting.name in ("store", "namespace"):
            help = f"{setting.help} [{setting.env}; default: {setting.default}]"
            command = click.option(setting.flag, setting.name, metavar="VALUE", help=help)(command)
    return click.option(
        "--config", envvar="HORARIUM_CONFIG", metavar="FILE", help="Settings as a YAML file (HORARIUM_CONFIG)."
    )(command)


@click.command(
    help="Create the schema, or bring it up to date. Safe to call again, and from several places at once.\n\n"
    "\b\nExample:\n  horarium store migrate --store postgresql://horarium@db/horarium"
)
@_store_options
def migrate(config: str | None, as_json: bool, **flags: Any) -> None:
    _with_store(config, flags, as_json, "is up to date", makes_file=True)


@click.command(
    help="Open the store and prove that a write would succeed now.\n\n"
    "\b\nExample:\n  horarium store check --store sqlite:///horarium.db"
)
@_store_options
def check(config: str | None, as_json: bool, **flags: Any) -> None:
    _with_store(config, flags, as_json, "can be read and written", makes_file=False)


def _with_store(config: str | None, flags: dict[str, Any], as_json: bool, done: str, *, makes_file: bool) -> None:
    from horarium.node.backends import missing_file

    settings = load_settings(flags, os.environ, config)
    if not makes_file and (path := missing_file(settings.store)) is not None:
        raise StoreRefused(f"store: no such file: {path}")
    asyncio.run(_open(settings.store, settings.namespace))
    url = mask_url(settings.store)
    if as_json:
        print_json({"store": url, "namespace": settings.namespace, "ok": True})
    else:
        click.echo(f"{url} {done}.")


async def _open(url: str, namespace: str) -> None:
    """Opening brings the schema up to date; the check then proves that a write would succeed."""
    from horarium.node.backends import make_store

    opened = make_store(url, namespace)
    await opened.open()
    try:
        await opened.check()
    finally:
        await opened.close()
