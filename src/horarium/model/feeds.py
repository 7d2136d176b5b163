"""A feed: an address at which calendar programs find what runs, and what became of it."""

from __future__ import annotations

from msgspec import Struct

from horarium.clock import Instant

FEED = "feed/"
"""How the names of the records of feeds begin."""
KEY_LABEL = "key"
"""The label of such a record: the digest of the key in its address."""


class Feed(Struct, frozen=True, omit_defaults=True):
    """Jobs of these names, or with all of these labels (neither: all). `by`: its maker; `queues`, `bound`: queues and
    labels to which that is bound. `key`: the digest of the named key that made it, with which it ends ("": none)."""

    name: str
    created_at: Instant
    labels: dict[str, str] = {}
    jobs: tuple[str, ...] = ()
    queues: tuple[str, ...] | None = None
    bound: tuple[dict[str, str], ...] | None = None
    by: str = ""
    key: str = ""
