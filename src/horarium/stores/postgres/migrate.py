"""The schema's versions: how they are applied. What they may do is in `stores.migrations`.

All that are missing are applied in one transaction under one advisory lock: of several nodes that open a new database
at once, one does it and the others wait and find it done. A column that is added to `runs` is added to `finished` too,
in the same place. However much history there is, an index over it is made once: neither the server nor the driver ends
a migration because it takes long. The indexes of a migration that was held back are built before it, while all others
go on writing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence

from horarium.errors import InvalidSetting
from horarium.stores.migrations import FINAL, FORM, Applied, Migration, missing_migrations
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

_INDEX = re.compile(r"^CREATE INDEX IF NOT EXISTS (\w+) (ON .*?);$", re.MULTILINE | re.DOTALL)
_VALID = "SELECT indisvalid FROM pg_catalog.pg_index WHERE indexrelid = pg_catalog.to_regclass($1::text)"
_BUILDING = (
    "SELECT count(*) FROM pg_catalog.pg_stat_progress_create_index WHERE index_relid = pg_catalog.to_regclass($1::text)"
)
_LOOK_SECONDS = 0.2


async def migrate(connection: Connection, migrations: Sequence[Migration], shown: str, form: int = FORM) -> int:
    """Apply missing migrations, in the transaction of the caller. The number applied. Raises InvalidSetting if the
    schema is too new, or has no place in this database."""
    exists = await first_value(connection, _EXISTS)
    if not exists:
        await _check_encoding(connection, shown)
    if exists and not missing_migrations(await applied(connection), migrations, shown, form):
        return 0
    await connection.execute(_UNLIMITED)
    await connection.execute(_LOCK, timeout=SECONDS_MAX)
    await connection.execute(_TABLE)
    missing = missing_migrations(await applied(connection), migrations, shown, form)
    for migration in missing:
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


async def build_indexes(connection: Connection, migrations: Sequence[Migration], shown: str) -> None:
    """Build what the migrations that are held back will ask for, while all others go on: outside of a transaction."""
    missing = missing_migrations(await applied(connection), migrations, shown, FINAL)
    await connection.execute("SET statement_timeout = 0")
    try:
        for migration in missing:
            for name, what in _INDEX.findall(migration.sql) if migration.form > FORM else ():
                await _build(connection, f"horarium.{name}", f"CREATE INDEX CONCURRENTLY {name} {what}")
    finally:
        await connection.execute("RESET statement_timeout")


async def _build(connection: Connection, name: str, statement: str) -> None:
    """One index. What another process builds is waited for, what one left half built is begun again."""
    while await first_value(connection, _BUILDING, name):  # noqa: ASYNC110  nothing tells when another is done
        await asyncio.sleep(_LOOK_SECONDS)
    valid = await first_value(connection, _VALID, name)
    if valid is False:
        await connection.execute(f"DROP INDEX CONCURRENTLY {name}", timeout=SECONDS_MAX)
    if not valid:
        await connection.execute(statement, timeout=SECONDS_MAX)


async def applied(connection: Connection) -> Mapping[int, Applied]:
    """Applied migrations, by number, where the schema exists."""
    rows = await connection.fetch("SELECT number, checksum, needs FROM horarium.migrations")
    return {row[0]: Applied(row[1], row[2]) for row in rows}
