"""One job: its rule in words, its fire times past and future, its runs, and its actions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from horarium.access.roles import Scope
from horarium.api.reading import decode_any
from horarium.clock import INSTANT_MAX, Instant, to_datetime, to_instant, to_micros
from horarium.dashboard.attention import last_runs
from horarium.dashboard.charts import dot_chart
from horarium.dashboard.differences import changes
from horarium.dashboard.fields import as_command
from horarium.dashboard.formats import day_text, duration, instant_of, json_lines, span
from horarium.dashboard.marks import Mark, mark_of, why, worst_first
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.dashboard.strips import ahead_of, clock_changes, held_words, large
from horarium.errors import InvalidRequest
from horarium.model import Health, Job, Run, State, encode_payload
from horarium.model.overrides import Override
from horarium.policies import CatchUpPolicy, Overlap
from horarium.rules.batches import batch_behind
from horarium.rules.compiled import words_of
from horarium.rules.error_lines import error_line
from horarium.rules.explaining import Explanation
from horarium.rules.joins import is_join
from horarium.rules.overridden import with_moves
from horarium.triggers.words import counted
from horarium.wire.definitions import definition_of
from horarium.wire.views import job_view

STRIP_PAST = 34
RUNS_READ = 60
RUNS_SHOWN = 15
NEXT_SHOWN = 5
VERSIONS_SHOWN = 10
VERSION_DIGITS_MAX = 10
_CATCH_UPS = {
    CatchUpPolicy.LATEST: "one run for the newest of the fire times that were missed",
    CatchUpPolicy.ALL: "a run for each fire time that was missed",
    CatchUpPolicy.NONE: "no run for fire times that were missed",
    CatchUpPolicy.ASK: "a person is asked about fire times that were missed",
}
_OVERLAPS = {
    Overlap.ALLOW: "runs may go on at the same time",
    Overlap.SKIP: "skip while an earlier run goes on",
    Overlap.BUFFER_ONE: "one waits while an earlier run goes on",
    Overlap.BUFFER_ALL: "all wait while an earlier run goes on",
    Overlap.CANCEL_OTHER: "ask the earlier run to stop, then run",
    Overlap.TERMINATE_OTHER: "end the earlier run, then run",
}
NEXT_ALL = 50


class JobPages(Pages):
    """The pages below `/jobs/NAME`."""

    @Page("GET", "/jobs/{name}", "job", also=Scope.RUNS_READ, place="jobs")
    async def show(self, visit: Visit) -> Answer:
        job = await self._operations.jobs.get_job(visit.path_name)
        runs = await last_runs(self._operations, job.name, RUNS_READ)
        zone = zone_of_job(job) or visit.zone
        fires = ahead_of(job, visit.now, NEXT_ALL if visit.text("next") == "all" else NEXT_SHOWN)
        view = job_view(job)
        explained = await self._explained(visit, job.name, zone)
        versions = await self._operations.versions.shown(job, None, VERSIONS_SHOWN)
        health = (await self._operations.store.job_health([job.id]))[job.id]
        holds = [] if visit.principal.bound else await self._operations.reconciler.holding.look()
        return Shown(
            "job.html",
            {
                "job": job,
                "words": words_of(job),
                "failing": _failing(health, visit.now),
                "job_zone": zone,
                "strip": large(job, runs[:STRIP_PAST], visit.now, zone, holds),
                "held": held_words(holds, job, fires[0], zone, visit.now) if fires and job.enabled else "",
                "fires": coming(job, fires, zone),
                "waits": (await self._operations.explaining.at(job.name)).reason if is_join(job) else "",
                "next_at": fires[0] if fires else None,
                "all_fires": visit.text("next") == "all",
                "runs": [run_row(run, visit.now) for run in runs[:RUNS_SHOWN]],
                "by_batches": any(batch_behind(run) for run in runs),
                "chart": dot_chart(runs, zone),
                "facts": policies_in_words(job),
                "explained": explained,
                "asked_at": visit.text("at"),
                "changes": changes(list(versions.items)),
                "definition": json_lines(msgspec.json.encode(view)),
                "command": as_command(json.loads(msgspec.json.encode(definition_of(job)))),
                "legend": _legend(runs[:STRIP_PAST], visit.now),
            },
        )

    async def _zone(self, visit: Visit) -> str:
        """The zone on whose clocks the page of the job says its times."""
        return zone_of_job(await self._operations.jobs.get_job(visit.path_name)) or visit.zone

    async def _explained(self, visit: Visit, name: str, zone: str) -> Explanation | None:
        """Why it ran or did not at the time that was asked for, on the clocks of its zone."""
        at = instant_of(visit.text("at").strip(), "at", zone)
        return None if at is None else await self._operations.explaining.at(name, at)

    # ---- actions

    @Page("POST", "/jobs/{name}/run", "job-run", scope=Scope.RUNS_WRITE)
    async def run(self, visit: Visit) -> Answer:
        name, text = visit.path_name, visit.text("payload").strip()
        payload = encode_payload(decode_any(text.encode())) if text else None
        if payload is not None:
            visit.principal.require(Scope.RUNS_DEFINE)
        made = await self._operations.jobs.trigger_job(name, payload)
        return Went(f"/runs/{made.id}", f"{name} was triggered.")

    @Page("POST", "/jobs/{name}/pause", "job-pause", scope=Scope.RUNS_WRITE)
    async def pause(self, visit: Visit) -> Answer:
        name = visit.path_name
        await self._operations.jobs.pause_job(name, visit.text("reason").strip() or None)
        return Went(f"/jobs/{name}", f"{name} is paused.", (f"/jobs/{name}/resume", "Resume"))

    @Page("POST", "/jobs/{name}/resume", "job-resume", scope=Scope.RUNS_WRITE)
    async def resume(self, visit: Visit) -> Answer:
        name = visit.path_name
        await self._operations.jobs.resume_job(name)
        return Went(f"/jobs/{name}", f"{name} goes on.", (f"/jobs/{name}/pause", "Pause"))

    @Page("POST", "/jobs/{name}/skip", "job-skip", scope=Scope.RUNS_WRITE)
    async def skip(self, visit: Visit) -> Answer:
        name, fire_at = visit.path_name, _fire_time(visit, "at")
        at = day_text(to_instant(fire_at), await self._zone(visit))
        await self._operations.overriding.skip(name, fire_at, visit.text("reason").strip() or None)
        return Went(f"/jobs/{name}", f"{name} does not run at {at}.")

    @Page("POST", "/jobs/{name}/move", "job-move", scope=Scope.RUNS_WRITE)
    async def move(self, visit: Visit) -> Answer:
        name, fire_at = visit.path_name, _fire_time(visit, "at")
        zone = await self._zone(visit)
        to = _fire_time(visit, "to", zone)
        await self._operations.overriding.move(name, fire_at, to, visit.text("reason").strip() or None)
        return Went(f"/jobs/{name}", f"{name} runs at {day_text(to_instant(to), zone)} instead.")

    @Page("POST", "/jobs/{name}/unskip", "job-unskip", scope=Scope.RUNS_WRITE)
    async def unskip(self, visit: Visit) -> Answer:
        name, fire_at = visit.path_name, _fire_time(visit, "at")
        at = day_text(to_instant(fire_at), await self._zone(visit))
        await self._operations.overriding.lift(name, fire_at)
        return Went(f"/jobs/{name}", f"{name} runs at {at} again.")

    @Page("POST", "/jobs/{name}/backfill", "job-backfill", scope=Scope.RUNS_WRITE)
    async def backfill(self, visit: Visit) -> Answer:
        """Runs for the fire times of a span that have none."""
        name, zone = visit.path_name, await self._zone(visit)
        start, end = _fire_time(visit, "from", zone), _fire_time(visit, "to", zone)
        made = await self._operations.jobs.backfill_job(name, start, end)
        said = (
            f"{counted(len(made.runs), 'run')} of {name} {'is' if len(made.runs) == 1 else 'are'} made for that span."
        )
        if made.left:
            begin = day_text(to_instant(made.next_start or end), zone)
            said += f" {counted(made.left, 'fire time')} are left: repeat it from {begin} on."
        return Went(f"/runs?{urlencode({'job': name})}", said)

    @Page("POST", "/jobs/{name}/revert", "job-revert", scope=Scope.JOBS_WRITE)
    async def revert(self, visit: Visit) -> Answer:
        name, version = visit.path_name, visit.text("version")
        if not version.isdigit() or len(version) > VERSION_DIGITS_MAX:
            raise InvalidRequest(f"version: {version[:50]!r} is no version", field="version")
        await self._operations.jobs.revert_job(name, int(version))
        return Went(f"/jobs/{name}", f"{name} is as it was at version {version}.")

    @Page("POST", "/jobs/{name}/delete", "job-delete", scope=Scope.JOBS_WRITE)
    async def delete(self, visit: Visit) -> Answer:
        name = visit.path_name
        if visit.text("confirm") != name:
            raise InvalidRequest(f"type the job's name, {name}, to delete it", field="confirm")
        await self._operations.jobs.delete_job(name)
        undo = "/deleted-jobs/restore?" + urlencode({"name": name}), "Bring it back"
        return Went("/jobs", f"{name} was deleted. Its runs stay until their retention is over.", undo)


class Coming(NamedTuple):
    """A line of the table of what comes: when it runs (or would), the fire time of the rule, who changed it, and a note
    where the clocks change before it."""

    at: Instant
    fire_at: Instant
    override: Override | None
    note: str


def coming(job: Job, fires: Sequence[Instant], zone: str) -> list[Coming]:
    """The next instants at which a job runs, and between them the fire times that are skipped."""
    found: list[Coming] = []
    for (fire, moved), note in zip(with_moves(job, fires), clock_changes(fires, zone), strict=True):
        found.append(Coming(fire, fire if moved is None else moved.fire_at, moved, note))
    until = fires[-1] if fires else INSTANT_MAX
    skipped = [each for each in job.overrides if each.to is None and each.fire_at <= until]
    found += (Coming(each.fire_at, each.fire_at, each, "") for each in skipped)
    return sorted(found, key=lambda each: each.at)


def _fire_time(visit: Visit, field: str, zone: str = "UTC") -> datetime:
    found = instant_of(visit.text(field).strip(), field, zone)
    if found is None:
        raise InvalidRequest(f"{field}: say when", field=field)
    return to_datetime(found)


def _legend(runs: Sequence[Run], now: Instant) -> list[Mark]:
    """The marks that its strip shows, the worst first."""
    return sorted({mark_of(run, now) for run in runs}, key=lambda mark: (worst_first(mark), mark.word))


def zone_of_job(job: Job) -> str | None:
    """The zone of its rule, if it has one."""
    pending: list[Any] = [job.trigger]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            zone = value.get("timezone")
            if isinstance(zone, str):
                return zone
            pending += [each for each in value.values() if isinstance(each, dict | list)]
        elif isinstance(value, list):
            pending += value
    return None


def _failing(health: Health, now: Instant) -> tuple[str, str, str] | None:
    """The last run that failed, how often in a row runs failed, and the line of its error; None: the job does not
    fail."""
    last = health.last_run
    if not health.failures_in_a_row or last is None:
        return None
    streak = health.failures_in_a_row
    since = "" if health.failing_since is None else f", the first {span(now - health.failing_since)} ago"
    often = f"Failed {streak:,} times in a row{since}" if streak > 1 else f"Failed {span(now - last.finished_at)} ago"
    return last.id, often, error_line(last.error)


def run_row(run: Run, now: Instant) -> dict[str, Any]:
    """A run as a line of a table."""
    started = run.started_at
    return {
        "run": run,
        "mark": mark_of(run, now),
        "took": run.took,
        "late": None if started is None else max(started - run.due_at, 0),
        "by": run.worker or why(run, now),
        "error": error_line(run.error) if run.state is State.FAILED else "",
        "again": None,
    }


def policies_in_words(job: Job) -> list[tuple[str, str]]:
    """What holds if something goes wrong, as a list of facts."""
    window = job.catch_up.window_seconds
    facts = [
        ("Target", target_in_words(job)),
        ("Queue", job.queue),
        ("Catch-up", _CATCH_UPS[job.catch_up.policy] + (f", up to {_took(window)} late" if window is not None else "")),
        ("Overlap", _OVERLAPS[job.overlap]),
        ("Attempts", f"{job.retry.attempts_max}, the second after {_took(job.retry.backoff_seconds)}"),
        ("Lease", _took(job.timeouts.heartbeat_seconds)),
    ]
    if (ask := job.approval) is not None:
        eyes = ", four eyes" if ask.four_eyes else ""
        then = "it runs" if ask.then == "run" else "it is skipped"
        facts.append(("Approval", f"{' or '.join(ask.roles)}{eyes}, within {_took(ask.within_seconds)}; else {then}"))
    if job.concurrency is not None:
        facts.append(("Concurrency", f"at most {job.concurrency.max:,} of key {job.concurrency.key} at one time"))
    facts += [("Rate", f"{rate.max:,} of key {rate.key} in {_took(rate.per_seconds)}") for rate in job.rate]
    if job.timeouts.execution_seconds is not None:
        facts.append(("Time limit", f"{_took(job.timeouts.execution_seconds)} for an attempt"))
    if job.jitter_seconds:
        facts.append(("Jitter", f"up to {_took(job.jitter_seconds)}"))
    if job.priority:
        facts.append(("Priority", str(job.priority)))
    facts += [(f"On {said}", what) for said, what in _follows(job)]
    kept = job.retention.finished_seconds
    facts.append(("Runs kept", "for good" if kept is None else f"for {_took(kept)} after their end"))
    return facts


_AFTER = {1: "", 2: " from the second in a row", 3: " from the third in a row"}


def _follows(job: Job) -> list[tuple[str, str]]:
    """What follows from its runs: the occasion, and what it brings about."""
    found = []
    for occasion, follows in job.on.items():
        parts = []
        for one in follows:
            what = f"tell {one.notify}" if one.notify is not None else f"run {one.trigger}"
            often = _AFTER.get(one.after, f" from the {one.after}th in a row")
            parts.append(what + often + (f" after {_took(one.seconds)}" if one.seconds is not None else ""))
        found.append((occasion.value.replace("_", " "), ", ".join(parts)))
    return found


def _took(seconds: float) -> str:
    return duration(to_micros(seconds))


def target_in_words(job: Job) -> str:
    """What the job runs."""
    target: dict[str, Any] = msgspec.to_builtins(job_view(job).target)
    match target["type"]:
        case "http":
            return f"{target['method']} {target['url']}"
        case "handler":
            return f"handler {target['name']}"
        case "queue":
            return f"workers of queue {target['queue']}"
        case "bus":
            return f"bus {target['bus']}"
    return str(target["type"])
