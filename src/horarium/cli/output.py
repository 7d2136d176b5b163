"""How values are printed: JSON for programs, aligned text in a pipe, a table with one line a row on a terminal.

What other people wrote (errors, names, payloads) is data: control characters in it could move the cursor, change the
title or write the clipboard of a terminal. So all is printed through `say`, `cell` and `json_text`, which replace or
escape them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from itertools import islice
from typing import Any, NamedTuple

import click
import msgspec

_STEPS = ((86_400 * 2, 86_400, "d"), (5_400, 3_600, "h"), (90, 60, "min"), (0, 1, "s"))
"""From this many seconds on, in units of that many seconds, with this name."""

YEAR_SECONDS = 365 * 86_400


def relative(moment: datetime, now: datetime) -> str:
    """`in 3 min`, `2 h ago`, `now`: the distance from `now` in one unit."""
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    text = duration(abs(seconds))
    return f"in {text}" if seconds > 0 else f"{text} ago"


def duration(seconds: float) -> str:
    """A length of time in one unit: `0.4 s`, `12 s`, `3 min`, `5 h`, `4 d`, `2 y`."""
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 ", " ")
    if seconds >= 2 * YEAR_SECONDS:
        return f"{seconds / YEAR_SECONDS:.0f} y"
    _, size, unit = next(step for step in _STEPS if seconds >= step[0])
    return f"{seconds / size:.0f} {unit}"


def local(moment: datetime, now: datetime, zone: tzinfo | None = None) -> str:
    """The wall time in the zone (None: that of this machine), as short as it can be told from others: without the
    seconds where they are zero, with the year where it is another one."""
    here, today = moment.astimezone(zone), now.astimezone(zone)
    year = f" {here.year}" if here.year != today.year else ""
    return f"{here.day} {here:%b}{year} {_clock(here)}"


def universal(moment: datetime) -> str:
    """The time of day in UTC: `03:00Z`."""
    return f"{_clock(moment.astimezone(UTC))}Z"


def is_utc(now: datetime, zone: tzinfo | None = None) -> bool:
    """Whether the zone (None: that of this machine) is UTC, so that one column is enough."""
    return not now.astimezone(zone).utcoffset()


def _clock(moment: datetime) -> str:
    return f"{moment:%H:%M}" if moment.second == 0 and moment.microsecond == 0 else f"{moment:%H:%M:%S}"


WIDTHS_FROM_ROWS = 1_000
"""Column widths follow the first rows, up to this number; later rows are printed as they come."""

WIDE_COLUMNS = 120
ID_CHARS_MIN = 13
"""A run's id begins with its time in milliseconds, which is that long."""

_RAW = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that JSON may hold as they are, and a terminal should not get: C1 controls and changes of direction."""


def say(text: str, *, err: bool = False) -> None:
    """One or more lines for people."""
    click.echo(printable(text), err=err)


def printable(text: str) -> str:
    """The text with every character replaced that does not print, but line breaks."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def print_json(value: Any) -> None:
    click.echo(_escaped(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))


def print_json_list(items: Iterable[Any]) -> None:
    """A list as a JSON array, printed as it comes in."""
    empty = True
    for item in items:
        click.echo("[" if empty else ",")
        click.echo(json_text(item), nl=False)
        empty = False
    click.echo("[]" if empty else "\n]")


def json_text(value: Any) -> str:
    """A value as JSON on one line."""
    return _escaped(msgspec.json.encode(value).decode())


def _escaped(text: str) -> str:
    return _RAW.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class Column(NamedTuple):
    """A column of a table. `whole`: it is copied into the next command, so on a narrow terminal the others are cut.
    `when`: it holds instants, which a terminal shows as a distance, in local time and in UTC. `title`: its name there.
    `id`: it holds runs' ids, of which a terminal shows as much as tells them apart. `wide`: only on a wide terminal.
    `of`: the field that it shows, or a function of the item; left out, the field of its name."""

    name: str
    whole: bool = False
    when: bool = False
    title: str = ""
    id: bool = False
    wide: bool = False
    of: Callable[[Any], Any] | str = ""

    def value(self, item: Any) -> Any:
        """What it shows of an item: a struct, or a mapping as the API answers it."""
        if callable(self.of):
            found = self.of(item)
        else:
            field = self.of or self.name
            found = item[field] if isinstance(item, dict) else getattr(item, field)
        if found is msgspec.UNSET:
            return None
        return datetime.fromisoformat(found) if self.when and isinstance(found, str) else found


