"""The schema's versions, for stores that speak SQL: numbered, forward only, never edited once released.

Nodes of one release and of the next share a schema while they are replaced one by one, so a migration only adds:
tables, indexes, functions of a new name, columns at the end that have a default or may be NULL. Older code does not
know them and goes on. (An index may give way to one that begins with the same columns.) A migration that can't keep to
this says so in a line `-- needs: N`: code that knows no migration N is refused from then on. That belongs into a later
release than the code which no longer needs the removed part.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files

from msgspec import Struct

from horarium.errors import InvalidSetting

log = logging.getLogger("horarium.stores")
_NEEDS = re.compile(r"^-- needs: (\d+)$", re.MULTILINE)


class Migration(Struct, frozen=True):
    """One step of the schema: `NNNN_name.sql`."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return sha256(self.sql.encode()).hexdigest()

    @property
    def needs(self) -> int:
        """Code must know the migration of this number to work on the schema; 0: any code can."""
        found = _NEEDS.search(self.sql)
        return int(found[1]) if found else 0


class Applied(Struct, frozen=True):
    """What a database says of a migration that was applied to it."""

    checksum: str
    needs: int


def known_migrations(package: str) -> list[Migration]:
    """Those that this version of the code brings for a store, in order."""
    found = [
        Migration(int(file.name[:4]), file.name[5:-4], file.read_text(encoding="utf-8"))
        for file in files(package).joinpath("migrations").iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found, key=lambda migration: migration.number)


def missing_migrations(applied: Mapping[int, Applied], known: Sequence[Migration], shown: str) -> list[Migration]:
    """Those that the database lacks. `shown`: its name in a message. Raises InvalidSetting if its schema is too new for
    this code, or was never released."""
    for migration in known:
        there = applied.get(migration.number)
        if there is not None and there.checksum != migration.checksum:
            why = f"migration {migration.number:04} was applied with another text"
            raise InvalidSetting(f"{unreleased(shown)} ({why})", field="store")
    newest = max((migration.number for migration in known), default=0)
    needed = max((one.needs for one in applied.values()), default=0)
    if needed > newest:
        raise InvalidSetting(
            f"{shown}: its schema is version {max(applied)} and needs a Horarium that knows version {needed}, this one "
            f"knows up to {newest}; upgrade Horarium, or give another database",
            field="store",
        )
    return [migration for migration in known if migration.number not in applied]


def tell(migration: Migration, shown: str) -> None:
    """Log that a migration is applied now."""
    log.info("%s: migration %04d %s", shown, migration.number, migration.name)


def unreleased(shown: str) -> str:
    """The refusal of a database that code between two releases made."""
    return f"{shown}: its schema is of no release of Horarium; give a new database"
