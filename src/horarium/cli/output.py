"""How values are printed: JSON for programs, aligned text for people, tables of rich where a terminal shows them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import click
import msgspec

WIDTHS_FROM_ROWS = 1_000
"""Column widths follow the first so many rows; later rows are printed as they come."""


def print_json(value: Any) -> None:
    """One value as JSON, indented."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_json_list(items: Iterable[Any]) -> None:
    """A list as a JSON array, printed as it comes in."""
    empty = True
    for item in items:
        click.echo("[" if empty else ",")
        click.echo(msgspec.json.encode(item).decode(), nl=False)
        empty = False
    click.echo("[]" if empty else "\n]")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], none: str) -> None:
    """Rows under their columns; `none` says what to do where there are none."""
    texts = (tuple(_short(value) for value in row) for row in rows)
    if sys.stdout.isatty():
        _print_rich(columns, list(texts), none)
    else:
        _print_plain(columns, texts)


def _print_plain(columns: Sequence[str], rows: Iterator[tuple[str, ...]]) -> None:
    first = list(islice(rows, WIDTHS_FROM_ROWS))
    widths = [max(map(len, column)) for column in zip(columns, *first, strict=True)]
    for row in (tuple(name.upper() for name in columns), *first):
        click.echo(_aligned(row, widths))
    for row in rows:
        click.echo(_aligned(row, widths))


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _print_rich(columns: Sequence[str], rows: list[tuple[str, ...]], none: str) -> None:
    if not rows:
        click.echo(none, err=True)
        return
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name in KEPT_WHOLE)
    for row in rows:
        table.add_row(*(Text(text, style=_STYLES.get(text, "")) for text in row))
    Console().print(table)


KEPT_WHOLE = ("id", "name", "state", "fire_at", "next_fire_at")
"""Columns that are copied into the next command, and so are not broken while others can be."""

_STYLES = {
    "completed": "green", "failed": "red", "running": "cyan", "cancelling": "yellow", "cancelled": "yellow",
    "skipped": "dim", "enabled": "green", "paused": "yellow",
}  # fmt: skip


def _short(value: Any) -> str:
    """A cell of a table: instants to the second."""
    return moment_text(value.replace(microsecond=0)) if isinstance(value, datetime) else cell(value)


def print_fields(pairs: Iterable[tuple[str, Any]]) -> None:
    """Names and values, one a line; what is empty is left out."""
    shown = [(name, cell(value)) for name, value in pairs if value not in (None, "", {}, [], ())]
    width = max((len(name) for name, _ in shown), default=0)
    for name, text in shown:
        first, *more = text.splitlines() or [""]
        click.echo(f"{name.ljust(width)}  {first}")
        for line in more:
            click.echo(f"{' ' * width}  {line}")


def cell(value: Any) -> str:
    """A value as text without control characters, which could play tricks with a terminal."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return moment_text(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | int | float):
        return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in str(value))
    shown = msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value
    return msgspec.json.encode(shown).decode()


def moment_text(moment: datetime) -> str:
    """An instant in UTC, RFC 3339."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