def print_table(columns: Sequence[Column], items: Iterable[Any], none: str = "") -> None:
    """A row for each item; `none` says what to do where there are none."""
    rows = ([column.value(item) for column in columns] for item in items)
    if sys.stdout.isatty():
        _print_rich(columns, list(rows), none)
    else:
        _print_plain(columns, (tuple(_plain(value) for value in row) for row in rows))


def _print_plain(columns: Sequence[Column], rows: Iterator[tuple[str, ...]]) -> None:
    names = tuple(column.name for column in columns)
    first = list(islice(rows, WIDTHS_FROM_ROWS))
    widths = [max(map(len, column)) for column in zip(names, *first, strict=True)]
    for row in (tuple(name.upper() for name in names), *first):
        click.echo(_aligned(row, widths))
    for row in rows:
        click.echo(_aligned(row, widths))


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _print_rich(columns: Sequence[Column], rows: list[Sequence[Any]], none: str) -> None:
    if not rows:
        say(none, err=True)
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if console.width < WIDE_COLUMNS:
        shown = [index for index, column in enumerate(columns) if not column.wide]
        columns, rows = [columns[index] for index in shown], [[row[index] for index in shown] for row in rows]
    rows = _with_short_ids(columns, rows)
    now = datetime.now(UTC)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    with_utc = not is_utc(now)
    for column in columns:
        for name in _headers(column, with_utc):
            table.add_column(name.upper(), no_wrap=column.whole or column.when, min_width=min(len(name), 8))
    for row in rows:
        table.add_row(*(cut for column, value in zip(columns, row, strict=True) for cut in _texts(column, value, now)))
    console.print(table)


def _with_short_ids(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    places = {index for index, column in enumerate(columns) if column.id}
    ids = {row[index] for row in rows for index in places}
    length = next((n for n in range(ID_CHARS_MIN, 36) if len({id[:n] for id in ids}) == len(ids)), 36)
    return [[value[:length] if index in places else value for index, value in enumerate(row)] for row in rows]


def _headers(column: Column, with_utc: bool) -> tuple[str, ...]:
    title = column.title or column.name
    if not column.when:
        return (title,)
    return (title, "local", "utc") if with_utc else (title, "utc")


def _texts(column: Column, value: Any, now: datetime) -> list[Any]:
    """The cells of one value. One that is too long for its column is cut, never broken into lines."""
    from rich.text import Text

    if not column.when:
        text = one_line(_plain(value))
        return [Text(text, style=_STYLES.get(text, ""), no_wrap=True, overflow="ellipsis")]
    with_utc = not is_utc(now)
    if value is None:
        return [Text("")] * (3 if with_utc else 2)
    shown = [relative(value, now), local(value, now)] + ([universal(value)] if with_utc else [])
    return [Text(text, style="" if index == 0 else "dim") for index, text in enumerate(shown)]


_STYLES = {
    "completed": "green", "failed": "red", "running": "cyan", "cancelling": "yellow", "cancelled": "yellow",
    "skipped": "dim", "enabled": "green", "paused": "yellow", "finished": "dim", "ready": "green", "not ready": "red",
}  # fmt: skip


def _plain(value: Any) -> str:
    """A cell of a table, on one line: instants to the second."""
    text = moment_text(value.replace(microsecond=0)) if isinstance(value, datetime) else cell(value)
    return text.replace("\n", " ")


def print_fields(pairs: Iterable[tuple[str, Any]]) -> None:
    """Names and values, one a line; empty ones are left out."""
    shown = [(name, cell(value)) for name, value in pairs if value not in (None, "", {}, [], ())]
    width = max((len(name) for name, _ in shown), default=0)
    for name, text in shown:
        first, *more = text.splitlines() or [""]
        click.echo(f"{name.ljust(width)}  {first}")
        for line in more:
            click.echo(f"{' ' * width}  {line}")


def cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return moment_text(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | int | float):
        return printable(str(value))
    if isinstance(value, msgspec.Struct):
        value = {name: each for name, each in msgspec.structs.asdict(value).items() if each is not msgspec.UNSET}
    return json_text(value)


def labels_text(labels: Mapping[str, Any], by: str = ", ") -> str:
    """Labels as people type them."""
    return by.join(f"{name}={value}" for name, value in labels.items())


def moment_text(moment: datetime) -> str:
    """An instant in UTC, RFC 3339."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def beside(moment: datetime) -> str:
    """An instant for a sentence: UTC, local time where that is another, and how far off it is."""
    now = datetime.now(UTC)
    here = "" if is_utc(now) else f", {local(moment, now)} local"
    return f"{moment_text(moment)} ({relative(moment, now)}{here})"
