"""The resources of a server beside jobs and runs: `Client.approvals`, `Client.holds` and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import uuid4

from horarium.client.transport import API, Transport, segment
from horarium.wire.approvals import ApprovalView, Decision
from horarium.wire.overrides import OverrideView
from horarium.wire.views import RunView


class Resource:
    """A part of a client, which sends its requests through the same transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport


class SignedIn(Resource):
    """Who is signed in; docs/access.md."""

    def list(self) -> Iterator[dict[str, Any]]:
        """All sessions that have not ended, the soonest end first."""
        return self._transport.items("/sessions", dict[str, Any])

    def end(self, id: str) -> None:
        """It opens nothing any more, on every node within five seconds. Raises NotFound."""
        self._transport.delete(f"/sessions/{segment(id)}")


class Rates(Resource):
    """What the keys of rate limits allow, and when they open; docs/rates.md has all fields."""

    def list(self, prefix: str = "") -> Iterator[dict[str, Any]]:
        """The keys in use that begin with this, in their order."""
        return self._transport.items("/rates", dict[str, Any], {"prefix": prefix or None})

    def set(
        self, key: str, max: int, per_seconds: float, burst: int | None = None, until: datetime | None = None
    ) -> dict[str, Any]:
        """Have this limit hold for the key, instead of what jobs and runs say, until then or for good."""
        given = {"max": max, "per_seconds": per_seconds, "burst": burst, "until": until}
        body = {name: value for name, value in given.items() if value is not None}
        return self._transport.call("PUT", f"/rates/{segment(key)}", dict[str, Any], body=body)

    def reset(self, key: str) -> None:
        """Have what jobs and runs say hold again. Raises NotFound where that is so."""
        self._transport.delete(f"/rates/{segment(key)}")


class Queues(Resource):
    """What is set for queues: the weights of their fairness keys (docs/fairness.md)."""

    def list(self) -> Iterator[dict[str, Any]]:
        """Queues in which runs wait, that are held, or for which something is set, by name."""
        return self._transport.items("/queues", dict[str, Any])

    def get(self, queue: str) -> dict[str, Any]:
        """The settings of a queue."""
        return self._transport.call("GET", f"/queues/{segment(queue)}", dict[str, Any])

    def set(self, queue: str, fair_weights: Mapping[str, int]) -> dict[str, Any]:
        """Set the weights of a queue's fairness keys; a key that is left out has the weight 1."""
        body = {"fair_weights": dict(fair_weights)}
        return self._transport.call("PUT", f"/queues/{segment(queue)}", dict[str, Any], body=body)


class Plans(Resource):
    """Plans of definitions, and forecasts; docs/plans.md has all fields."""

    def make(
        self,
        documents: Mapping[str, Sequence[Mapping[str, Any]]],
        *,
        prune: Mapping[str, str] | None = None,
        horizon_seconds: int | None = None,
    ) -> dict[str, Any]:
        """What these documents (`jobs`, `calendars`, `channels`) would change. Jobs with the labels `prune` that are
        not among them would be deleted."""
        body: dict[str, Any] = {"documents": documents}
        if prune is not None:
            body["prune"] = {"labels": dict(prune)}
        if horizon_seconds is not None:
            body["horizon_seconds"] = horizon_seconds
        return self._transport.call("POST", "/plans", dict[str, Any], body=body)

    def list(self) -> Iterator[dict[str, Any]]:
        """Plans, the newest first, each by its `ref`, which opens nothing: counts of changes, by whom, until when."""
        return self._transport.items("/plans", dict[str, Any])

    def apply(self, plan_id: str, advance: Callable[[int, int], None] | None = None) -> int:
        """Carry out a plan, all of it: how many changes were made. `advance` is told after each thousand how many that
        were, and how many are left. Raises NotFound, and Conflict where a definition is no longer as it was read."""
        applied: int = 0
        while True:
            done = self._transport.call("POST", f"/plans/{segment(plan_id)}/apply", dict[str, Any], body={})
            applied += int(done["applied"])
            if advance is not None:
                advance(done["applied"], done["left"])
            if not done["left"]:
                return applied

    def approve(self, plan_id: str) -> int:
        """Let callers apply a plan that may write no jobs, and have the role operator; how many changes it makes.
        Raises NotFound, Forbidden, and Conflict where it is stale, or approved already."""
        path, query = f"/plans/{segment(plan_id)}/apply", {"approve": True}
        return int(self._transport.call("POST", path, dict[str, Any], query=query, body={}, repeatable=False)["left"])

    def forecast(
        self,
        since: datetime | None = None,
        until: datetime | None = None,
        *,
        bucket_seconds: int = 3600,
        by: str = "queue",
    ) -> dict[str, Any]:
        """How many runs start, and run at once on average, in each bucket."""
        query = {"since": since, "until": until, "bucket_seconds": bucket_seconds, "by": by}
        return self._transport.call("GET", "/forecast", dict[str, Any], query=query)


