"""Runs added on a connection of the caller's own, in the caller's own transaction.

It is one statement, so that any driver can carry it: it finds the namespace by its name, adds the runs, and notifies
the nodes, which PostgreSQL does when the transaction commits and not at all if it is rolled back. The runs exist from
that moment on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from horarium.errors import InvalidRequest
from horarium.model import Run, State
from horarium.ports import Placeholders, queue_topic
from horarium.stores.encoding import encode_id
from horarium.stores.postgres.rows import run_columns
from horarium.stores.postgres.session import QUERIES
from horarium.stores.postgres.signal import topic_id

_DOLLAR = re.compile(r"\$\d+")


def add_statement(namespace: str, runs: Sequence[Run], placeholders: Placeholders) -> tuple[str, tuple[Any, ...]]:
    """A statement and its values (lists are arrays, bytes are bytea). Its first column is an array: the ids that were
    inserted, as the 16 bytes of a UUID, or NULL if none was. At least one run; no id twice."""
    if placeholders not in ("$1", "%s"):
        raise InvalidRequest(f"placeholders: {placeholders!r} is neither '$1' nor '%s'", field="placeholders")
    text = QUERIES["add_runs_elsewhere"]
    topics = sorted({topic_id(namespace, queue_topic(run.queue)) for run in runs if run.state is State.PENDING})
    columns = [list(column) if isinstance(column, tuple) else column for column in run_columns(0, runs)[1:]]
    # The placeholders of the statement are in ascending order, each once.
    return _DOLLAR.sub("%s", text) if placeholders == "%s" else text, (namespace, *columns, topics)


async def add_elsewhere(connection: Any, namespace: str, runs: Sequence[Run]) -> list[bool]:
    """`Store.add_runs` on an asyncpg connection, or an asynchronous one of psycopg. Raises what the driver raises."""
    if len({run.id for run in runs}) < len(runs):
        return [answer for run in runs for answer in await add_elsewhere(connection, namespace, [run])]
    if hasattr(connection, "fetch"):
        text, values = add_statement(namespace, runs, "$1")
        ((added, _),) = await connection.fetch(text, *values)
    elif type(connection).__module__.partition(".")[0] == "psycopg" and hasattr(connection, "__aenter__"):
        text, values = add_statement(namespace, runs, "%s")
        async with connection.cursor(row_factory=lambda cursor: tuple) as cursor:
            await cursor.execute(text, values)
            ((added, _),) = await cursor.fetchall()
    else:
        raise InvalidRequest(
            f"connection: {type(connection).__name__} is neither an asyncpg connection nor an asynchronous one of "
            "psycopg; for any other, execute the statement of enqueue_sql",
            field="connection",
        )
    known = set(added or ())
    return [encode_id(run.id) in known for run in runs]
