"""Schedules of Kubernetes, EventBridge Scheduler and Celery beat and checks of Healthchecks as jobs, and the settings
that all imported jobs share.

A Kubernetes CronJob becomes a job with a command target: the command of its one container, which a worker starts in
that image. A schedule of EventBridge becomes one with a queue target, whose payload is its `Input`. A part without a
counterpart that would change the work (a container without a command, a variable from a secret) is an error. AWS counts
days of the week from 1 = Sunday, and ends its six fields with a year: both are translated.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from horarium.cli.entry import Entry
from horarium.cli.fields import json_or_text
from horarium.cli.systemd import calendar_trigger
from horarium.errors import InvalidJob, InvalidTrigger
from horarium.policies import ATTEMPTS_MAX, RETRY_AGE_SECONDS_MAX
from horarium.triggers.dialects import from_dialect

CONCURRENCY = {"Allow": "allow", "Forbid": "skip", "Replace": "cancel_other"}
BACKOFF_LIMIT, BACKOFF_SECONDS, BACKOFF_MAX_SECONDS = 6, 10, 360
"""Of a Kubernetes Job that says nothing else."""
UNITS = {"minute": 60, "hour": 3600, "day": 86400}


class Common(NamedTuple):
    """What every job of a file gets: its queue, the beginning of its name, fields that win over those of the file."""

    source: str
    queue: str
    prefix: str
    fields: Mapping[str, Any]

    def entries(self, items: Iterable[Any], read: Callable[[Any], dict[str, Any]]) -> Iterator[Entry]:
        """One for each item; one that can't be a job says why."""
        for number, item in enumerate(items, 1):
            place = f"{self.source}:{_name_of(item) or number}"
            try:
                definition = read(item)
            except InvalidJob as error:
                yield Entry(place, None, error.message)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                yield Entry(place, None, f"not as expected: {type(error).__name__}: {error}")
            else:
                yield Entry(place, {**definition, "name": self.prefix + definition["name"], **self.fields})


def _name_of(item: Any) -> str | None:
    if not isinstance(item, dict):
        return None
    metadata = item.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else item.get("Name")
    return name if isinstance(name, str) else None


def format_of(text: str) -> str | None:
    """What another program's file is, by its content."""
    if re.search(r"^\s*[\"']?kind[\"']?:\s*[\"']?CronJob\b", text, re.MULTILINE) and "jobTemplate" in text:
        return "kubernetes"
    if re.search(r'"ScheduleExpression"\s*:', text) and '"trigger"' not in text:
        return "eventbridge"
    if re.search(r'"ping_url"\s*:', text) and '"grace"' in text:
        return "healthchecks"
    return "systemd" if re.search(r"^\[Timer\]", text, re.MULTILINE) else None


# ---- Kubernetes -------------------------------------------------------------------------------------------------


def kubernetes_entries(documents: Iterable[Any], common: Common) -> Iterator[Entry]:
    """The CronJobs of a manifest or a list; other kinds in it are passed over."""
    items = [item for document in documents for item in _items(document)]
    found = [item for item in items if isinstance(item, dict) and item.get("kind") == "CronJob"]
    if not found:
        raise InvalidJob(f"{common.source} has no CronJob")
    return common.entries(found, lambda item: _cron_job(item, common.queue))


def _items(document: Any) -> list[Any]:
    if isinstance(document, dict) and isinstance(document.get("items"), list):
        return list(document["items"])
    return [document]


def _cron_job(item: Mapping[str, Any], queue: str) -> dict[str, Any]:
    spec = item["spec"]
    job = spec["jobTemplate"]["spec"]
    trigger = {"type": "cron", "expression": spec["schedule"], "timezone": spec.get("timeZone", "UTC")}
    attempts = min(job.get("backoffLimit", BACKOFF_LIMIT) + 1, ATTEMPTS_MAX)
    definition: dict[str, Any] = {
        "name": item["metadata"]["name"],
        "trigger": trigger,
        "target": _command(job["template"]["spec"], queue),
        "overlap": CONCURRENCY[spec.get("concurrencyPolicy", "Allow")],
        "retry": {
            "attempts_max": attempts, "backoff_seconds": BACKOFF_SECONDS, "backoff_max_seconds": BACKOFF_MAX_SECONDS,
        },
    }  # fmt: skip
    if labels := item["metadata"].get("labels"):
        definition["labels"] = {name: str(value) for name, value in labels.items()}
    if spec.get("startingDeadlineSeconds") is not None:
        definition["catch_up"] = {"policy": "latest", "window_seconds": spec["startingDeadlineSeconds"]}
    if job.get("activeDeadlineSeconds") is not None:
        seconds = job["activeDeadlineSeconds"]
        definition["timeouts"] = {"execution_seconds": seconds}
        definition["retry"]["age_max_seconds"] = min(seconds, RETRY_AGE_SECONDS_MAX)
    if spec.get("suspend"):
        definition["enabled"] = False
    return definition


