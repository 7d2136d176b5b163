"""`once`: a single instant.

A past instant is a valid value; it is refused when a job is added, because only there is a `now` known.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from horarium.clock import Instant, to_text
from horarium.triggers.base import Trigger
from horarium.triggers.spec import Spec, check_instant, read_instant


@dataclass(frozen=True, slots=True)
class Once(Trigger):
    """Fires at `fire_at` and never again."""

    type: ClassVar[str] = "once"
    fire_at: Instant

    def __post_init__(self) -> None:
        check_instant(self.fire_at, "at")

    @classmethod
    def from_spec(cls, spec: Spec) -> Once:
        """Reads `{"type": "once", "at": "2026-12-24T18:00:00+01:00"}`."""
        return cls(spec.instant("at"))

    def next_fire(self, after: Instant) -> Instant | None:
        return self.fire_at if self.fire_at > after else None

    def spec(self) -> dict[str, Any]:
        return {"type": self.type, "at": to_text(self.fire_at)}

    def words(self) -> str:
        return f"once at {to_text(self.fire_at)}"


def at(instant: datetime | str) -> Once:
    """Once, at an aware datetime or an RFC 3339 text with an offset. Raises InvalidTrigger for anything else."""
    return Once(read_instant(instant, "at"))
