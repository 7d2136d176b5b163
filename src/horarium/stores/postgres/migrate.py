"""The schema's versions: numbered, forward only, never edited once released, and only ever adding, so that a node of
the version before works on the schema of the next.

All that are missing are applied in one transaction under one advisory lock: of several nodes that open a new database
at once, one does it and the others wait and find it done. A column that is added to `runs` is added to `finished` too,
in the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files

from msgspec import Struct

from horarium.errors import BrokenInvariant, InvalidSetting
from horarium.stores.postgres.connect import Connection

_LOCK = "SELECT pg_catalog.pg_advisory_xact_lock(1752134257, 0)"
_EXISTS = "SELECT pg_catalog.to_regclass('horarium.migrations') IS NOT NULL"
_TABLE = """
CREATE SCHEMA IF NOT EXISTS horarium;
CREATE TABLE IF NOT EXISTS horarium.migrations (number int4 PRIMARY KEY, name text NOT NULL, checksum text NOT NULL)
"""


class Migration(Struct, frozen=True):
    """One step of the schema: `NNNN_name.sql`."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return sha256(self.sql.encode()).hexdigest()


def known_migrations(package: str = "horarium.stores.postgres") -> list[Migration]:
    """Those that this version of the code brings, in order."""
    found = [
        Migration(int(file.name[:4]), file.name[5:-4], file.read_text(encoding="utf-8"))
        for file in files(package).joinpath("migrations").iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found, key=lambda migration: migration.number)


async def migrate(connection: Connection, migrations: Sequence[Migration]) -> int:
    """Apply what is missing, in the transaction of the caller. The number applied. Raises InvalidSetting if the schema
    is newer."""
    if not await missing_migrations(connection, migrations):
        return 0
    await connection.execute(_LOCK)
    await connection.execute(_TABLE)
    missing = _missing(await _applied(connection), migrations)
    for migration in missing:
        await connection.execute(migration.sql)
        insert = "INSERT INTO horarium.migrations (number, name, checksum) VALUES ($1, $2, $3)"
        await connection.execute(insert, migration.number, migration.name, migration.checksum)
    return len(missing)


async def missing_migrations(connection: Connection, migrations: Sequence[Migration]) -> list[Migration]:
    """Those that the database lacks. Raises InvalidSetting if its schema is newer."""
    exists = await connection.fetchval(_EXISTS)
    return _missing(await _applied(connection) if exists else {}, migrations)


async def _applied(connection: Connection) -> dict[int, str]:
    return {row[0]: row[1] for row in await connection.fetch("SELECT number, checksum FROM horarium.migrations")}


def _missing(applied: dict[int, str], migrations: Sequence[Migration]) -> list[Migration]:
    newest = max((migration.number for migration in migrations), default=0)
    if max(applied, default=0) > newest:
        raise InvalidSetting(
            f"the schema is version {max(applied)}, this Horarium knows up to {newest}; upgrade Horarium, "
            "or give another database",
            field="store",
        )
    for migration in migrations:
        if applied.get(migration.number, migration.checksum) != migration.checksum:
            raise BrokenInvariant(
                f"migration {migration.number:04} ({migration.name}) was applied with another text; a released "
                "migration must never be edited: write a new one"
            )
    return [migration for migration in migrations if migration.number not in applied]
