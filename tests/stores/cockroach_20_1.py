"""A CockroachStore for CockroachDB 20.1, the newest that can be built from the Go module proxy alone.

Its statements are rewritten for what that version lacks: schemas, identity columns, partial indexes, SKIP LOCKED, CTEs
in correlated subqueries. What it does have is the real transaction layer, wire protocol, leases and replication.
Neither SKIP LOCKED nor any plan of the versions that we support is tested by it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from msgspec.structs import replace

from horarium.stores.cockroach import CockroachStore
from horarium.stores.cockroach.connect import PAUSES
from horarium.stores.cockroach.migrate import PACKAGE, statements_of
from horarium.stores.migrations import known_migrations
from horarium.stores.postgres.connect import Location
from horarium.stores.postgres.pool import Pool

_RUNS = next(
    text
    for migration in known_migrations(PACKAGE)
    for text in statements_of(migration)
    if "EXISTS horarium.runs (" in text
)


@cache
def translated(sql: str) -> str:
    """The statement for 20.1."""
    if sql.startswith(("CREATE SCHEMA", "SET LOCAL lock_timeout")):
        return "SELECT 1"
    text = _RUNS.replace("EXISTS horarium.runs", "EXISTS horarium.finished") if "(LIKE horarium.runs" in sql else sql
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    text = text.replace("table_schema = 'horarium'", "table_schema = 'public'")
    text = _index(_table(text)).replace(" AS MATERIALIZED", " AS")
    text = re.sub(r"FOR (NO KEY )?UPDATE SKIP LOCKED", "FOR UPDATE", text)
    text = _typed(_unnest(text))
    return text.replace("horarium.", "public.")


def _table(text: str) -> str:
    """Sequences for identity columns, and the name of a job that is not deleted as a column, for its unique index."""
    match = re.match(r"CREATE TABLE IF NOT EXISTS horarium\.(\w+)", text)
    if match is None:
        return text
    if "GENERATED ALWAYS AS IDENTITY" in text:
        sequence = f"{match[1]}_num_seq"
        text = text.replace("GENERATED ALWAYS AS IDENTITY", f"DEFAULT nextval('{sequence}')")
        text = f"CREATE SEQUENCE IF NOT EXISTS public.{sequence}; {text}"
    if match[1] == "jobs":
        live = "live_name text AS (CASE WHEN deleted_at IS NULL THEN name ELSE NULL END) STORED,"
        text = text.replace("name text NOT NULL,", f"name text NOT NULL,\n {live}")
    return text


def _index(text: str) -> str:
    """Full indexes in place of partial ones, none in place of those on expressions."""
    if not re.match(r"CREATE (UNIQUE )?INDEX", text):
        return text
    text = re.sub(r"\)\s*WHERE .*$", ")", text, flags=re.DOTALL)
    text = text.replace("ON horarium.jobs (namespace_id, name)", "ON horarium.jobs (namespace_id, live_name)")
    if "runs_gated" in text or "(CASE" in text or "coalesce(" in text:
        return "SELECT 1"
    return text.replace("(queue_id", "(state, gated, queue_id") if "runs_ready" in text else text


def _unnest(text: str) -> str:
    """`unnest` of several arrays as ROWS FROM."""
    out, position = [], 0
    while (found := text.find("unnest(", position)) >= 0:
        end, depth, start, parts = found + 7, 1, found + 7, []
        while depth:
            character = text[end]
            depth += (character in "([") - (character in ")]")
            if (character == "," and depth == 1) or not depth:
                parts.append(text[start:end].strip())
                start = end + 1
            end += 1
        whole = text[found:end]
        rows = ", ".join(f"unnest({part})" for part in parts)
        out += [text[position:found], whole if len(parts) == 1 else f"ROWS FROM ({rows})"]
        position = end
    return "".join([*out, text[position:]])


def _typed(text: str) -> str:
    """Each placeholder with its type wherever it is: a cast does not tell it there."""
    for number in set(re.findall(r"\$(\d+)::", text)):
        match = re.search(rf"\${number}::(\w+(?:\[\])?)", text)
        assert match is not None
        kind = match[1]
        text = re.sub(rf"\${number}(?!\d)(::{re.escape(kind)})?", f"${number}:::{kind}", text)
    return text


class OldConnection:
    """An asyncpg connection that sends translated statements."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetch(self, query: str, *values: Any, **how: Any) -> Any:
        return await self._connection.fetch(translated(query), *values, **how)

    async def execute(self, query: str, *values: Any, **how: Any) -> Any:
        return await self._connection.execute(translated(query), *values, **how)


class OldPool(Pool):
    """Connections that speak to 20.1."""

    async def _connect(self) -> Any:
        return OldConnection(await super()._connect())


class OldStore(CockroachStore):
    """The store under test, on 20.1."""

    @staticmethod
    def _parse_url(url: str) -> Location:
        location = CockroachStore._parse_url(url)
        known = {name: text for name, text in (location.settings or {}).items() if not name.startswith("idle_in")}
        return replace(location, settings=known)

    def _new_pool(self) -> Pool:
        return OldPool(self.location, PAUSES)
