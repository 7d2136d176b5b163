"""The schema's versions, as for PostgreSQL; but each statement is a transaction of its own.

Nodes that open a new database at once all run the same statements, each of which is safe to repeat (IF NOT EXISTS);
one that loses the race for a name tries everything again. So does a node that finds half a migration: which ones were
applied is written down last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from horarium.stores.cockroach.connect import PAUSES
from horarium.stores.migrations import Migration, missing_migrations, tell
from horarium.stores.postgres.connect import Connection, driver, first_value
from horarium.stores.postgres.migrate import SECONDS_MAX, applied

PACKAGE = "horarium.stores.cockroach"

LOST_RACES = frozenset({"23505", "40001", "40P01", "42710", "42P06", "42P07", "XX000"})
"""Another node created the same table, index or schema at the same moment."""

_FIRST = (
    "CREATE SCHEMA IF NOT EXISTS horarium",
    "CREATE TABLE IF NOT EXISTS horarium.migrations (number int8 PRIMARY KEY, name text NOT NULL,"
    " checksum text NOT NULL, needs int8 NOT NULL)",
)
_EXISTS = (
    "SELECT count(*) > 0 FROM information_schema.tables WHERE table_schema = 'horarium' AND table_name = 'migrations'"
)
_DONE = "INSERT INTO horarium.migrations (number, name, checksum, needs) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING"


def statements_of(migration: Migration) -> list[str]:
    """Those that a migration consists of."""
    lines = (line for line in migration.sql.splitlines() if not line.lstrip().startswith("--"))
    return [text for part in "\n".join(lines).split(";") if (text := part.strip())]


async def migrate(connection: Connection, migrations: Sequence[Migration], shown: str) -> int:
    """Apply missing migrations, outside of any transaction. The number applied. Raises InvalidSetting if the schema is
    too new."""
    for pause in PAUSES:
        try:
            return await _once(connection, migrations, shown)
        except driver().PostgresError as error:
            if error.sqlstate not in LOST_RACES:
                raise
        await asyncio.sleep(pause)
    return await _once(connection, migrations, shown)


async def _once(connection: Connection, migrations: Sequence[Migration], shown: str) -> int:
    exists = await first_value(connection, _EXISTS)
    if exists and not missing_migrations(await applied(connection), migrations, shown):
        return 0
    for statement in _FIRST:
        await connection.execute(statement)
    missing = missing_migrations(await applied(connection), migrations, shown)
    for migration in missing:
        tell(migration, shown)
        for statement in statements_of(migration):
            await connection.execute(statement, timeout=SECONDS_MAX)
        await connection.execute(_DONE, migration.number, migration.name, migration.checksum, migration.needs)
    return len(missing)
