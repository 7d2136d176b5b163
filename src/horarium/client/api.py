"""Every call of the REST API as a method, typed.

Values come back as the views of `definitions` (instants as aware datetimes), lists as iterators that fetch a page when
the one before is used up, errors as those of `errors`. Each method says to the transport whether doing it twice is the
same as doing it once; nothing else is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Self

import msgspec
from msgspec import UNSET

from horarium.client.answers import (
    Answered,
    Backfilled,
    Fires,
    Imported,
    Pulse,
    Readiness,
    Report,
    Runs,
)
from horarium.client.many_runs import ManyRuns
from horarium.client.resources import (
    Approvals,
    Attention,
    Batches,
    Calendars,
    Channels,
    Feeds,
    Holds,
    Overrides,
    Plans,
    Queues,
    Rates,
    SignedIn,
)
from horarium.client.transport import API, Cut, Page, Transport, decoded, segment
from horarium.client.watching import Watching
from horarium.errors import HorariumError, InvalidRequest
from horarium.wire.definitions import JobDefinition
from horarium.wire.views import JobView, NodeView, RunView

URL_DEFAULT = "http://127.0.0.1:8080"
WAIT_SECONDS_MAX = 60.0
CLAIM_MAX = 1_000
SETTLE_MAX = 1_000
IMPORT_MAX = 1_000
IMPORT_BYTES_MAX = 960 * 1024
"""JSON text of the jobs in one request; the server reads a body of 1 MiB."""


class Client(Watching, ManyRuns):
    """A server's API. May be shared by threads; close it, or use it in a `with`."""

    def __init__(self, url: str = URL_DEFAULT, api_key: str | None = None, **options: Any) -> None:
        """`options`: those of `Transport`: timeout_seconds, attempts_max."""
        self._transport = Transport(url, api_key, **options)
        self.approvals = Approvals(self._transport)
        self.batches = Batches(self._transport)
        self.calendars = Calendars(self._transport)
        self.holds = Holds(self._transport)
        self.rates = Rates(self._transport)
        self.queues = Queues(self._transport)
        self.channels = Channels(self._transport)
        self.overrides = Overrides(self._transport)
        self.plans = Plans(self._transport)
        self.feeds = Feeds(self._transport)
        self.attention = Attention(self._transport)
        self.sessions = SignedIn(self._transport)

    @property
    def url(self) -> str:
        return self._transport.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    # ---- jobs

    def create_job(self, definition: JobDefinition | Mapping[str, Any]) -> JobView:
        """Define a new job. Raises AlreadyExists if the name is taken."""
        return self._transport.call("POST", "/jobs", JobView, body=definition, repeatable=False)

    def put_job(self, definition: JobDefinition | Mapping[str, Any]) -> tuple[JobView, bool]:
        """Define the job, or bring the existing one to this content; True: it is new."""
        return self._transport.put(f"/jobs/{segment(_name_of(definition))}", definition, JobView)

    def import_jobs(
        self,
        definitions: Iterable[JobDefinition | Mapping[str, Any]],
        *,
        dry_run: bool = False,
        owned_by: Mapping[str, str] | None = None,
    ) -> Iterator[Imported]:
        """Put many jobs, each for itself, as many in one request as fit: what became of each, in their order, as it
        comes in. Importing again changes nothing. New jobs with an interval begin spread over it. `dry_run`: nothing is
        written. `owned_by`: labels of the owner; a job that has another value of one of them is left alone."""
        asked = {"dry_run": dry_run, **({"owned_by": owned_by} if owned_by else {})}
        batch: list[msgspec.Raw] = []
        size = 0
        for definition in definitions:
            try:
                text = msgspec.json.encode(definition)
            except (TypeError, ValueError, RecursionError) as error:
                yield from self._import(batch, asked)
                batch, size = [], 0
                yield Imported("", "failed", InvalidRequest(f"it can't be written as JSON: {error}"))
                continue
            if batch and (len(batch) >= IMPORT_MAX or size + len(text) > IMPORT_BYTES_MAX):
                yield from self._import(batch, asked)
                batch, size = [], 0
            batch.append(msgspec.Raw(text))
            size += len(text) + 1
        yield from self._import(batch, asked)

    def _import(self, batch: list[msgspec.Raw], asked: Mapping[str, Any]) -> Iterator[Imported]:
        if not batch:
            return
        try:
            body = {"jobs": batch, **asked}
            found = self._transport.call("POST", "/import", list[Answered], body=body)
        except InvalidRequest as error:
            if len(batch) > 1:
                # One that can't be read at all keeps the others out: it is found by halving.
                yield from self._import(batch[: len(batch) // 2], asked)
                yield from self._import(batch[len(batch) // 2 :], asked)
                return
            found = []
            yield Imported(str(_named(batch[0])), "failed", error)
        for line in found:
            yield Imported(line.name, line.outcome, line.error(), line.warning)

    def patch_job(self, name: str, changes: Mapping[str, Any]) -> JobView:
        """Apply a JSON merge patch (RFC 7396) to the job's definition."""
        return self._transport.call("PATCH", f"/jobs/{segment(name)}", JobView, body=changes)

    def get_job(self, name: str) -> JobView:
        """The job of that name. Raises NotFound."""
        return self._transport.call("GET", f"/jobs/{segment(name)}", JobView)

    def list_jobs(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        enabled: bool | None = None,
        prefix: str | None = None,
        finished: bool | None = False,
        limit: int | None = None,
    ) -> Iterator[JobView]:
        """Jobs by name, all or the first `limit`. `finished`: those that can never fire again, or all (None)."""
        query = {
            "label": [f"{key}={value}" for key, value in (labels or {}).items()],
            "enabled": enabled, "prefix": prefix, "finished": {False: None, True: "true", None: "any"}[finished],
        }  # fmt: skip
        return self._transport.items("/jobs", JobView, query, limit)

    def delete_job(self, name: str) -> None:
        """End the job: pending runs are cancelled, running ones asked to stop."""
        self._transport.delete(f"/jobs/{segment(name)}")

    def pause_job(self, name: str, reason: str | None = None, until: datetime | None = None) -> JobView:
        """No later fire time runs until it is resumed, or until an instant."""
        body = {key: value for key, value in (("reason", reason), ("until", until)) if value is not None}
        return self._transport.call("POST", f"/jobs/{segment(name)}/pause", JobView, body=body)

    def resume_job(self, name: str) -> JobView:
        """Go on with the fire times from now on."""
        return self._transport.call("POST", f"/jobs/{segment(name)}/resume", JobView, body={})

    def trigger_job(self, name: str, payload: Any = UNSET, *, unique_key: str | None = None) -> RunView:
        """A run now, under the job's overlap policy. With a `unique_key`, asking again with the same payload gives
        the same run; without one, only what this very call repeats does."""
        body = {} if payload is UNSET else {"payload": payload}
        headers = {"Idempotency-Key": unique_key or self._transport.new_key()}
        path = f"/jobs/{segment(name)}/trigger"
        return self._transport.call("POST", path, RunView, body=body, headers=headers)

    def versions(self, name: str, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Earlier definitions of the job, and their authors; the newest first."""
        return self._transport.items(f"/jobs/{segment(name)}/versions", dict[str, Any], {}, limit)

    def revert_job(self, name: str, version: int) -> JobView:
        """Bring the job back to what it was at this version."""
        return self._transport.call("POST", f"/jobs/{segment(name)}/revert", JobView, body={"version": version})

    def backfill_job(self, name: str, start: datetime, end: datetime) -> list[RunView]:
        """Runs for the fire times in [start, end), at most 1,000. Those that have a run keep theirs."""
        return self.backfill(name, start, end).runs

    def backfill(self, name: str, start: datetime, end: datetime) -> Backfilled:
        """As `backfill_job`, and how many fire times are left for another call, which begins at `next_start`."""
        body = {"start": start, "end": end}
        return self._transport.call("POST", f"/jobs/{segment(name)}/backfill", Backfilled, body=body)

    def fires(self, name: str, count: int = 10) -> Fires:
        """The next fire times of a job."""
        return self._transport.call("GET", f"/jobs/{segment(name)}/fires", Fires, query={"count": count})

    def preview(self, trigger: Mapping[str, Any], after: datetime | None = None, count: int = 10) -> Fires:
        """The fire times that a trigger would yield after an instant (left out: now)."""
        body = {"trigger": trigger, "count": count}
        return self._transport.call("POST", "/preview", Fires, body=body if after is None else {**body, "after": after})

    # ---- runs

    def list_runs(
        self,
        *,
        job: str | None = None,
        states: Sequence[str] = (),
        queue: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        id_prefix: str | None = None,
    ) -> Iterator[RunView]:
        """Runs, newest fire time first, all of them or the first `limit`."""
        query = {"id": id_prefix, "job": job, "queue": queue, "since": since, "until": until}
        query["state"] = ",".join(states) or None
        return self._transport.items("/runs", RunView, query, limit)

    def cancel_run(self, run_id: str, reason: str | None = None) -> RunView:
        """Cancel a pending run at once; ask a running one to stop."""
        body = {} if reason is None else {"reason": reason}
        return self._transport.call("POST", f"/runs/{segment(run_id)}/cancel", RunView, body=body)

    def retry_run(self, run_id: str, payload: Any = UNSET, *, unique_key: str | None = None) -> RunView:
        """A new run for the work of one that failed or was cancelled; `payload`: in place of its own. `unique_key`: as
        of `trigger_job`, for retries of this run."""
        body = {} if payload is UNSET else {"payload": payload}
        headers = {"Idempotency-Key": unique_key or self._transport.new_key()}
        return self._transport.call("POST", f"/runs/{segment(run_id)}/retry", RunView, body=body, headers=headers)

    # ---- for workers

    def claim(
        self, queues: Sequence[str], limit: int, worker: str, wait_seconds: float = 0.0, cut: Cut | None = None
    ) -> list[RunView]:
        """Claim up to `limit` (1,000) due runs of these queues; where none is due, wait up to `wait_seconds` (60)."""
        body = {"queues": list(queues), "limit": limit, "wait_seconds": wait_seconds, "worker": worker}
        seconds = wait_seconds + 15.0
        answer = self._transport.request(
            "POST", API + "/runs/claim", body=body, timeout_seconds=seconds, attempts_max=1, cut=cut
        )
        return [] if answer.status == 204 else decoded(answer, Runs).runs

    def heartbeat(
        self, run_id: str, token: int, progress: Any = UNSET, *, within_seconds: float | None = None
    ) -> Pulse:
        """Renew the lease, and keep `progress` with the run. Raises LeaseLost. `within_seconds`: try only once, and
        wait no longer than this."""
        body = {"token": token} if progress is UNSET else {"token": token, "progress": progress}
        path = f"/runs/{segment(run_id)}/heartbeat"
        attempts = None if within_seconds is None else 1
        return self._transport.call(
            "POST", path, Pulse, body=body, timeout_seconds=within_seconds, attempts_max=attempts
        )

    def complete(self, run_id: str, token: int, result: Any = UNSET) -> RunView:
        """The work is done. Raises LeaseLost, and then nothing was written."""
        body = {"token": token} if result is UNSET else {"token": token, "result": result}
        return self._transport.call("POST", f"/runs/{segment(run_id)}/complete", RunView, body=body)

    def fail(self, run_id: str, token: int, error: str, *, retryable: bool = True) -> RunView:
        """The attempt failed. Raises LeaseLost, and then nothing was written."""
        body = {"token": token, "error": error, "retryable": retryable}
        return self._transport.call("POST", f"/runs/{segment(run_id)}/fail", RunView, body=body)

    def settle(self, reports: Sequence[Report]) -> list[str | HorariumError]:
        """Settle up to 1,000 claimed runs in one go: for each the state in which it now is, or the error."""
        settled = self._transport.call("POST", "/runs/settle", list[Answered], body=list(reports))
        return [line.state or line.error(409) or HorariumError("") for line in settled]

    # ---- access

    def me(self) -> dict[str, Any]:
        """Who asks: subject, name, kind, roles, scopes, queues."""
        return self._transport.call("GET", "/me", dict[str, Any])

    def create_key(
        self,
        name: str,
        roles: Sequence[str],
        *,
        queues: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
        calls_per_hour: int | None = None,
        runs_per_day: int | None = None,
        expires_at: datetime | None = None,
    ) -> dict[str, Any]:
        """A new named key, bound to `queues` and `labels`, with these budgets. Its `key` is shown only this once."""
        body: dict[str, Any] = {"name": name, "roles": list(roles), "queues": queues, "labels": labels}
        body |= {"calls_per_hour": calls_per_hour, "runs_per_day": runs_per_day, "expires_at": expires_at}
        given = {field: value for field, value in body.items() if value is not None}
        return self._transport.call("POST", "/keys", dict[str, Any], body=given, repeatable=False)

    def keys(self) -> Iterator[dict[str, Any]]:
        """The named keys, without their secrets."""
        return self._transport.items("/keys", dict[str, Any])

    def revoke_key(self, name: str) -> None:
        """The key opens nothing any more, on every node within five seconds."""
        self._transport.delete(f"/keys/{segment(name)}")

    def sign_in(self) -> dict[str, Any]:
        """Where callers of this server sign in: RFC 9728, and `horarium_client_id`. Raises NotFound: nowhere."""
        return decoded(self._transport.request("GET", "/.well-known/oauth-protected-resource"), dict[str, Any])

    def audit(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        object: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Who changed what, the newest first."""
        query = {"actor": actor, "action": action, "object": object, "since": since, "until": until}
        return self._transport.items("/audit", dict[str, Any], query, limit)

    # ---- the rest

    def nodes(self) -> list[NodeView]:
        """The nodes that gave a sign of life within the last day."""
        return self._transport.call("GET", "/nodes", Page[NodeView]).items

    def problems(self) -> dict[str, str]:
        """Why the server is not ready, by part; empty where it is."""
        answer = self._transport.request("GET", "/readyz", also=(503,))
        return decoded(answer, Readiness).problems

    def stats(self) -> dict[str, Any]:
        """Counts by queue."""
        return self._transport.call("GET", "/stats", dict[str, Any])


def _named(definition: msgspec.Raw) -> Any:
    """The name that a definition has, if it has one."""
    value = msgspec.json.decode(definition)
    return value.get("name", "") if isinstance(value, dict) else ""


def _name_of(definition: JobDefinition | Mapping[str, Any]) -> str:
    name = definition.name if isinstance(definition, JobDefinition) else definition.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest("name: a job needs one", field="name")
    return name
