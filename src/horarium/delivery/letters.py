"""The text of a message: for people a subject and some lines, for programs JSON."""

from __future__ import annotations

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from horarium.clock import SECOND, Instant, to_text
from horarium.delivery.message import JSON_TYPE, Request, user_agent
from horarium.delivery.signing import sign
from horarium.model.channels import Letter

SUBJECT_CHARS_MAX = 150
TYPE = "horarium.notification"


def subject_of(letter: Letter) -> str:
    """The message in one line."""
    first, more = letter.events[0].message, len(letter.events) - 1
    line = " ".join(first.split())
    if len(line) > SUBJECT_CHARS_MAX:
        line = line[: SUBJECT_CHARS_MAX - 4] + " ..."
    return f"{line} (and {more} more)" if more else line


def text_of(letter: Letter) -> str:
    """The message for people."""
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


def request_of(letter: Letter, path: str, now: Instant, secret: str | None) -> Request:
    """The message as Standard Webhooks asks for it: signed where there is a secret, its id the letter's at each try."""
    data = {"channel": letter.channel, "events": letter.events}
    body = msgspec.json.encode({"type": TYPE, "timestamp": to_text(letter.at), "data": data})
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
