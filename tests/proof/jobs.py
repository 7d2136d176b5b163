"""Jobs for the experiments, each with its oracle: the fire times that it owes, computed here and not by a server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil
from typing import Any

from horarium import cron, rrule
from tests.proof.harness import Api
from tests.proof.ledger import Promise
from tests.proof.receiver import instant, micros

SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def text(instant: int) -> str:
    """RFC 3339."""
    return datetime.fromtimestamp(instant / SECOND, UTC).isoformat()


def whole_second(ahead_seconds: int) -> int:
    """A whole second so far ahead."""
    return (micros() // SECOND + ahead_seconds) * SECOND


LATER = {"type": "once", "at": "2199-01-01T00:00:00Z"}
PACE_JOBS = 6


def soon(api: Api, definitions: int) -> int:
    """A whole second by which so many jobs will be defined, at four times as long as the server takes for each now."""
    return whole_second(2 + ceil(4 * pace_seconds(api) * definitions))


def pace_seconds(api: Api) -> float:
    """How long the server takes for one write, as busy as the machine is now."""
    began = time.monotonic()
    for number in range(PACE_JOBS):
        api.must("PUT", f"/jobs/pace-{number}", {"name": f"pace-{number}", "trigger": LATER, "target": queue("none")})
    return (time.monotonic() - began) / PACE_JOBS


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


MIXED_JOBS = 40
"""Those of a mixed plan, without the single runs."""


FLEET_LEASE_SECONDS = 3.0


def fleet_plan(url: str, start: int, seconds: int) -> Plan:
    """Jobs of every kind and policy for servers and workers."""
    plan = Plan(start, start + seconds * SECOND, lease_seconds=FLEET_LEASE_SECONDS)
    skip = {"overlap": "skip"}
    crowd = {"concurrency": {"key": "crowd", "max": 3}}
    for number in range(16):
        plan.interval(f"tick-{number}", 1 + number % 4, http(f"{url}/ok"))
    for number in range(4):
        plan.interval(f"work-{number}", 1, queue("work", seconds=0.05))
        plan.interval(f"hold-{number}", 1, http(f"{url}/hold/0.4"))
        plan.interval(f"callback-{number}", 2, http(f"{url}/callback/0.1"))
    for number in range(2):
        plan.interval(f"serial-{number}", 1, http(f"{url}/hold/0.1"), overlap="buffer_all")
        plan.interval(f"skip-{number}", 1, http(f"{url}/hold/1.3"), **skip)
        plan.interval(f"crowd-{number}", 1, http(f"{url}/hold/0.2"), **crowd)
        plan.interval(f"latest-{number}", 1, http(f"{url}/ok"), catch_up={"policy": "latest"})
        plan.interval(f"again-{number}", 2, http(f"{url}/fail/1"))
    plan.cron("cron", "*/2 * * * * *", http(f"{url}/ok"))
    plan.rrule("rrule", "FREQ=SECONDLY;INTERVAL=3", queue("work", seconds=0.5))
    for number in range(min(4 * seconds, 100)):
        plan.once(f"once-{number}", start + number * SECOND // 4, http(f"{url}/ok"))
    return plan


@dataclass
class Backlog:
    """A job of which a thousand runs are asked for at a time: fire times of long ago. What the API acknowledged is
    owed, and each run that it named must be there."""

    name: str
    plan: Plan
    target: dict[str, Any]
    acknowledged: dict[str, Promise] = field(default_factory=dict)

    def define(self, api: Api) -> None:
        """The job alone: of its own it fires once, at the plan's start."""
        self._next = self.plan.start - BACKLOG_HOURS * HOUR
        trigger = {"type": "interval", "every_seconds": 3600, "anchor": text(self._next)}
        self.plan.add(self.name, trigger, self.target, [self.plan.start], ends_at=text(self.plan.start + 1))
        api.must("PUT", f"/jobs/{self.name}", self.plan.definitions[-1])

    def fill(self, api: Api, count: int) -> None:
        """So many more runs, at once."""
        first, self._next = self._next, self._next + count * HOUR
        assert self._next <= self.plan.start, "the backlog is used up"
        span = {"start": text(first), "end": text(self._next)}
        filled = api.must("POST", f"/jobs/{self.name}/backfill", span, seconds=60)
        now = micros()
        self.acknowledged |= {run["id"]: Promise(now, self.name, instant(run["fire_at"])) for run in filled["runs"]}
        self.plan.owed[self.name] += range(first, self._next, HOUR)


HOUR = 3600 * SECOND
BACKLOG_HOURS = 200_000
