"""The schema's versions: how they are applied. What they may do is in `stores.migrations`.

All that are missing are applied in one transaction that begins IMMEDIATE: of several processes that open a new file at
once, one does it and the others find it done.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from horarium.stores.migrations import Applied, Migration, missing_migrations, tell

PACKAGE = "horarium.stores.sqlite"

_TABLE = (
    "CREATE TABLE IF NOT EXISTS migrations"
    " (number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, needs INTEGER NOT NULL)"
)


def migrate(connection: apsw.Connection, migrations: Sequence[Migration]) -> int:
    """Apply missing migrations. The number applied. Raises InvalidSetting if the file is too new for this code."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        count = _apply_missing(connection, migrations)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return count


def _apply_missing(connection: apsw.Connection, migrations: Sequence[Migration]) -> int:
    connection.execute(_TABLE)
    rows = connection.execute("SELECT number, checksum, needs FROM migrations")
    applied = {number: Applied(checksum, needs) for number, checksum, needs in rows}
    shown = f"SQLite file {connection.filename}"
    missing = missing_migrations(applied, migrations, shown)
    for migration in missing:
        tell(migration, shown)
        connection.execute(migration.sql)
        connection.execute(
            "INSERT INTO migrations (number, name, checksum, needs) VALUES (?, ?, ?, ?)",
            (migration.number, migration.name, migration.checksum, migration.needs),
        )
    return len(missing)
