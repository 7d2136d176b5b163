"""Jobs of the scheduler for scrape jobs as ours, and back. Used by its door, its commands and its import."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha1
from typing import Any

import msgspec
from msgspec import Struct

from horarium.clock import Instant, to_text
from horarium.errors import InvalidRequest

NAME = "scrape-scheduler"
LABEL = "door"
QUEUE = "scrape"
ID_CHARS = 12
LEASE_SECONDS = 900
"""How long a worker may take: it has no way to say that it is still at work."""


class Listed(Struct):
    """A job as a jobs.json has it. Go writes `null` for a map that was never filled."""

    url: str
    interval_s: float | None = None
    meta: dict[str, str] | None = None


class Handed(Struct):
    """A job as a worker gets it. An interval of whole seconds is written as one: its workers read it as an integer."""

    id: str
    url: str
    interval_s: int | float
    meta: dict[str, str]


def job_id(url: str) -> str:
    """The first 12 hexadecimal digits of the SHA-1 of its URL."""
    return sha1(url.encode(), usedforsecurity=False).hexdigest()[:ID_CHARS]


def definition(listed: Listed, default_interval: float, jitter: float, begins: Instant | None = None) -> dict[str, Any]:
    """The definition of the job, as JSON has it; its first run is at `begins`. Raises InvalidRequest."""
    if not listed.url:
        raise InvalidRequest("url: is empty; give the URL to scrape", field="url")
    interval = listed.interval_s or default_interval
    id = job_id(listed.url)
    seconds: float = int(interval) if float(interval).is_integer() else interval
    payload = {"id": id, "url": listed.url, "interval_s": seconds, "meta": listed.meta or {}}
    return {
        "name": id,
        "title": listed.url[:200],
        "trigger": {"type": "interval", "every_seconds": seconds, "from": "end"},
        "target": {"type": "queue", "queue": QUEUE, "payload": payload},
        "labels": {LABEL: NAME},
        "overlap": "skip",
        "jitter_seconds": jitter,
        "retry": {"attempts_max": 1, "silences_max": "unlimited"},
        "timeouts": {"heartbeat_seconds": LEASE_SECONDS},
        **({} if begins is None else {"starts_at": to_text(begins)}),
    }


def read_listed(text: bytes) -> list[Listed]:
    """The jobs of a jobs.json. Raises InvalidRequest."""
    try:
        return msgspec.json.decode(text, type=list[Listed])
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"not a list of jobs as in jobs.json: {error}") from None


def handed(payload: Any) -> Handed | None:
    """The answer to a worker, from the payload of a job; None: it is no job of this kind."""
    if not isinstance(payload, Mapping):
        return None
    try:
        return msgspec.convert(payload, Handed)
    except msgspec.ValidationError:
        return None
