"""What another system keeps in a Redis: read, never written."""

from __future__ import annotations

from redis.asyncio import Redis
from redis.exceptions import RedisError

from horarium.errors import StoreUnavailable

CONNECT_SECONDS = 5.0


async def read_jobs(url: str, jobs: str, schedule: str, ready: str) -> tuple[list[bytes], dict[str, float], set[str]]:
    """The values of a hash, a sorted set with its scores, and a list. Raises StoreUnavailable."""
    client = Redis.from_url(url, socket_connect_timeout=CONNECT_SECONDS)
    try:
        async with client.pipeline(transaction=True) as asked:
            asked.hvals(jobs)
            asked.zrange(schedule, 0, -1, withscores=True)
            asked.lrange(ready, 0, -1)
            values, scores, members = await asked.execute()
    except (RedisError, OSError) as error:
        raise StoreUnavailable(f"Redis can't be read: {error}") from error
    finally:
        await client.aclose()
    return [_bytes(value) for value in values], {_text(id): at for id, at in scores}, {_text(id) for id in members}


async def contents(url: str, names_max: int) -> tuple[str, dict[str, list[str]]]:
    """The database that is read with some of its keys, and the others. Raises StoreUnavailable."""
    client = Redis.from_url(url, socket_connect_timeout=CONNECT_SECONDS)
    try:
        number = client.connection_pool.connection_kwargs.get("db", 0)
        found: dict[str, list[str]] = {name: [] for name in await client.info("keyspace")}
        async for key in client.scan_iter(count=names_max):
            found.setdefault(f"db{number}", []).append(_text(key))
            if len(found[f"db{number}"]) == names_max:
                break
    except (RedisError, OSError) as error:
        raise StoreUnavailable(f"Redis can't be read: {error}") from error
    finally:
        await client.aclose()
    return f"db{number}", found


def _bytes(given: bytes | str) -> bytes:
    return given if isinstance(given, bytes) else given.encode()


def _text(given: bytes | str) -> str:
    return _bytes(given).decode(errors="replace")
