"""The schema's version, kept in one document, and how it goes up.

Every step can be repeated: it only asks for indexes, and the server itself makes a node that asks for one that is being
built wait until it is there. So of several nodes that open an empty database at once one builds and the others wait,
with no lock that a dead node could leave behind. The version is raised by compare-and-set when a step is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from horarium.errors import InvalidSetting
from horarium.stores.migrations import unreleased
from horarium.stores.mongo.connect import Location, concerns, duplicates, make_dense, translated
from horarium.stores.mongo.indexes import MIGRATIONS, RECORDS, RUNS, SCHEMA, Index, Migration

VERSION_ID = "schema"
LASTING = RUNS, RECORDS
"""Collections that are kept for long, in a new database: their documents take a quarter less room than by default."""


async def migrate(database: Any, location: Location, migrations: Sequence[Migration] = MIGRATIONS) -> int:
    """Apply missing migrations. The number applied. Raises InvalidSetting if the schema is too new for the code: nodes
    of one release and of the next share a database, unless a step says that it needs code which knows it."""
    with translated(location):
        return await _migrate(database, location, migrations)


async def _migrate(database: Any, location: Location, migrations: Sequence[Migration]) -> int:
    schema = database.get_collection(SCHEMA, read_concern=concerns()[0])
    stored = await schema.find_one()
    if stored is not None and stored["_id"] != VERSION_ID:
        raise InvalidSetting(unreleased(location.shown), field="store")
    version = 0 if stored is None else int(stored["number"])
    newest = max((migration.number for migration in migrations), default=0)
    needed = 0 if stored is None else int(stored.get("needs", 0))
    if needed > newest:
        raise InvalidSetting(
            f"{location.shown}: its schema is version {version} and needs a Horarium that knows version {needed}, this "
            f"one knows up to {newest}; upgrade Horarium, or give another database",
            field="store",
        )
    missing = [migration for migration in migrations if migration.number > version]
    if stored is None and missing:
        for name in LASTING:
            await make_dense(database, name)
    for migration in missing:
        await _apply(database, migration)
        await _raise_version(schema, migration)
    return len(missing)


async def _apply(database: Any, migration: Migration) -> None:
    for collection, indexes in groupby(migration.indexes, key=_collection_of):
        await database.command("createIndexes", collection, indexes=[index.model() for index in indexes])


def _collection_of(index: Index) -> str:
    return index.collection


async def _raise_version(schema: Any, migration: Migration) -> None:
    """To this one's number, unless it is there already."""
    step = {"$set": {"number": migration.number, "name": migration.name}, "$max": {"needs": migration.needs}}
    try:
        await schema.update_one({"_id": VERSION_ID, "number": {"$lt": migration.number}}, step, upsert=True)
    except Exception as error:
        # Another node did it first: the upsert found no lower number, and the document exists.
        if duplicates(error) is None:
            raise
