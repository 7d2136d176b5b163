"""What another system keeps in a MongoDB, which need not be a replica set: read, never written."""

from __future__ import annotations

from typing import Any

from horarium.stores.mongo.connect import make_client, parse_url, translated


async def read_collection(url: str, collection: str, database: str) -> list[dict[str, Any]]:
    """All documents of a collection; `database`: the one to read where the URL names none. Raises StoreUnavailable."""
    location = parse_url(url)
    client = make_client(location)
    named = url.partition("://")[2].partition("/")[2].partition("?")[0]
    try:
        with translated(location):
            found: list[dict[str, Any]] = await client[named or database][collection].find().to_list()
    finally:
        await client.close()
    return found
