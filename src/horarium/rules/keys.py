"""Keys of rate limits, concurrency and fairness, as templates: `api:{payload.customer}`.

A template is resolved once, when the run is made, from what is known of the run then: its job, its queue, its job's
labels and the payload that it carries. Text without braces means itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from horarium.errors import InvalidJob, InvalidRequest
from horarium.model import BusTarget, HandlerTarget, HttpTarget, Job, QueueTarget, Run, Target
from horarium.policies import KEY_LENGTH_MAX, Concurrency, Rate
from horarium.rules.fairness import turn_later

_PART = re.compile(r"\{([^{}]*)\}")
_KNOWN = re.compile(r"job|queue|label\.[^{}]+|(?:payload|args)(?:\.[^{}.]+)+")
FORMS = "{job}, {queue}, {label.NAME}, {payload.NAME} and {args.NAME}"


class Source:
    """All that a key may be made of. `payload`: the value that the run carries, read when it is asked for."""

    def __init__(self, job: str | None, queue: str, labels: Mapping[str, str], target: Target, carried: bytes | None):
        self._plain = {
            "job": job,
            "queue": queue.partition("/")[2] or queue,
            **{f"label.{name}": text for name, text in labels.items()},
        }
        self._target, self._carried = target, carried

    def value(self, part: str) -> Any:
        """The value of a part in braces; None: there is none."""
        if not part.startswith(("payload.", "args.")):
            return self._plain.get(part)
        value = _payload_of(self._target) if self._carried is None else msgspec.json.decode(self._carried)
        for name in part.split(".")[1:]:
            if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                value = value.get(name) if isinstance(value, dict) else None
        return value


def _payload_of(target: Target) -> Any:
    match target:
        case HandlerTarget(args=value) | QueueTarget(payload=value) | BusTarget(payload=value) | HttpTarget(body=value):
            return value
        case _:
            return None


def check_template(template: str, field: str) -> None:
    """Raise InvalidJob, unless every part in braces is one that can be resolved."""
    for part in _PART.findall(template):
        if not _KNOWN.fullmatch(part):
            raise InvalidJob(f"{field}: {{{part}}} is unknown in a key; known are {FORMS}", field=field)
    if set(_PART.sub("", template)) & set("{}"):
        raise InvalidJob(f"{field}: {template!r} has a brace without its other one", field=field)


def resolve(template: str, source: Source, field: str) -> str:
    """The key. Raises InvalidRequest that names what is missing."""
    if "{" not in template:
        return template

    def said(match: re.Match[str]) -> str:
        part = match[1]
        if not _KNOWN.fullmatch(part):
            return match[0]  # a plain key of before templates
        value = source.value(part)
        if isinstance(value, bool):
            return "true" if value else "false"
        if value == "" or not isinstance(value, str | int | float):
            found = "is missing" if value is None else "is empty" if value == "" else "is no single value"
            raise InvalidRequest(f"{field}: {{{part}}} of the key {template!r} {found} in this run", field=field)
        return str(value)

    key = _PART.sub(said, template).encode("utf-8", "replace").decode()
    if len(key) > KEY_LENGTH_MAX:
        raise InvalidRequest(f"{field}: a key may have {KEY_LENGTH_MAX} characters, this has {len(key):,}", field=field)
    return key


def with_keys(
    run: Run, source: Source, rates: tuple[Rate, ...], concurrency: Concurrency | None, fair: str | None
) -> Run:
    """The run with these policies, their keys resolved. Raises InvalidRequest."""
    if rates:
        resolved = (
            replace(rate, key=resolve(rate.key, source, f"rate[{index}].key")) for index, rate in enumerate(rates)
        )
        run = replace(run, rates=tuple(resolved))
    if concurrency is not None:
        key = resolve(concurrency.key, source, "concurrency.key")
        run = replace(run, concurrency_key=key, concurrency_max=concurrency.max)
    if fair is not None:
        run = turn_later(replace(run, fair=resolve(fair, source, "fair")))
    return run


def keyed(run: Run, job: Job) -> Run:
    """A new run of a job, with the job's keys. Raises InvalidRequest."""
    if job.concurrency is None and not job.rate and job.fair is None:
        return run
    source = Source(job.name, job.queue, job.labels, job.target, run.payload)
    return with_keys(run, source, job.rate, job.concurrency, job.fair)


def check_keys(rates: tuple[Rate, ...], concurrency: Concurrency | None, fair: str | None) -> None:
    """Raise InvalidJob for a key that can never be resolved, and for two limits under one."""
    for index, rate in enumerate(rates):
        check_template(rate.key, f"rate[{index}].key")
    if len({rate.key for rate in rates}) < len(rates):
        raise InvalidJob("rate: two limits have the same key", field="rate")
    if concurrency is not None:
        check_template(concurrency.key, "concurrency.key")
    if fair is not None:
        check_template(fair, "fair")
