"""A plan as it is stored: which definitions are to be made, changed and ended, and what they were when it was made."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from horarium.clock import Instant

PLAN = "plan/"
"""How the names of the records of plans begin; what follows is the id."""
PlanKind = Literal["calendar", "channel", "job"]


class Step(Struct, frozen=True, omit_defaults=True):
    """One change. `document`: the definition as it was given, as JSON (None: to be deleted). `before`: what tells
    whether the stored one is still as it was read (None: there was none)."""

    kind: PlanKind
    name: str
    document: str | None = None
    before: str | None = None


class StoredPlan(Struct, frozen=True, omit_defaults=True):
    """The changes of a plan, in the order in which they are made. `wrong`: how many definitions are invalid."""

    expires_at: Instant
    steps: tuple[Step, ...]
    wrong: int = 0
