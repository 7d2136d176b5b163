"""Jobs for the experiments, each with its oracle: the fire times that it owes, computed here and not by a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from horarium import cron, rrule
from tests.proof.harness import Api
from tests.proof.receiver import micros

SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def text(instant: int) -> str:
    """RFC 3339."""
    return datetime.fromtimestamp(instant / SECOND, UTC).isoformat()


def whole_second(ahead_seconds: int) -> int:
    """A whole second so far ahead."""
    return (micros() // SECOND + ahead_seconds) * SECOND


@dataclass
class Plan:
    """Definitions to send, and what each owes. `lease_seconds`: how soon a lost attempt is missed."""

    start: int
    end: int
    lease_seconds: float = 2.0
    attempts_max: int = 20
    definitions: list[dict[str, Any]] = field(default_factory=list)
    owed: dict[str, list[int]] = field(default_factory=dict)

    def add(
        self, name: str, trigger: dict[str, Any], target: dict[str, Any], fires: Sequence[int], **more: Any
    ) -> None:
        """Any job."""
        self.owed[name] = sorted(fires)
        self.definitions.append(
            {
                "name": name,
                "trigger": trigger,
                "target": target,
                "catch_up": {"policy": "all"},
                "timeouts": {"heartbeat_seconds": self.lease_seconds},
                "retry": {"attempts_max": self.attempts_max, "backoff_seconds": 0.2, "backoff_max_seconds": 1},
                **more,
            }
        )

    def interval(self, name: str, seconds: int, target: dict[str, Any], **more: Any) -> None:
        """A job every so many seconds from the plan's start up to its end."""
        trigger = {"type": "interval", "every_seconds": seconds, "anchor": text(self.start)}
        fires = range(self.start, self.end, seconds * SECOND)
        self.add(name, trigger, target, fires, starts_at=text(self.start), ends_at=text(self.end), **more)

    def cron(self, name: str, expression: str, target: dict[str, Any], **more: Any) -> None:
        """A cron job within the plan's window; its fire times are the trigger's own list."""
        trigger = {"type": "cron", "expression": expression, "timezone": "UTC"}
        self.add(name, trigger, target, self._listed(cron(expression)), starts_at=text(self.start),
                 ends_at=text(self.end), **more)  # fmt: skip

    def rrule(self, name: str, rule: str, target: dict[str, Any], **more: Any) -> None:
        """A recurrence rule within the plan's window; its fire times are the trigger's own list."""
        dtstart = datetime.fromtimestamp(self.start / SECOND, UTC).strftime("%Y%m%dT%H%M%SZ")
        whole = f"DTSTART:{dtstart}\nRRULE:{rule}"
        self.add(name, {"type": "rrule", "rrule": whole}, target, self._listed(rrule(whole)),
                 ends_at=text(self.end), **more)  # fmt: skip

    def once(self, name: str, at: int, target: dict[str, Any], **more: Any) -> None:
        """One fire time."""
        self.add(name, {"type": "once", "at": text(at)}, target, [at], **more)

    def _listed(self, trigger: Any) -> list[int]:
        start, end = (datetime.fromtimestamp(instant / SECOND, UTC) for instant in (self.start, self.end))
        moments = [moment for moment in trigger.between(start, end) if start <= moment < end]
        return [round((moment - EPOCH).total_seconds()) * SECOND for moment in moments]

    def define(self, api: Api) -> None:
        """Send every definition."""
        for definition in self.definitions:
            api.must("PUT", f"/jobs/{definition['name']}", definition)
        assert micros() < self.start, "the machine was too slow: fire times had passed before their jobs were defined"


def http(url: str) -> dict[str, Any]:
    completion = {"completion": "callback"} if "/callback/" in url else {}
    return {"type": "http", "url": url, "timeout_seconds": 10, **completion}


def queue(name: str, **payload: Any) -> dict[str, Any]:
    return {"type": "queue", "queue": name, "payload": payload}


def mixed_plan(url: str, start: int, seconds: int) -> Plan:
    """Jobs of every kind that a receiver at `url` plays: forty every one to four seconds, and twelve single runs a
    second, each at its own instant."""
    plan = Plan(start, start + seconds * SECOND)
    for number in range(24):
        plan.interval(f"tick-{number}", 1 + number % 4, http(f"{url}/ok"))
    for number in range(6):
        plan.interval(f"hold-{number}", 1, http(f"{url}/hold/0.4"))
    for number in range(6):
        plan.interval(f"callback-{number}", 2, http(f"{url}/callback/0.1"))
    for number in range(4):
        plan.interval(f"serial-{number}", 1, http(f"{url}/hold/0.1"), overlap="buffer_all")
    for number in range(min(12 * seconds, 500)):
        plan.once(f"once-{number}", start + number * SECOND // 12, http(f"{url}/ok"))
    return plan
