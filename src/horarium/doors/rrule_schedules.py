"""Schedules of rrule-scheduler as jobs, and back.

A schedule's id is the job's name, its name the job's title. A rule without DTSTART is given the second of its creation
as one, so that it keeps its phase; how it was sent is in a label, and it is shown as it was sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from horarium.clock import SECOND, Instant, to_text
from horarium.doors.web import go_time, short_id
from horarium.errors import CallerError, InvalidTrigger
from horarium.model import Disposition, HttpTarget, Job, Run, State, shown_state
from horarium.model import run_id as run_id_of
from horarium.model.secrets import plain
from horarium.policies import Retry
from horarium.wire.definitions import JobDefinition, read_definition
from horarium.wire.masking import shown_target

NAME = "rrule-scheduler"
LABEL = "door"
SENT = "door-sent"
"""The label that says how it was sent: `start` (DTSTART is ours), `bare` (without RRULE:), `get` (no method),
`over` (paused by the door, since its rule fires no more)."""
CALLS_MAX = 3
"""Calls of one event in all, at once after each other."""
YEARS_BEFORE_END = 10
"""A rule that ended before its creation has so long before that to have fired in."""
LINE = re.compile(r"(DTSTART[:;]|RRULE:|FREQ=)\S+")
NOT_SENT = frozenset(
    {"accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "trailer", "transfer-encoding"}
)
"""Headers of the connection: taken from clients, and left out, as Go's HTTP client does with most of them."""
FIELDS: Mapping[str, type] = {
    "name": str,
    "rrule": str,
    "callback_url": str,
    "method": str,
    "headers": dict,
    "body": str,
}


class ScheduleRefused(Exception):
    """A schedule that is not taken: status, code, message. Without a code: the body can't be read."""

    def __init__(self, message: str, status: int = 422, code: str | None = "validation_failed") -> None:
        super().__init__(message)
        self.message, self.status, self.code = message, status, code


class Schedule(Struct, omit_defaults=True):
    """A schedule as it is shown, in this order."""

    id: str
    name: str
    rrule: str
    callback_url: str
    method: str = ""
    headers: dict[str, str] = {}
    body: str = ""
    created_at: str = ""


class Step(Struct):
    """One status of an event."""

    message: str
    status: str
    time: str


class Event(Struct):
    """An occurrence, as it is shown: keys in alphabetical order."""

    id: str = msgspec.field(name="_id")
    created_at: str
    run_time: str
    schedule_id: str
    status: list[Step]


# ---- sent -------------------------------------------------------------------------------------------------------


def read_fields(content: Mapping[str, Any], unreadable: str) -> dict[str, Any]:
    """The fields of a schedule that are there, of the right types. Raises ScheduleRefused."""
    found = {name: content[name] for name in FIELDS if name in content}
    for name, given in found.items():
        wrong = given is not None and not isinstance(given, FIELDS[name])
        if wrong or (name == "headers" and not all(isinstance(text, str) for text in (given or {}).values())):
            raise ScheduleRefused(unreadable, 400, None)
    return found


def check(fields: Mapping[str, Any]) -> None:
    """Refuse missing fields, in the order in which clients expect it. Raises ScheduleRefused."""
    if not fields.get("name"):
        raise ScheduleRefused("Schedule name cannot be empty")
    if not fields.get("rrule"):
        raise ScheduleRefused("RRULE cannot be empty")
    lines = fields["rrule"].strip().splitlines()
    if not all(LINE.fullmatch(line) for line in lines) or fields["rrule"].rstrip().endswith(";"):
        raise ScheduleRefused("Invalid RRULE format")
    if any(_rule(line) != _rule(line).upper() for line in lines if not line.startswith("DTSTART")):
        raise ScheduleRefused("Invalid RRULE format")
    if not any("FREQ=" in line for line in lines):
        raise ScheduleRefused("Invalid RRULE format")
    url = fields.get("callback_url") or ""
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", url) or re.search(r"%(?![0-9A-Fa-f]{2})", url):
        raise ScheduleRefused("Invalid callback URL format")


def _rule(line: str) -> str:
    return re.sub(r"TZID=[^:;]*", "", line)


def definition(id: str, fields: Mapping[str, Any], start: str) -> JobDefinition:
    """The job of a schedule; `start`: the DTSTART of a rule that has none. Raises ScheduleRefused."""
    check(fields)
    text, sent = fields["rrule"].strip(), []
    if "DTSTART" not in text:
        bare = not text.startswith("RRULE:")
        sent += ["start", "bare"] if bare else ["start"]
        text = f"{_before_end(start, text)}\n{'RRULE:' if bare else ''}{text}"
    if not fields.get("method"):
        sent.append("get")
    method = fields.get("method") or "GET"
    body = fields.get("body")
    target = {
        "type": "http",
        "url": fields["callback_url"],
        "method": method,
        "headers": {name: text for name, text in (fields.get("headers") or {}).items() if name.lower() not in NOT_SENT},
        "body": body or (None if method in ("GET", "HEAD") else ""),
    }
    try:
        return read_definition(
            {
                "name": id,
                "title": fields["name"],
                "trigger": {"type": "rrule", "rrule": text},
                "target": target,
                "labels": {LABEL: NAME, SENT: " ".join(sent)},
                "retry": msgspec.to_builtins(Retry(attempts_max=CALLS_MAX, backoff_seconds=0)),
            }
        )
    except CallerError as error:
        raise refused(error) from None


