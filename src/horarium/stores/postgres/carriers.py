"""Connections of programs that can carry a statement of ours in their own transaction: those of drivers, of SQLAlchemy
and of Django. Told apart by what they are, so that nothing of them is imported here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from horarium.errors import InvalidRequest
from horarium.ports import Placeholders

Statement = Callable[[Placeholders], tuple[str, tuple[Any, ...]]]
"""A statement with placeholders of this kind, and its values."""
DRIVERS: dict[str, Placeholders] = {"asyncpg": "$1", "psycopg": "%s"}


async def carry(connection: Any, statement: Statement) -> Any:
    """Execute the statement there: the first column of its one row. A synchronous connection is used in a thread while
    its owner waits. Raises what the driver raises, and InvalidRequest for a connection of another kind."""
    libraries = {base.__module__.partition(".")[0] for base in type(connection).__mro__}
    if hasattr(connection, "fetch"):  # asyncpg
        text, values = statement("$1")
        return (await connection.fetch(text, *values))[0][0]
    if "sqlalchemy" in libraries:
        return await _by_sqlalchemy(connection, statement)
    if "psycopg" in libraries:
        return await _by_psycopg(connection, *statement("%s"))
    if hasattr(connection, "inc_thread_sharing") and getattr(connection, "vendor", None) == "postgresql":
        return await asyncio.to_thread(_by_django, connection, *statement("%s"))
    raise _refused(type(connection).__name__)


def _refused(kind: str) -> InvalidRequest:
    return InvalidRequest(
        f"connection: {kind} is no connection to PostgreSQL by asyncpg, psycopg, SQLAlchemy (with one of these) or "
        "Django; for any other, execute the statement of enqueue_sql",
        field="connection",
    )


async def _by_sqlalchemy(connection: Any, statement: Statement) -> Any:
    """Of a session, the connection of its transaction, which it begins if need be. A scoped one stands for another one
    in each thread or task: that of the caller."""
    if callable(getattr(connection, "registry", None)):
        connection = connection.registry()
    # Asked before it is connected: a connection that SQLite makes here belongs to this thread.
    dialect = getattr(connection.get_bind() if hasattr(connection, "get_bind") else connection, "dialect", None)
    if dialect is None or not hasattr(connection, "begin_nested"):
        raise _refused(f"SQLAlchemy's {type(connection).__name__}")
    if dialect.name != "postgresql" or dialect.driver not in DRIVERS:
        raise _refused(f"SQLAlchemy's {dialect.name}+{dialect.driver}")
    if hasattr(connection, "sync_session"):
        connection = await connection.connection()
    elif not hasattr(connection, "exec_driver_sql"):
        connection = await asyncio.to_thread(connection.connection)
    text, values = statement(DRIVERS[dialect.driver])
    if hasattr(connection, "sync_connection"):
        return (await connection.exec_driver_sql(text, values)).first()[0]
    return (await asyncio.to_thread(connection.exec_driver_sql, text, values)).first()[0]


async def _by_psycopg(connection: Any, text: str, values: tuple[Any, ...]) -> Any:
    if hasattr(connection, "__aenter__"):
        async with connection.cursor(row_factory=lambda cursor: tuple) as cursor:
            await cursor.execute(text, values)
            return (await cursor.fetchone())[0]
    return await asyncio.to_thread(_execute, connection.cursor(row_factory=lambda cursor: tuple), text, values)


def _execute(cursor: Any, text: str, values: tuple[Any, ...]) -> Any:
    with cursor:
        cursor.execute(text, values)
        return cursor.fetchone()[0]


def _by_django(connection: Any, text: str, values: tuple[Any, ...]) -> Any:
    connection.inc_thread_sharing()
    try:
        return _execute(connection.cursor(), text, values)
    finally:
        connection.dec_thread_sharing()
