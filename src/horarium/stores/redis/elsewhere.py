"""What another system keeps in a Redis: read, never written."""

from __future__ import annotations

from redis.asyncio import Redis
from redis.exceptions import RedisError

from horarium.errors import StoreUnavailable

CONNECT_SECONDS = 5.0


async def read_hash(url: str, key: str) -> list[bytes]:
    """The values of a hash. Raises StoreUnavailable."""
    client = Redis.from_url(url, socket_connect_timeout=CONNECT_SECONDS)
    try:
        found = await client.hvals(key)
    except (RedisError, OSError) as error:
        raise StoreUnavailable(f"Redis can't be read: {error}") from error
    finally:
        await client.aclose()
    return [text if isinstance(text, bytes) else text.encode() for text in found]
