"""From the keyword arguments of `Scheduler.add_job` to the plain fields of a job's definition."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from horarium.one_offs import encode_args


def targets(
    handler: str | None,
    args: Mapping[str, Any] | None,
    http: str | Mapping[str, Any] | None,
    queue: str | None,
    bus: str | None,
    payload: Any,
    target: Mapping[str, Any] | None,
) -> list[dict[str, Any]]:
    """The targets that were named; there should be one."""
    given: list[dict[str, Any]] = []
    if handler is not None:
        given.append({"type": "handler", "name": handler, "args": _plain_args(args)})
    if http is not None:
        given.append({"type": "http", **({"url": http} if isinstance(http, str) else http)})
    if queue is not None:
        given.append({"type": "queue", "queue": queue, "payload": payload})
    if bus is not None:
        given.append({"type": "bus", "bus": bus, "payload": payload})
    if target is not None:
        given.append(dict(target))
    return given


def builtins(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Policies may be given as structs, dicts or (catch_up, concurrency) as a bare word."""
    plain: dict[str, Any] = {name: _plain(value) for name, value in fields.items()}
    if isinstance(plain.get("catch_up"), str):
        plain["catch_up"] = {"policy": plain["catch_up"]}
    if isinstance(plain.get("concurrency"), str):
        plain["concurrency"] = {"key": plain["concurrency"]}
    return plain


def _plain(value: Any) -> Any:
    return value if isinstance(value, datetime) else msgspec.to_builtins(value)


def _plain_args(args: Any) -> Any:
    """The args of a job as JSON holds them. Raises InvalidRequest for what it can't hold."""
    encoded = encode_args(args)
    return {} if encoded is None else msgspec.json.decode(encoded)
