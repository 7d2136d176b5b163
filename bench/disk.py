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


async def account(url: str, number: int) -> None:
    """Print what each of the parts takes for one of so many runs."""
    for part, size in sorted((await parts(url)).items(), key=lambda pair: -pair[1]):
        if size > number:
            print(f"    {part:<40} {size / number:6.1f}", flush=True)


async def parts(url: str) -> dict[str, int]:
    """Bytes of each table and index that finished runs are in; nothing where there are none."""
    if url.startswith("redis"):
        return {}
    if url.startswith("sqlite"):
        import apsw

        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        query = "SELECT name, sum(pgsize) FROM dbstat WHERE name LIKE 'runs%' GROUP BY name"
        found = {str(name): int(str(size)) for name, size in connection.execute(query)}
        connection.close()
        return found
    import asyncpg

    server = await asyncpg.connect(url)
    rows = await server.fetch(
        "SELECT relname, pg_relation_size(oid) FROM pg_class WHERE relnamespace = 'horarium'::regnamespace"
        " AND relname LIKE 'finished%' AND relkind IN ('r', 'i')"
    )
    await server.close()
    return {row[0]: row[1] for row in rows}
