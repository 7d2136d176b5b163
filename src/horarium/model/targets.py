"""What a run is delivered to, and the queue in which it waits for that."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct

from horarium.model.limits import (
    ARGUMENT_CHARS_MAX,
    ARGUMENTS_MAX,
    NAME_LENGTH_MAX,
    PATH_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    URL_CHARS_MAX,
)
from horarium.model.secrets import MaybeSecret, SecretRef

QUEUE_CHARS_MAX = 220
"""A kind, a slash and a name."""


def named_queue(given: str) -> str | None:
    """The queue that is meant: a plain name is a worker's; None: no queue has this name."""
    if not 0 < len(given) <= QUEUE_CHARS_MAX:
        return None
    return given if "/" in given or given == "http" else f"pull/{given}"


_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:@-]*(?!\n)$")
Name = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX, pattern=_NAME.pattern)]
StatusCode = Annotated[int, Meta(ge=100, le=599)]


def is_name(given: object) -> bool:
    """Whether a job, or a handler, can have this name."""
    return isinstance(given, str) and len(given) <= NAME_LENGTH_MAX and _NAME.search(given) is not None


class Completion(StrEnum):
    """When an HTTP run is done: with its response, or when the endpoint calls back."""

    RESPONSE = "response"
    CALLBACK = "callback"


class HttpTarget(Struct, frozen=True, tag="http", tag_field="type", omit_defaults=True, forbid_unknown_fields=True):
    """An HTTP request. `expected_status` holds codes; empty means any 2xx. `signing_secret` is write-only. `params` are
    added to the URL as parameters."""

    url: Annotated[str, Meta(min_length=1, max_length=URL_CHARS_MAX)]
    method: Annotated[str, Meta(pattern=r"^[A-Z]{1,16}(?!\n)$")] = "POST"
    headers: dict[str, MaybeSecret] = {}
    body: Any = None
    timeout_seconds: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    expected_status: tuple[StatusCode, ...] = ()
    signing_secret: MaybeSecret | None = None
    completion: Completion = Completion.RESPONSE
    cancel_url: str | None = None
    params: Annotated[dict[str, MaybeSecret], Meta(max_length=100)] = {}


class HandlerTarget(
    Struct, frozen=True, tag="handler", tag_field="type", omit_defaults=True, forbid_unknown_fields=True
):
    """A registered Python function, called with `args`."""

    name: Name
    args: dict[str, Any] = {}


class QueueTarget(Struct, frozen=True, tag="queue", tag_field="type", omit_defaults=True, forbid_unknown_fields=True):
    """A named queue from which workers pull."""

    queue: Name
    payload: Any = None


ExitCodes = Annotated[tuple[Annotated[int, Meta(ge=0, le=255)], ...], Meta(max_length=256)]
NO_NUL = r"^[^\x00]*$"
Argument = Annotated[str, Meta(max_length=ARGUMENT_CHARS_MAX, pattern=NO_NUL)]
VariableName = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX, pattern=r"^[^=\x00]+$")]
NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit codes of shells for a program that can't be run, and for one that is not there: another attempt can't help."""


class CommandTarget(
    Struct, frozen=True, tag="command", tag_field="type", omit_defaults=True, forbid_unknown_fields=True
):
    """A program with its arguments, which a worker of the queue starts, without a shell. A run's payload reaches it
    as standard input (in place of `stdin`) and as HORARIUM_PAYLOAD. `env` is added to the worker's
    environment. `user`: whom the program runs as. `success_codes`: exit codes that mean done; `discard_codes`: failed,
    and another attempt can't help; any other: failed, and tried again as the job's policy says. `timeout_seconds`: when
    it is ended, and failed."""

    command: Annotated[tuple[Argument, ...], Meta(min_length=1, max_length=ARGUMENTS_MAX)]
    queue: Name = "shell"
    env: Annotated[dict[VariableName, Argument | SecretRef], Meta(max_length=ARGUMENTS_MAX)] = {}
    cwd: Annotated[str, Meta(max_length=PATH_CHARS_MAX, pattern=r"^/[^\x00]*$")] | None = None
    user: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[^:\x00-\x20]+(?!\n)$")] | None = None
    stdin: Annotated[str, Meta(max_length=PAYLOAD_BYTES_MAX, pattern=NO_NUL)] | None = None
    timeout_seconds: Annotated[float, Meta(gt=0)] | None = None
    success_codes: ExitCodes = (0,)
    discard_codes: ExitCodes = (NOT_EXECUTABLE, NOT_FOUND)

    def __post_init__(self) -> None:
        if not self.command[0]:
            raise ValueError("the program is missing: command[0] is empty")


class BusTarget(Struct, frozen=True, tag="bus", tag_field="type", omit_defaults=True, forbid_unknown_fields=True):
    """A message bus, by the name under which it is configured."""

    bus: Name = "default"
    payload: Any = None


class ExternalTarget(
    Struct, frozen=True, tag="external", tag_field="type", omit_defaults=True, forbid_unknown_fields=True
):
    """Work that is done elsewhere, and reports by pings."""


Target = HttpTarget | HandlerTarget | QueueTarget | CommandTarget | BusTarget | ExternalTarget
HTTP = "http"
EXTERNAL = "external"
"""The queue of work done elsewhere; nothing is claimed from it."""
NOTIFY_QUEUE = "notify"
"""Notifications."""
FOLLOW_QUEUE = "follow"
"""Jobs that are to be triggered by the end of a run of another."""
PLAIN_QUEUES = frozenset({HTTP, EXTERNAL, NOTIFY_QUEUE, FOLLOW_QUEUE})
"""The queues whose names are one word: those that workers do not choose."""


def queue_of(target: Target) -> str:
    """The queue in which runs for this target wait: `http`, `handler/NAME`, `pull/NAME`, `bus/NAME` or
    `external`."""
    if isinstance(target, HttpTarget):  # a match takes half as long again, and each run that is planned asks
        return HTTP
    if isinstance(target, HandlerTarget):
        return f"handler/{target.name}"
    if isinstance(target, BusTarget):
        return f"bus/{target.bus}"
    return EXTERNAL if isinstance(target, ExternalTarget) else f"pull/{target.queue}"
