"""Runs added on a connection of the caller's own, in the caller's own transaction.

It is one statement, so that any driver can carry it: it finds the namespace by its name, adds the runs, and notifies
the nodes, which PostgreSQL does when the transaction commits and not at all if it is rolled back. The runs exist from
that moment on. Connections (of drivers, of SQLAlchemy and of Django) are told apart by what they are, so that nothing
of them is imported here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

from horarium.errors import InvalidRequest
from horarium.model import Run, State
from horarium.ports import NOTHING_ALONG, Along, Placeholders, queue_topic
from horarium.stores.encoding import encode_id, encode_json, label_bytes
from horarium.stores.postgres.rows import run_columns
from horarium.stores.postgres.runs import in_order, parts_to_add
from horarium.stores.postgres.session import QUERIES
from horarium.stores.postgres.signal import topic_id

Statement = Callable[[Placeholders], tuple[str, tuple[Any, ...]]]
"""A statement with placeholders of this kind, and its values."""
DRIVERS: dict[str, Placeholders] = {"asyncpg": "$1", "psycopg": "%s"}


async def carry(connection: Any, statement: Statement) -> Any:
    """Execute the statement there: the first column of its one row. A synchronous connection is used in a thread while
    its owner waits. Raises what the driver raises, and InvalidRequest for a connection of another kind."""
    libraries = {base.__module__.partition(".")[0] for base in type(connection).__mro__}
    if is_asyncpg(connection):
        text, values = statement("$1")
        return (await connection.fetch(text, *values))[0][0]
    if "sqlalchemy" in libraries:
        return await _by_sqlalchemy(connection, statement)
    if "psycopg" in libraries and hasattr(connection, "cursor"):
        raw = any(base.__name__ == "RawCursorMixin" for base in connection.cursor_factory.__mro__)
        return await _by_psycopg(connection, *statement("$1" if raw else "%s"))
    if hasattr(connection, "inc_thread_sharing") and getattr(connection, "vendor", None) == "postgresql":
        if getattr(connection.cursor, "__self__", connection) is not connection:
            raise InvalidRequest(
                "connection: Django's `connection` is another one in each thread; use a SyncScheduler, or give "
                f"connections[{connection.alias!r}]",
                field="connection",
            )
        return await asyncio.to_thread(_by_django, connection, *statement("%s"))
    raise _refused(type(connection).__name__)


def is_asyncpg(connection: Any) -> bool:
    """A connection of asyncpg. (A pool of them fetches too, on any of its connections: beside the transaction that its
    owner means.)"""
    return hasattr(connection, "fetch") and not hasattr(connection, "acquire")


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


_DOLLAR = re.compile(r"\$(\d+)")


def add_statement(
    namespace: str, runs: Sequence[Run], placeholders: Placeholders, along: Along = NOTHING_ALONG
) -> tuple[str, tuple[Any, ...]]:
    """A statement and its values (lists are arrays, bytes are bytea). Its first column is an array: the ids that were
    inserted, as the 16 bytes of a UUID, or NULL if none was. At least one run; no id twice."""
    if placeholders not in ("$1", "%s"):
        raise InvalidRequest(f"placeholders: {placeholders!r} is neither '$1' nor '%s'", field="placeholders")
    topics = sorted({topic_id(namespace, queue_topic(run.queue)) for run in runs if run.state is State.PENDING})
    ordered = in_order(runs) if len(parts_to_add(runs)) == 1 else runs
    columns = [list(column) if isinstance(column, tuple) else column for column in run_columns(0, ordered)[1:]]
    text, values = QUERIES["add_runs_elsewhere"], (namespace, *columns, topics)
    if along:
        text, values = QUERIES["add_runs_elsewhere_along"], (*values, *_record_columns(along))
    return (text, values) if placeholders == "$1" else _in_order(text, values)


def _in_order(text: str, values: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """The same for a driver that counts the values as they come."""
    numbers = [int(found) - 1 for found in _DOLLAR.findall(text)]
    return _DOLLAR.sub("%s", text), tuple(values[number] for number in numbers)


def _record_columns(along: Along) -> tuple[list[Any], ...]:
    """Records with the runs they are of, and their labels."""
    each = [(encode_id(run_id), record) for run_id, records in along.items() for record in records]
    each.sort(key=lambda pair: pair[1].name)
    labels = [(record.name.encode(), label) for _, record in each for label in label_bytes(record.labels)]
    return (
        [run_id for run_id, _ in each],
        [record.name.encode() for _, record in each],
        [record.version for _, record in each],
        [encode_json(record.labels) for _, record in each],
        [record.body for _, record in each],
        [name for name, _ in labels],
        [label for _, label in labels],
    )


async def add_elsewhere(
    connection: Any, namespace: str, runs: Sequence[Run], along: Along = NOTHING_ALONG
) -> list[bool]:
    """`Store.add_runs` on a connection of the caller's (`carriers.py`). Raises what the driver raises, and
    InvalidRequest."""
    if len({run.id for run in runs}) < len(runs):
        return [answer for run in runs for answer in await add_elsewhere(connection, namespace, [run], along)]
    added = await carry(connection, lambda placeholders: add_statement(namespace, runs, placeholders, along))
    known = {bytes(blob) for blob in added or ()}
    return [encode_id(run.id) in known for run in runs]
