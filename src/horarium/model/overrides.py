"""Overrides: single fire times of a job that a person has skipped or moved."""

from __future__ import annotations

from msgspec import Struct

from horarium.clock import Instant

OVERRIDES_MAX = 100
"""Overrides of one job that are in force at a time."""
REASON_CHARS_MAX = 1_000


class Override(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The fire time `fire_at` is skipped, or its run is due at `to` instead. `by`: who said so, at the instant `at`.
    `done`: its run was made, before the fire time itself has come. `token`: that of a run which was planned ahead and
    withdrawn, and had been claimed and given back; its successor's go on from there. `joined`: no person moved it, but
    all from whose runs the job follows have come (`rules.joins`)."""

    fire_at: Instant
    to: Instant | None = None
    by: str = ""
    reason: str | None = None
    at: Instant = 0
    done: bool = False
    token: int = 0
    joined: bool = False

    @property
    def due_at(self) -> Instant:
        """When something is to be done about it."""
        return self.fire_at if self.to is None else self.to