def _command(pod: Mapping[str, Any], queue: str) -> dict[str, Any]:
    containers = pod["containers"]
    if len(containers) != 1:
        raise InvalidJob(
            f"it has {len(containers)} containers; a command target starts one program: leave one in the file, or make "
            "a job of each"
        )
    (container,) = containers
    if not container.get("command"):
        raise InvalidJob(
            "its container has no `command`: the manifest does not say which program of the image is started; "
            "write the image's ENTRYPOINT there"
        )
    hidden = [each["name"] for each in container.get("env", ()) if "value" not in each]
    if hidden or container.get("envFrom"):
        named = ", ".join(hidden) or "envFrom"
        raise InvalidJob(
            f"{named}: values from elsewhere are not imported; give them to the worker (--pass-env NAME), and leave "
            "them out here"
        )
    target: dict[str, Any] = {
        "type": "command",
        "queue": queue,
        "command": [*container["command"], *container.get("args", ())],
    }
    if env := {each["name"]: str(each["value"]) for each in container.get("env", ())}:
        target["env"] = env
    if container.get("workingDir"):
        target["cwd"] = container["workingDir"]
    return target


# ---- EventBridge Scheduler --------------------------------------------------------------------------------------


def eventbridge_entries(text: str, common: Common) -> Iterator[Entry]:
    """The schedules of `aws scheduler get-schedule`: one, a list, or one after the other."""
    decoder, at = json.JSONDecoder(), 0
    items: list[Any] = []
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise InvalidJob(f"{common.source}: not JSON: {error}") from None
        items += value if isinstance(value, list) else value.get("Schedules", [value])
    return common.entries(items, lambda item: _schedule(item, common.queue))


def _schedule(item: Mapping[str, Any], queue: str) -> dict[str, Any]:
    target = item.get("Target", {})
    if "ScheduleExpression" not in item:
        raise InvalidJob(
            "a list of schedules does not say when they run; give what `aws scheduler get-schedule` prints of each"
        )
    if found := re.search(r"<aws\.scheduler\.[a-z-]+>", str(target.get("Input", ""))):
        raise InvalidJob(f"{found[0]} in its Input is not filled in; leave it out, and read `fire_at` of the run")
    definition: dict[str, Any] = {
        "name": item["Name"],
        "trigger": aws_trigger(item["ScheduleExpression"], item.get("ScheduleExpressionTimezone", "UTC")),
        "target": {"type": "queue", "queue": queue, "payload": json_or_text(target.get("Input"))},
    }
    if item.get("GroupName", "default") != "default":
        definition["labels"] = {"group": item["GroupName"]}
    if item.get("State") == "DISABLED":
        definition["enabled"] = False
    if minutes := item.get("FlexibleTimeWindow", {}).get("MaximumWindowInMinutes"):
        definition["jitter_seconds"] = minutes * 60
    for theirs, ours in (("StartDate", "starts_at"), ("EndDate", "ends_at")):
        if item.get(theirs):
            definition[ours] = item[theirs]
    retry = {}
    policy = target.get("RetryPolicy", {})
    if "MaximumRetryAttempts" in policy:
        retry["attempts_max"] = min(policy["MaximumRetryAttempts"] + 1, ATTEMPTS_MAX)
    if "MaximumEventAgeInSeconds" in policy:
        retry["age_max_seconds"] = policy["MaximumEventAgeInSeconds"]
    return {**definition, "retry": retry} if retry else definition


def aws_trigger(expression: str, timezone: str) -> dict[str, Any]:
    """`rate(...)`, `cron(...)` and `at(...)` as triggers. Raises InvalidJob."""
    if found := re.fullmatch(r"rate\(\s*(\d+)\s+(minute|hour|day)s?\s*\)", expression):
        return {"type": "interval", "every_seconds": int(found[1]) * UNITS[found[2]]}
    if found := re.fullmatch(r"at\(\s*(\S+)\s*\)", expression):
        try:
            instant = datetime.fromisoformat(found[1]).replace(tzinfo=ZoneInfo(timezone))
        except (ValueError, ZoneInfoNotFoundError) as error:
            raise InvalidJob(f"{expression}: {error}") from None
        return {"type": "once", "at": instant.isoformat()}
    try:
        return {"type": "cron", "expression": from_dialect(expression, "eventbridge"), "timezone": timezone}
    except InvalidTrigger as error:
        raise InvalidJob(f"{expression!r} is none of rate(...), cron(...) and at(...): {error.message}") from None


