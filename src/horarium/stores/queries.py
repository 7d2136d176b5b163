"""Named SQL, read from a `queries.sql` beside the store that uses it.

A query begins at a line `-- name: NAME`; the comment lines below it say why it is as it is, and are not sent. The names
and their order are the same in every dialect. Nothing builds SQL from values: the only thing that varies is how many
rows a `VALUES (?, ?)` clause has, and `Queries.rows` writes that clause out.

Text that several queries share is a part, which begins at a line `-- part: NAME`. It stands where it is named,
`{NAME}` or `{NAME; this; that}`, with `this` in place of its `{1}`, and so on. A dialect that comes after another has
the queries and parts of that one, unless it has its own of the same name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from importlib.resources import files

_SECTION = re.compile(r"^-- (name|part): (\w+)\n", re.MULTILINE)
_PART = re.compile(r"\{([a-z]\w*)((?:; [^{}]+)?)\}")
_NOT_GIVEN = re.compile(r"\{\d\}")
_VALUES = re.compile(r"(?<=VALUES )\([?, ]+\)")


class Queries:
    """The queries of one dialect, by name. `texts`: of the dialects that it comes after, and its own; `without`:
    names of theirs that it has not."""

    def __init__(self, *texts: str, without: Collection[str] = ()) -> None:
        bodies: dict[str, dict[str, str]] = {"name": {}, "part": {}}
        for text in texts:
            _, *found = _SECTION.split(text)
            kinds, names = found[::3], found[1::3]
            assert len(set(zip(kinds, names, strict=True))) == len(names), "two queries have the same name"
            for kind, name, body in zip(kinds, names, found[2::3], strict=True):
                bodies[kind][name] = _without_comments(body)
        written, parts = bodies["name"], bodies["part"]
        self._texts = {name: _whole(body, parts) for name, body in written.items() if name not in without}
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


def read_queries(package: str) -> str:
    """The `queries.sql` of a package."""
    return files(package).joinpath("queries.sql").read_text(encoding="utf-8")


def load_queries(package: str) -> Queries:
    """The queries of a package that come after no other's."""
    return Queries(read_queries(package))


def _whole(body: str, parts: Mapping[str, str]) -> str:
    def part(named: re.Match[str]) -> str:
        text = parts[named[1]]
        for number, given in enumerate(named[2].split("; ")[1:], 1):
            text = text.replace(f"{{{number}}}", given)
        return _whole(_NOT_GIVEN.sub("", text), parts)

    return _PART.sub(part, body)


def _without_comments(body: str) -> str:
    lines = (line.strip() for line in body.splitlines())
    return " ".join(line for line in lines if line and not line.startswith("--")).rstrip(";")
