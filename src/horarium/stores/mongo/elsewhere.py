"""What another system keeps in a MongoDB, which need not be a replica set: read, never written."""

from __future__ import annotations

from typing import Any

from horarium.stores.mongo.connect import make_client, parse_url, translated


async def read_collection(
    url: str, collection: str, database: str, newest: tuple[str, int] | None = None
) -> list[dict[str, Any]]:
    """All documents of a collection; `database`: the one to read where the URL names none. `newest`: this number at
    most, with the greatest of this field. Raises StoreUnavailable."""
    location = parse_url(url)
    client = make_client(location)
    named = url.partition("://")[2].partition("/")[2].partition("?")[0]
    try:
        with translated(location):
            cursor = client[named or database][collection].find()
            if newest is not None:
                cursor = cursor.sort({newest[0]: -1}).limit(newest[1])
            found: list[dict[str, Any]] = await cursor.to_list()
    finally:
        await client.close()
    return found