# ---- Celery beat ------------------------------------------------------------------------------------------------

CRONTAB = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


def celery_entries(place: str, common: Common) -> Iterator[Entry]:
    """The `beat_schedule` of a Celery application, imported from `module:attribute`."""
    module, _, attribute = place.partition(":")
    sys.path.insert(0, "")
    try:
        conf = getattr(import_module(module), attribute or "app").conf
        beat, zone = dict(conf.beat_schedule), conf.timezone or "UTC"
    except Exception as error:  # its module may raise anything
        message = f"{place}: give module:application, in an environment that has Celery and it"
        raise InvalidJob(f"{message}: {type(error).__name__}: {error}") from None
    finally:
        sys.path.remove("")
    return common.entries([{"Name": name, **entry} for name, entry in beat.items()], lambda item: _beat(item, zone))


def _beat(item: Mapping[str, Any], zone: str) -> dict[str, Any]:
    """One entry, as a job that hands its task to the handler `celery_task`."""
    args = {"task": item["task"], "args": list(item.get("args") or ()), "kwargs": dict(item.get("kwargs") or {})}
    definition: dict[str, Any] = {
        "name": re.sub(r"[^A-Za-z0-9._:@-]+", "-", item["Name"]).strip("-"),
        "title": item["Name"],
        "trigger": _beat_trigger(item["schedule"], str(zone)),
        "target": {"type": "handler", "name": "celery_task", "args": args},
    }
    options = dict(item.get("options") or {})
    if (expires := options.pop("expires", None)) is not None:
        definition["timeouts"] = {"start_seconds": getattr(expires, "total_seconds", lambda: expires)()}
    if options:
        args["options"] = options
    return definition


def _beat_trigger(schedule: Any, zone: str) -> dict[str, Any]:
    if all(hasattr(schedule, f"_orig_{field}") for field in CRONTAB):
        given = (getattr(schedule, f"_orig_{field}") for field in CRONTAB)
        fields = [
            str(each).replace(" ", "") if isinstance(each, str | int) else ",".join(map(str, sorted(each)))
            for each in given
        ]
        trigger = {"type": "cron", "expression": " ".join(fields), "timezone": zone}
        # Where it names days of both kinds, a day has to be both.
        return trigger if "*" in (fields[2], fields[4]) else {**trigger, "day_match": "all"}
    every = getattr(schedule, "run_every", schedule)
    seconds = every.total_seconds() if isinstance(every, timedelta) else every
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidJob(f"{type(schedule).__name__}: not translated; compute its instants, and make a job of each")
    return {"type": "interval", "every_seconds": seconds}


# ---- Healthchecks -----------------------------------------------------------------------------------------------


def healthchecks_entries(text: str, common: Common) -> Iterator[Entry]:
    """The checks that its API lists (`GET /api/v3/checks/`), as jobs whose work is done elsewhere."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f"{common.source}: not JSON: {error}") from None
    checks = given.get("checks") if isinstance(given, dict) else given
    return common.entries(checks if isinstance(checks, list) else [given], _check)


def _check(item: Mapping[str, Any]) -> dict[str, Any]:
    """One check. Its grace is how long a run waits for its ping."""
    name = item.get("slug") or re.sub(r"[^A-Za-z0-9._:@-]+", "-", item["name"]).strip("-") or item["ping_url"][-36:]
    definition: dict[str, Any] = {
        "name": name,
        "title": item["name"] or name,
        "trigger": _check_trigger(item),
        "target": {"type": "external"},
        "timeouts": {"start_seconds": item["grace"]},
    }
    if tags := item.get("tags", "").split():
        definition["labels"] = dict.fromkeys(tags, "true")
    return {**definition, "enabled": False} if item.get("status") == "paused" else definition


def _check_trigger(item: Mapping[str, Any]) -> dict[str, Any]:
    if "schedule" not in item:
        return {"type": "interval", "every_seconds": item["timeout"]}
    schedule, zone = item["schedule"], item.get("tz", "UTC")
    if len(schedule.split()) == 5:
        return {"type": "cron", "expression": schedule, "timezone": zone}
    return calendar_trigger(schedule, zone)
