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
from horarium.ports import NOTHING_ALONG, Along, Placeholders, queue_topic
from horarium.stores.encoding import encode_id, encode_json, label_bytes
from horarium.stores.postgres.carriers import carry
from horarium.stores.postgres.rows import run_columns
from horarium.stores.postgres.runs import in_order, parts_to_add
from horarium.stores.postgres.session import QUERIES
from horarium.stores.postgres.signal import topic_id

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
