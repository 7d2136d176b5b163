"""The schema's versions: numbered, forward only, never edited once released.

All that are missing are applied in one transaction that begins IMMEDIATE: of several processes that open a new file at
once, one does it and the others find it done.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files

import apsw
from msgspec import Struct

from horarium.errors import BrokenInvariant, InvalidSetting

_TABLE = (
    "CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL)"
)


class Migration(Struct, frozen=True):
    """One step of the schema: `NNNN_name.sql`."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return sha256(self.sql.encode()).hexdigest()


def known_migrations() -> list[Migration]:
    """Those that this version of the code brings, in order."""
    found = [
        Migration(int(file.name[:4]), file.name[5:-4], file.read_text(encoding="utf-8"))
        for file in files("horarium.stores.sqlite").joinpath("migrations").iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found, key=lambda migration: migration.number)


def migrate(connection: apsw.Connection, migrations: Sequence[Migration]) -> int:
    """Apply what is missing. The number applied. Raises InvalidSetting if the file is newer than the code."""
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
    applied = dict(connection.execute("SELECT number, checksum FROM migrations"))
    newest = max((migration.number for migration in migrations), default=0)
    if max(applied, default=0) > newest:
        raise InvalidSetting(
            f"SQLite file {connection.filename}: its schema is version {max(applied)}, this Horarium knows up to "
            f"{newest}; upgrade Horarium, or give another file",
            field="store",
        )
    missing = [migration for migration in migrations if not _is_applied(migration, applied)]
    for migration in missing:
        connection.execute(migration.sql)
        connection.execute(
            "INSERT INTO migrations (number, name, checksum) VALUES (?, ?, ?)",
            (migration.number, migration.name, migration.checksum),
        )
    return len(missing)


def _is_applied(migration: Migration, applied: dict[int, str]) -> bool:
    checksum = applied.get(migration.number)
    if checksum not in (None, migration.checksum):
        raise BrokenInvariant(
            f"migration {migration.number:04} ({migration.name}) was applied with another text; a released migration "
            "must never be edited: write a new one"
        )
    return checksum is not None
