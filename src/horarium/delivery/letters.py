"""The text of a message: for people a subject and some lines, for programs JSON."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from horarium.clock import SECOND, Instant, to_text
from horarium.delivery.message import JSON_TYPE, Request, user_agent
from horarium.delivery.signing import sign
from horarium.delivery.template import Values, placeholders, render, render_text
from horarium.errors import InvalidRequest
from horarium.model.channels import TEMPLATE_CHARS_MAX, Letter

SUBJECT_CHARS_MAX = 150
TYPE = "horarium.notification"
OF_EVENT = (
    "event", "job", "run_id", "fire_at", "at", "message", "count", "attempt", "worker", "seconds", "exit_code",
    "output", "url",
)  # fmt: skip
PLACES = ("channel", "subject", "text", *OF_EVENT)
"""Placeholders of templates. Those of an event are of the first one; `text` tells all."""
_KNOWN = placeholders(PLACES)
_ANY = re.compile(r"\{\{ {0,9}[A-Za-z][^{}\"\\]{0,99}\}\}")


def subject_of(letter: Letter) -> str:
    """The message in one line."""
    first, more = letter.events[0].message, len(letter.events) - 1
    line = " ".join(first.split())
    if len(line) > SUBJECT_CHARS_MAX:
        line = line[: SUBJECT_CHARS_MAX - 4] + " ..."
    return f"{line} (and {more} more)" if more else line


def check_template(template: Any) -> None:
    """Raises InvalidRequest for one that is too long, or with words between braces that are no known name."""
    text = msgspec.json.encode(template).decode()
    if len(text) > TEMPLATE_CHARS_MAX:
        raise InvalidRequest(f"template: {TEMPLATE_CHARS_MAX:,} characters at most", field="template")
    unknown = sorted(found for found in _ANY.findall(text) if not _KNOWN.fullmatch(found))
    if unknown:
        if unknown[0][2:-2].strip() in PLACES:
            reason = f"{unknown[0]} has too many spaces: one on each side at most"
        else:
            reason = f"there is no {unknown[0]}; known: {', '.join(PLACES)}"
        raise InvalidRequest(f"template: {reason}", field="template")


def _values_of(letter: Letter) -> Values:
    first = letter.events[0]
    facts = {name: getattr(first, name) for name in OF_EVENT}
    values = {name: "" if value is None or value is UNSET else str(value) for name, value in facts.items()}
    return {**values, "channel": letter.channel, "subject": subject_of(letter), "text": text_of(letter)}


def text_of(letter: Letter, template: str | None = None) -> str:
    """The message for people, by a template where there is one."""
    if template is not None:
        return render_text(template, _values_of(letter), _KNOWN)
    lines = []
    for told in letter.events:
        lines.append(f"{told.message}")
        facts = {"event": told.event, "job": told.job, "run": told.run_id, "fire time": told.fire_at, "at": told.at}
        lines += [f"    {name}: {value}" for name, value in facts.items() if value is not None]
        more = {"attempt": told.attempt, "worker": told.worker, "exit code": told.exit_code, "see": told.url}
        lines += [f"    {name}: {value}" for name, value in more.items() if value is not UNSET]
        if told.seconds is not UNSET:
            lines.append(f"    after: {told.seconds:g} s")
        if told.count > 1:
            lines.append(f"    count: {told.count}")
        if told.output is not UNSET:
            lines += ["    output:", *(f"        {line}" for line in told.output.splitlines())]
    return "\n".join(lines) + "\n"


def linked(letter: Letter, public_url: str | None) -> Letter:
    """The letter, its events with the address of their run in the dashboard."""
    if public_url is None:
        return letter
    begin = f"{public_url.rstrip('/')}/runs/"
    events = (each if each.run_id is None else replace(each, url=begin + each.run_id) for each in letter.events)
    return replace(letter, events=tuple(events))


def request_of(letter: Letter, path: str, now: Instant, secret: str | None, template: Any = None) -> Request:
    """The message as Standard Webhooks asks for it: signed where there is a secret, its id the letter's at each try.
    `template`: its body is this."""
    if template is None:
        data = {"channel": letter.channel, "events": letter.events}
        body = msgspec.json.encode({"type": TYPE, "timestamp": to_text(letter.at), "data": data})
    else:
        body = msgspec.json.encode(render(template, _values_of(letter), known=_KNOWN))
    timestamp = now // SECOND
    headers = {
        "Content-Type": JSON_TYPE,
        "User-Agent": user_agent(),
        "Accept-Encoding": "identity",
        "webhook-id": letter.id,
        "webhook-timestamp": str(timestamp),
    }
    if secret:
        headers["webhook-signature"] = sign(secret, letter.id, timestamp, body)
    return Request("POST", path, headers, body)
