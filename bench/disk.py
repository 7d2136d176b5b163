"""What finished runs take on disk, or in memory."""

from __future__ import annotations


async def size(url: str) -> int:
    """Bytes of SQLite's file without its free pages, of PostgreSQL's table of finished runs and its indexes, or of all
    that a Redis has in memory."""
    if url.startswith("sqlite"):
        import apsw

        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.pragma("wal_checkpoint(TRUNCATE)")
        pages, page, free = (connection.pragma(name) for name in ("page_count", "page_size", "freelist_count"))
        connection.close()
        return int((pages - free) * page)
    if url.startswith("redis"):
        from redis.asyncio import Redis

        async with Redis.from_url(url, protocol=2) as client:
            return int((await client.info("memory"))["used_memory"])
    import asyncpg  # type: ignore[import-untyped]

    server = await asyncpg.connect(url)
    size = await server.fetchval("SELECT pg_total_relation_size('horarium.finished')")
    await server.close()
    return int(size)
