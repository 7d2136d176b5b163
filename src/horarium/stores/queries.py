"""Named SQL, read from a `queries.sql` beside the store that uses it.

A query begins at a line `-- name: NAME`; the comment lines below it say why it is as it is, and are not sent. The names
and their order are the same in every dialect. Nothing builds SQL from values: the only thing that varies is how many
rows a `VALUES (?, ?)` clause has, and `Queries.rows` writes that clause out. Where two queries end in the same way, the
second says at its end `-- The rest as NAME, from: TEXT`: the part of the first that begins at this text is its end too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_REST = re.compile(r"^-- The rest as (\w+), from: (.+)\n", re.MULTILINE)
_VALUES = re.compile(r"(?<=VALUES )\([?, ]+\)")


class Queries:
    """The queries of one dialect, by name."""

    def __init__(self, text: str) -> None:
        _, *parts = _NAME.split(text)
        names, bodies = parts[::2], parts[1::2]
        assert len(set(names)) == len(names), "two queries have the same name"
        written = dict(zip(names, bodies, strict=True))
        self._texts = {name: _without_comments(_whole(body, written)) for name, body in written.items()}
        self._rows: dict[tuple[str, int], str] = {}

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def names(self) -> list[str]:
        """All names, in the order of the file."""
        return list(self._texts)

    def rows(self, name: str, count: int) -> str:
        """The query with its one row of placeholders repeated `count` times."""
        text = self._rows.get((name, count))
        if text is None:
            text = _VALUES.sub(lambda row: ",".join([row[0]] * count), self._texts[name], count=1)
            self._rows[name, count] = text
        return text


def load_queries(package: str) -> Queries:
    """The `queries.sql` of a package."""
    return Queries(files(package).joinpath("queries.sql").read_text(encoding="utf-8"))


def _whole(body: str, written: Mapping[str, str]) -> str:
    rest = _REST.search(body)
    if rest is None:
        return body
    other = written[rest[1]]
    return body[: rest.start()] + other[other.index(rest[2]) :]


def _without_comments(body: str) -> str:
    lines = (line.strip() for line in body.splitlines())
    return " ".join(line for line in lines if line and not line.startswith("--")).rstrip(";")
