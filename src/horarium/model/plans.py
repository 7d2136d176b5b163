"""A plan as it is stored: which definitions are to be made, changed and ended, and what they were when it was made.

Definitions hold secrets, and a plan that is never applied would keep them for days. So the steps are stored sealed: the
key is the second half of the plan's id, which only the caller has. The record and the audit name the first half.
"""

from __future__ import annotations

import re
from hashlib import shake_256
from typing import Literal

import msgspec
from msgspec import Struct

from horarium.clock import Instant

PLAN = "plan/"
"""How the names of the records of plans begin; what follows is the first half of the id."""
KEY_BYTES = 16
PLAN_ID = re.compile(r"[0-9a-f-]{69}", re.ASCII)
PlanKind = Literal["calendar", "channel", "job"]


class Step(Struct, frozen=True, omit_defaults=True):
    """One change. `document`: the definition as it was given, as JSON (None: to be deleted). `before`: what tells
    whether the stored one is still as it was read (None: there was none)."""

    kind: PlanKind
    name: str
    document: str | None = None
    before: str | None = None


class StoredPlan(Struct, frozen=True, omit_defaults=True):
    """The changes of a plan, in the order in which they are made, sealed (empty: all of them have been made). `wrong`:
    how many definitions are invalid. Open to lists: `by` whom it was made, and the `counts` of its changes.
    `approved_by`: who lets callers apply it that may not write jobs."""

    expires_at: Instant
    sealed: bytes = b""
    wrong: int = 0
    by: str = ""
    counts: dict[str, int] = {}
    approved_by: str = ""

    @property
    def applied(self) -> bool:
        return not self.sealed and not self.wrong


def sealed(steps: tuple[Step, ...], key: str) -> bytes:
    """The steps, readable with this key alone. A key must seal no more than one text."""
    return _masked(msgspec.msgpack.encode(steps), key)


def opened(text: bytes, key: str) -> tuple[Step, ...] | None:
    """The steps; None: the key is another one."""
    try:
        return msgspec.msgpack.decode(_masked(text, key), type=tuple[Step, ...])
    except msgspec.MsgspecError:
        return None


def _masked(text: bytes, key: str) -> bytes:
    """The text combined with as many bytes of an extendable-output function of the key (SHAKE256, FIPS 202)."""
    pad = shake_256(key.encode()).digest(len(text))
    return (int.from_bytes(text, "big") ^ int.from_bytes(pad, "big")).to_bytes(len(text), "big")
