"""What another system keeps in a MongoDB, which need not be a replica set: read, never written."""

from __future__ import annotations

from typing import Any

from horarium.stores.mongo.connect import make_client, parse_url, translated

OWN = frozenset({"admin", "config", "local"})
"""Databases that MongoDB keeps for itself."""


async def read_collection(
    url: str, collection: str, database: str, newest: tuple[str, int] | None = None
) -> list[dict[str, Any]]:
    """All documents of a collection; `database`: the one to read where the URL names none. `newest`: this number at
    most, with the greatest of this field. Raises StoreUnavailable."""
    location = parse_url(url)
    client = make_client(location)
    try:
        with translated(location):
            cursor = client[_named(url) or database][collection].find()
            if newest is not None:
                cursor = cursor.sort({newest[0]: -1}).limit(newest[1])
            found: list[dict[str, Any]] = await cursor.to_list()
    finally:
        await client.close()
    return found


async def contents(url: str, database: str, names_max: int) -> tuple[str, dict[str, list[str]]]:
    """The database that is read, and the collections of all of them. Raises StoreUnavailable."""
    location = parse_url(url)
    client = make_client(location)
    try:
        with translated(location):
            names = [name for name in await client.list_database_names() if name not in OWN][:names_max]
            found = {name: sorted(await client[name].list_collection_names())[:names_max] for name in names}
    finally:
        await client.close()
    return _named(url) or database, found


def _named(url: str) -> str:
    return url.partition("://")[2].partition("/")[2].partition("?")[0]
