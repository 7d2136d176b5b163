"""One run: its life, its log as it grows, its request, its outcome and its follow-ups."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from horarium.access.roles import Scope
from horarium.api.answers import Ready
from horarium.api.reading import decode_any
from horarium.clock import Instant
from horarium.dashboard.charts import life_of
from horarium.dashboard.formats import json_lines, localized, precise
from horarium.dashboard.marks import ASKED, FAILED, LOST, Mark, attempts_of, mark_of, why
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.delivery.message import Reporting, build
from horarium.errors import HorariumError, InvalidRequest
from horarium.model import (
    RETRY_KEY,
    Cause,
    Event,
    HttpTarget,
    Job,
    Occasion,
    Run,
    State,
    encode_payload,
    in_wall_time,
    retry_key,
    timeline,
)
from horarium.model.identity import is_run_id
from horarium.model.logs import LogLine
from horarium.operations.runs.logs import WAIT_SECONDS_MAX
from horarium.operations.runs.runs import RETRIED
from horarium.rules.approving import is_waiting
from horarium.rules.batches import batch_behind, batch_of
from horarium.rules.chains import chain_key, depth_of, step_of, then_key
from horarium.rules.error_lines import first_line
from horarium.wire.masking import SECRET_SHOWN, is_secret_header, shown_target
from horarium.wire.views import run_view

LOG_LINES = 500
LOG_NUMBER_DIGITS_MAX = 12
SIGNATURE = "webhook-signature"
FOLLOWS_MAX = 40
BODY_CHARS_MAX = 10_000
_AGAIN = {
    "failed": FAILED,
    "timed_out": Mark("failed", "Timed out"),
    "lost": LOST,
    "deferred": Mark("retrying", "Deferred"),
    "released": Mark("retrying", "Released"),
    "refused": Mark("retrying", "Put back for another worker"),
    "limited": Mark("pending", "In line"),
    "throttled": Mark("pending", "In line"),
    "asked": ASKED,
    "decided": Mark("asked", "Decided"),
    "expired": Mark("asked", "Not decided in time"),
    "held": Mark("held", "Held"),
    "moved": Mark("changed", "Moved"),
}
"""What an entry of a run that is pending says, by its kind."""
_WRONG = frozenset({"failed", "timed_out", "lost"})


class RunPages(Pages):
    """The pages below `/runs/ID`."""

    @Page("GET", "/runs/{id}", "run", scope=Scope.RUNS_READ, place="runs")
    async def show(self, visit: Visit) -> Answer:
        run = await self._operations.runs.get_run(visit.path_id("run"))
        job = None if run.job_id is None else (await self._operations.store.get_jobs_by_id([run.job_id]))[0]
        events = timeline(run)
        attempts = attempts_of(run, events, visit.now)
        lines, following = await self._log(run)
        return Shown(
            "run.html",
            {
                "run": run,
                "job": job,
                "state_mark": mark_of(run, visit.now),
                "sentence": localized(why(run, visit.now), visit.zone),
                "can_decide": is_waiting(run) and visit.may(Scope.RUNS_WRITE),
                "life": life_of(in_wall_time(run, self._operations.clock), attempts, visit.now, visit.zone),
                "history": history_rows(run, events, visit.zone),
                "errors": errors_of(events),
                "payload": _shown(run_view(run).payload),
                "result": _shown(run_view(run).result),
                "progress": _shown(run_view(run).progress),
                "attempts_max": _attempts_max(run, job),
                "can_retry": run.state in RETRIED and visit.may(Scope.RUNS_WRITE),
                "can_edit": visit.may(Scope.RUNS_DEFINE),
                "can_cancel": not run.finished and run.state is not State.CANCELLING and visit.may(Scope.RUNS_WRITE),
                "curl": as_curl(visit, run),
                "log": lines,
                "log_next": following,
                "sent": sent_of(run, job, visit.now),
                "follows": await self._follows(run, job),
                "origin": _origin_of(run),
                "batch": batch_of(run),
                "batch_behind": batch_behind(run),
                "late": None if run.started_at is None else max(run.started_at - run.due_at, 0),
            },
        )

    async def _log(self, run: Run) -> tuple[list[LogLine], int | None]:
        """The end of its log, and the number of the line after it; None: there will be no more."""
        page = await self._operations.logs.read(run.id, 0, LOG_LINES)
        while page.next_line is not None and len(page.lines) == LOG_LINES:
            later = await self._operations.logs.read(run.id, page.next_line, LOG_LINES)
            if not later.lines:
                break
            page = later
        return list(page.lines), None if run.finished else page.next_line

    @Page("GET", "/runs/{id}/log", "run-log", scope=Scope.RUNS_READ, place="runs")
    async def log(self, visit: Visit) -> Answer:
        """Lines from a number on, as soon as there are some: a page that is open asks again and again."""
        after = visit.text("after") or "0"
        if not after.isdigit() or len(after) > LOG_NUMBER_DIGITS_MAX:
            raise InvalidRequest(f"after: {after[:50]!r} is no number of a line", field="after")
        page = await self._operations.logs.read(visit.path_id("run"), int(after), LOG_LINES, WAIT_SECONDS_MAX)
        lines = [{"at": precise(line.at, visit.zone), "stream": line.stream, "text": line.text} for line in page.lines]
        body = msgspec.json.encode({"lines": lines, "next": page.next_line})
        return Ready(body, headers=[("cache-control", "no-store")])

    async def _follows(self, run: Run, job: Job | None) -> list[dict[str, Any]]:
        """The runs that follow from this one, as far as they were made and are kept."""
        wanted = [("a retry was asked for", "", retry_key(run.id)), *(_keys_of(run, job) if job else [])]
        for index, each in enumerate(run.policy.then if run.policy else ()):
            wanted.append(("completed", f"run {each.queue.removeprefix('handler/')}", then_key(run.id, index)))
        found = await asyncio.gather(
            *(self._operations.store.get_run_by_key(key) for _, _, key in wanted[:FOLLOWS_MAX])
        )
        rows: dict[str, dict[str, Any]] = {}
        for (occasion, what, _), after in zip(wanted, found, strict=False):
            if after is not None:
                mark = mark_of(after, self._operations.clock.now())
                rows[f"{occasion} {what}"] = {"occasion": occasion, "what": what, "run": after, "mark": mark}
        return list(rows.values())

    @Page("POST", "/runs/{id}/retry", "run-retry", scope=Scope.RUNS_WRITE)
    async def retry(self, visit: Visit) -> Answer:
        text = visit.text("payload").strip()
        payload = encode_payload(decode_any(text.encode())) if text else None
        if payload is not None:
            visit.principal.require(Scope.RUNS_DEFINE)
        made = await self._operations.runs.retry_run(visit.path_id("run"), payload)
        return Went(f"/runs/{made.id}", "This is the new run.")

    @Page("POST", "/runs/{id}/cancel", "run-cancel", scope=Scope.RUNS_WRITE)
    async def cancel(self, visit: Visit) -> Answer:
        run_id = visit.path_id("run")
        reason = visit.text("reason").strip() or f"cancelled by {visit.principal.name}"
        run = await self._operations.runs.cancel_run(run_id, reason)
        said = "Cancelled." if run.finished else "It was asked to stop."
        return Went(f"/runs/{run_id}", said)


def _keys_of(run: Run, job: Job) -> list[tuple[str, str, str]]:
    """Occasion, what follows, and the unique key of the run that it is: of a triggered job the run that asks for it,
    then its own."""
    wanted = []
    for occasion, follows in job.on.items():
        many = occasion is Occasion.ATTEMPT_FAILED
        parts = [f"{occasion}.{attempt}" for attempt in range(1, run.attempt + 1)] if many else [str(occasion)]
        for part in parts:
            for follow in follows:
                key = f"{run.id}/{part}/{follow.action}"
                said = part.replace("_", " ").replace(".", " ")
                what = f"tell {follow.notify}" if follow.notify is not None else f"run {follow.trigger}"
                wanted.append((said, what, key))
                if follow.trigger is not None:
                    wanted.append((said, what, chain_key(depth_of(run) + step_of(job), key)))
    return wanted


def _origin_of(run: Run) -> str | None:
    """The id of the run that this one follows from."""
    key = run.unique_key or ""
    if key.startswith(RETRY_KEY):
        key = key.removeprefix(RETRY_KEY)
    elif depth_of(run):
        key = key.split("/", 2)[2]
    elif run.cause is not Cause.FOLLOW_UP:
        return None
    found = key.partition("/")[0]
    return found if is_run_id(found) else None


def sent_of(run: Run, job: Job | None, now: Instant) -> dict[str, Any] | None:
    """The request of its attempt, secrets masked; None: it is none."""
    target = job.target if job is not None else run.policy.target if run.policy is not None else None
    if not isinstance(target, HttpTarget) or run.state is State.SKIPPED:
        return None
    shown = shown_target(target)
    assert isinstance(shown, HttpTarget)
    signs = target.signing_secret if isinstance(target.signing_secret, str) else None
    try:
        path = urlsplit(target.url).path or "/"
        made = build(target, path, run, now=run.started_at or now, secret=signs, reporting=Reporting())
    except (HorariumError, ValueError, LookupError):
        return None
    headers = [
        (name, SECRET_SHOWN if is_secret_header(name) or name.lower() == SIGNATURE else text)
        for name, text in made.headers.items()
    ]
    body = (made.body or b"").decode("utf-8", "replace")
    return {
        "method": made.method,
        "url": shown.url,
        "headers": headers,
        "body": body[:BODY_CHARS_MAX],
        "sent": run.attempt > 0,
    }


def errors_of(events: Sequence[Event]) -> list[Event]:
    """Errors, the last first."""
    return [event for event in reversed(events) if event.trace or event.kind in _WRONG or event.state is State.FAILED]


def history_rows(run: Run, events: Sequence[Event], zone: str) -> list[dict[str, Any]]:
    """The history as a list: instant, time since the row before, mark, sentence."""
    rows: list[dict[str, Any]] = []
    before: Instant | None = None
    for event in events:
        planned = before is None and event.state is State.PENDING
        text = f"Cause: {run.cause.value.replace('_', ' ')}" if planned else first_line(event.message, 400)
        text = localized(text, zone)
        rows.append(
            {
                "at": event.at,
                "plus": None if before is None else max(event.at - before, 0),
                "mark": _happened(event, first=planned),
                "text": text[:1].upper() + text[1:],
            }
        )
        before = event.at
    return rows


def _happened(event: Event, *, first: bool) -> Mark:
    """What an entry of the history was, as a mark and its word."""
    if event.state is State.PENDING:
        if first:
            return Mark("planned", "Planned")
        return _AGAIN.get(event.kind.value if event.kind else "", Mark("retrying", "To run again"))
    symbol = "missed" if event.state is State.SKIPPED else event.state.value
    return Mark(symbol, event.state.value.capitalize())


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    text = bytes(value) if isinstance(value, msgspec.Raw) else msgspec.json.encode(value)
    return json_lines(text)


def _attempts_max(run: Run, job: Job | None) -> int:
    retry = job.retry if job is not None else run.policy.retry if run.policy is not None else None
    return retry.attempts_max if retry is not None else 1


def as_curl(visit: Visit, run: Run) -> str:
    """The request that does the same as this page's main button, for a terminal."""
    host = visit.request.headers.get("host", "localhost")
    scheme = visit.request.scope.get("scheme", "http")
    what = "retry" if run.state in RETRIED else "cancel" if not run.finished else ""
    url = f"{scheme}://{host}/api/v1/runs/{run.id}" + (f"/{what}" if what else "")
    words = ["curl", *(["-X", "POST"] if what else []), url]
    return shlex.join(words) + ' -H "Authorization: Bearer $HORARIUM_API_KEY"'