class Overrides(Resource):
    """Fire times that persons skipped or moved; docs/overrides.md."""

    def skip(self, name: str, fire_at: datetime, reason: str | None = None) -> OverrideView:
        """The job does not run for this fire time. Raises NotFound, and Conflict where its run has begun."""
        return self._transport.call("POST", f"{_fire(name, fire_at)}/skip", OverrideView, body={"reason": reason})

    def move(self, name: str, fire_at: datetime, to: datetime, reason: str | None = None) -> OverrideView:
        """The run of this fire time is due at another instant. Raises as `skip`."""
        body = {"to": to, "reason": reason}
        return self._transport.call("POST", f"{_fire(name, fire_at)}/move", OverrideView, body=body)

    def remove(self, name: str, fire_at: datetime) -> None:
        """The fire time is as its rule has it again. Raises as `skip`."""
        self._transport.delete(_fire(name, fire_at))

    def list(self, name: str) -> Iterator[OverrideView]:
        """Those of a job, earliest first."""
        return self._transport.items(f"/jobs/{segment(name)}/overrides", OverrideView)


def _fire(name: str, fire_at: datetime) -> str:
    return f"/jobs/{segment(name)}/fires/{segment(fire_at.isoformat())}"


class Holds(Resource):
    """What may not begin: `{"scope": {...}, "reason": ...}`; docs/holds.md has all fields."""

    def add(self, hold: Mapping[str, Any]) -> dict[str, Any]:
        """Hold what the scope says. The hold, with its `id`."""
        return self._transport.call("POST", "/holds", dict[str, Any], body=dict(hold))

    def get(self, id: str) -> dict[str, Any]:
        """The hold. Raises NotFound."""
        return self._transport.call("GET", _hold(id), dict[str, Any])

    def list(self, active: bool | None = None) -> Iterator[dict[str, Any]]:
        """Those that have not ended; with `active`, those that are in force, or are not."""
        return self._transport.items("/holds", dict[str, Any], {"active": active})

    def update(self, id: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change `until` (null: until it is lifted) or `reason`. Raises NotFound, and Conflict for one that ended."""
        return self._transport.call("PATCH", _hold(id), dict[str, Any], body=dict(changes))

    def lift(self, id: str) -> None:
        """End it: what waited goes on. Raises NotFound."""
        self._transport.delete(_hold(id))


def _hold(id: str) -> str:
    return f"/holds/{segment(id)}"


class Feeds(Resource):
    """Feeds of a server; docs/feeds.md."""

    def create(self, name: str, *, labels: Mapping[str, str] | None = None, jobs: Sequence[str] = ()) -> dict[str, Any]:
        """A new feed: its `url` is shown this once. Raises AlreadyExists."""
        body = {"name": name, "labels": dict(labels or {}), "jobs": list(jobs)}
        return self._transport.call("POST", "/feeds", dict[str, Any], body=body)

    def list(self) -> Iterator[dict[str, Any]]:
        """All feeds, by name, without their addresses."""
        return self._transport.items("/feeds", dict[str, Any])

    def revoke(self, name: str) -> None:
        """Its address is gone. Raises NotFound."""
        self._transport.delete(f"/feeds/{segment(name)}")


class Channels(Resource):
    """Where notifications go. A channel is `{"type": "webhook", "url": ...}`, `{"type": "email", "to": [...]}` or
    `{"type": "apprise", "url": ...}`; docs/notifications.md has all fields."""

    def put(self, name: str, channel: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """Define the channel, or replace the one of that name. The second value: whether it is new."""
        return self._transport.put(_channel(name), dict(channel), dict[str, Any])

    def get(self, name: str) -> dict[str, Any]:
        """The channel, without its secrets. Raises NotFound."""
        return self._transport.call("GET", _channel(name), dict[str, Any])

    def list(self) -> Iterator[dict[str, Any]]:
        """All channels, by name."""
        return self._transport.items("/channels", dict[str, Any])

    def delete(self, name: str) -> None:
        """Remove a channel. Raises NotFound."""
        self._transport.delete(_channel(name))

    def test(self, name: str) -> RunView:
        """Send a test message: the run that does it. Raises NotFound."""
        return self._transport.call("POST", f"{_channel(name)}/test", RunView)

    def send_by(self, name: str, by: str) -> RunView:
        """Send by another channel what this one did not take: the run that does it. Raises NotFound."""
        return self._transport.call("POST", f"{_channel(name)}/send-by", RunView, body={"by": by}, repeatable=False)


def _channel(name: str) -> str:
    return f"/channels/{segment(name)}"


class Calendars(Resource):
    """Which days are business days: `{"weekend": [...], "holidays": [...]}`; docs/calendars.md has all fields."""

    def put(self, name: str, calendar: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """Define the calendar, or replace the one of that name. The second value: whether it is new."""
        return self._transport.put(_calendar(name), dict(calendar), dict[str, Any])

    def compare(self, name: str, calendar: Mapping[str, Any]) -> dict[str, Any]:
        """How fire times of jobs would change with these days, as `{"changes": [...], "truncated": ...}`."""
        return self._transport.call(
            "PUT", _calendar(name), dict[str, Any], body=dict(calendar), query={"dry_run": True}
        )

    def get(self, name: str) -> dict[str, Any]:
        """The calendar. Raises NotFound."""
        return self._transport.call("GET", _calendar(name), dict[str, Any])

    def days(self, name: str, since: str | None = None, until: str | None = None) -> list[dict[str, Any]]:
        """Its days from one date to another, both included. Raises NotFound."""
        query = {"since": since, "until": until}
        days: list[dict[str, Any]] = self._transport.call("GET", f"{_calendar(name)}/days", dict, query=query)["items"]
        return days

    def list(self) -> Iterator[dict[str, Any]]:
        """All calendars, by name."""
        return self._transport.items("/calendars", dict[str, Any])

    def delete(self, name: str) -> None:
        """Remove a calendar. Raises NotFound, and Conflict while jobs use it."""
        self._transport.delete(_calendar(name))


def _calendar(name: str) -> str:
    return f"/calendars/{segment(name)}"


class Batches(Resource):
    """Runs whose common end brings something about; docs/batches.md has all fields."""

    def add(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Make one: `{"name": ..., "runs": [...], "open": True, "on": {"finished": [...]}}`. The batch, with its `id`,
        and the `runs`."""
        return self._transport.call("POST", "/batches", dict[str, Any], body=dict(batch), headers=_once())

    def add_runs(self, id: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Add up to 1,000 runs. The batch, and the `runs`. Raises NotFound, StateConflict for one that is closed."""
        body = {"runs": [dict(run) for run in runs]}
        return self._transport.call("POST", f"{_batch(id)}/runs", dict[str, Any], body=body, headers=_once())

    def get(self, id: str, wait_seconds: float = 0) -> dict[str, Any]:
        """The batch; with `wait_seconds` (up to 60) as soon as it has finished. Raises NotFound."""
        return self._transport.call("GET", _batch(id), dict[str, Any], query={"wait_seconds": wait_seconds or None})

    def list(self, state: str | None = None) -> Iterator[dict[str, Any]]:
        """Batches, the newest first; with `state` (open, closed, finished) those alone."""
        return self._transport.items("/batches", dict[str, Any], {"state": state})

    def runs(self, id: str) -> Iterator[dict[str, Any]]:
        """The runs of a batch. Raises NotFound."""
        return self._transport.items(f"{_batch(id)}/runs", dict[str, Any], {})

    def close(self, id: str) -> dict[str, Any]:
        """No more runs: it finishes once all have ended. Raises NotFound."""
        return self._transport.call("POST", f"{_batch(id)}/close", dict[str, Any])

    def cancel(self, id: str, reason: str | None = None) -> dict[str, Any]:
        """Close it, and cancel its runs that have not ended. Raises NotFound."""
        body = {} if reason is None else {"reason": reason}
        return self._transport.call("POST", f"{_batch(id)}/cancel", dict[str, Any], body=body)

    def retry(self, id: str) -> dict[str, Any]:
        """Do its failed runs again. Raises NotFound."""
        return self._transport.call("POST", f"{_batch(id)}/retry", dict[str, Any])


def _batch(id: str) -> str:
    return f"/batches/{segment(id)}"


def _once() -> dict[str, str]:
    """So that a request that is sent again does nothing twice."""
    return {"idempotency-key": uuid4().hex}


class Attention(Resource):
    """Faults and their acknowledgements."""

    def list(self) -> list[dict[str, Any]]:
        """The faults, worst first."""
        found: list[dict[str, Any]] = self._transport.call("GET", "/attention", dict[str, Any])["items"]
        return found

    def acknowledge(self, cause: str, reason: str, until: datetime | None = None) -> dict[str, Any]:
        """Take note of a cause, such as `failing/nightly`, until then or for a day."""
        body = {"cause": cause, "reason": reason, **({} if until is None else {"until": until})}
        return self._transport.call("POST", "/attention/acknowledge", dict[str, Any], body=body)

    def reopen(self, cause: str) -> None:
        """Take that back. Raises NotFound."""
        self._transport.request("POST", API + "/attention/reopen", body={"cause": cause})


class Approvals(Resource):
    """What waits for a decision; docs/approvals.md."""

    def list(self) -> Iterator[ApprovalView]:
        """Pending decisions, the soonest end first."""
        return self._transport.items("/approvals", ApprovalView)

    def decide(self, run_id: str, decision: Decision, reason: str | None = None) -> RunView:
        """Let the run begin, or not; or say how many of the fire times run that a job missed. Raises
        NotFound, Forbidden, and Conflict where another one was quicker."""
        body = {"decision": decision, "reason": reason}
        return self._transport.call("POST", f"/approvals/{segment(run_id)}", RunView, body=body, repeatable=False)
