"""The schema's versions: how they are applied. What they may do is in `stores.migrations`.

All that are missing are applied in one transaction under one advisory lock: of several nodes that open a new database
at once, one does it and the others wait and find it done. A column that is added to `runs` is added to `finished` too,
in the same place. However much history there is, an index over it is made once: neither the server nor the driver ends
a migration because it takes long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from horarium.errors import InvalidSetting
from horarium.stores.migrations import Applied, Migration, missing_migrations, tell
from horarium.stores.postgres.connect import Connection, first_value

PACKAGE = "horarium.stores.postgres"

SECONDS_MAX = 24 * 3600.0
"""How long one statement of a migration may take. (A server that is gone is noticed by its connection long before.)"""

_UNLIMITED = "SET LOCAL statement_timeout = 0"
_LOCK = "SELECT pg_catalog.pg_advisory_xact_lock(1752134257, 0)"
_EXISTS = "SELECT pg_catalog.to_regclass('horarium.migrations') IS NOT NULL"
_ENCODING = "SELECT pg_catalog.current_setting('server_encoding')"
ENCODINGS = frozenset({"UTF8", "SQL_ASCII"})
"""Those that hold every text."""
_TABLE = """
CREATE SCHEMA IF NOT EXISTS horarium;
CREATE TABLE IF NOT EXISTS horarium.migrations (
    number int4 PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, needs int4 NOT NULL
)
"""
_DONE = "INSERT INTO horarium.migrations (number, name, checksum, needs) VALUES ($1, $2, $3, $4)"


async def migrate(connection: Connection, migrations: Sequence[Migration], shown: str) -> int:
    """Apply missing migrations, in the transaction of the caller. The number applied. Raises InvalidSetting if the
    schema is too new, or has no place in this database."""
    exists = await first_value(connection, _EXISTS)
    if not exists:
        await _check_encoding(connection, shown)
    if exists and not missing_migrations(await applied(connection), migrations, shown):
        return 0
    await connection.execute(_UNLIMITED)
    await connection.execute(_LOCK, timeout=SECONDS_MAX)
    await connection.execute(_TABLE)
    missing = missing_migrations(await applied(connection), migrations, shown)
    for migration in missing:
        tell(migration, shown)
        await connection.execute(migration.sql, timeout=SECONDS_MAX)
        await connection.execute(_DONE, migration.number, migration.name, migration.checksum, migration.needs)
    return len(missing)


async def _check_encoding(connection: Connection, shown: str) -> None:
    """A database that can't hold every text would refuse the end of a run whose error it can't write."""
    encoding = await first_value(connection, _ENCODING)
    if encoding not in ENCODINGS:
        raise InvalidSetting(
            f"PostgreSQL at {shown}: the encoding of this database is {encoding}, which can't hold every text; make it "
            "with UTF8, e.g. by `createdb --encoding UTF8 --template template0`"
        )


async def applied(connection: Connection) -> Mapping[int, Applied]:
    """Applied migrations, by number, where the schema exists."""
    rows = await connection.fetch("SELECT number, checksum, needs FROM horarium.migrations")
    return {row[0]: Applied(row[1], row[2]) for row in rows}