def _before_end(start: str, rule: str) -> str:
    """The start; of a rule that ended before it one at which it had some years to fire."""
    end = re.search(r"UNTIL=((\d{4})\d{4}(T\d{6})?)", rule)
    if end is None or end[1] >= start.removeprefix("DTSTART:")[: len(end[1])]:
        return start
    return f"DTSTART:{max(int(end[2]) - YEARS_BEFORE_END, 1):04}0101T000000Z"


def over(wanted: JobDefinition) -> JobDefinition:
    """The job of a schedule whose rule fires no more: it is shown and calls nothing."""
    labels = {**wanted.labels, SENT: f"{wanted.labels[SENT]} over".strip()}
    return msgspec.structs.replace(wanted, enabled=False, labels=labels)


def is_over(job: Job) -> bool:
    """True if the door has paused it, not a person."""
    return "over" in job.labels.get(SENT, "").split()


def refused(error: CallerError) -> ScheduleRefused:
    """Our error in the words that clients know."""
    if isinstance(error, InvalidTrigger):
        return ScheduleRefused("Invalid RRULE format")
    if (error.field or "").startswith("target.url"):
        return ScheduleRefused("Invalid callback URL format")
    return ScheduleRefused(re.sub(r"^target\.", "", error.message).replace("title:", "name:", 1))


def start_at(now: Instant, rule: Any) -> str:
    """This second as DTSTART, so that the first occurrence is one step of the rule away; a rule that counts has the
    next second, or one of those that it counts would be over."""
    counts = isinstance(rule, str) and "COUNT=" in rule
    digits = re.sub(r"[-:]|\..*|\+.*|Z", "", to_text((now // SECOND + counts) * SECOND))
    return f"DTSTART:{digits}Z"


def start_of(job: Job, rule: Any, now: Instant) -> str:
    """The DTSTART that the schedule was given at its creation; a new rule that counts begins now."""
    if isinstance(rule, str) and "COUNT=" in rule and rule != fields_of(job)["rrule"]:
        return start_at(now, rule)
    if "start" in job.labels[SENT] and not (is_over(job) and rule != fields_of(job)["rrule"]):
        return str(job.trigger["rrule"]).partition("\n")[0]
    return start_at(job.created_at, rule)


# ---- shown ------------------------------------------------------------------------------------------------------


def fields_of(job: Job) -> dict[str, Any]:
    """The fields of a schedule as they are stored, secrets and all."""
    target = job.target
    assert isinstance(target, HttpTarget), "a schedule calls a URL"
    sent = job.labels.get(SENT, "").split()
    text = str(job.trigger.get("rrule", ""))
    if "start" in sent:
        text = text.partition("\n")[2].removeprefix("RRULE:" if "bare" in sent else "")
    return {
        "name": job.title or job.name,
        "rrule": text,
        "callback_url": target.url,
        "method": "" if "get" in sent else target.method,
        "headers": {name: plain(text) for name, text in target.headers.items()},
        "body": target.body if isinstance(target.body, str) else "",
    }


def shown_fields(job: Job) -> dict[str, Any]:
    """The same with masks for secrets. Stored secrets take their place where it goes to the same host."""
    return fields_of(msgspec.structs.replace(job, target=shown_target(job.target)))


def shown(job: Job) -> Schedule:
    """The schedule as anyone may see it."""
    return Schedule(id=job.name, created_at=go_time(job.created_at // 1000 * 1000), **shown_fields(job))


def event_of(run: Run) -> Event:
    queued = Step("Event pre-queued for ready queue", "ready_queue", go_time(run.created_at))
    steps = [queued]
    if shown_state(run) is not State.PENDING:
        began = run.started_at or run.due_at
        steps.append(Step("Event dispatched to worker queue", "worker_queue", go_time(began)))
    if run.state is State.COMPLETED:
        steps.append(Step("Event successfully processed", "completed", go_time(run.finished_at)))
    elif run.finished:
        steps.append(Step(_failure(run), "error", go_time(run.finished_at)))
    return Event(short_id(run.id), go_time(run.created_at), _whole(run.fire_at), run.job or "", steps)


def _failure(run: Run) -> str:
    if run.disposition is Disposition.RAN:
        return f"Callback failed after max retries: {run.error}"
    return f"Not called: {run.error or run.disposition}"


def event_ahead(job: Job, fire_at: Instant, timeframe: int) -> Event:
    """An occurrence that is no run yet, under the id that its run will have."""
    queued_at = go_time(max(job.created_at, fire_at - timeframe))
    steps = [Step("Event pre-queued for ready queue", "ready_queue", queued_at)]
    return Event(short_id(run_id_of(job.id, fire_at)), queued_at, _whole(fire_at), job.name, steps)


def _whole(instant: Instant) -> str:
    return go_time(instant // SECOND * SECOND)
