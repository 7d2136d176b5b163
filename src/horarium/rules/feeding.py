"""A feed as iCalendar (RFC 5545): an event for each run, past or to come. Pure.

The identity of an event is the run's: that of a fire time to come is the one that its run will have, so a calendar
program shows one event that gets its outcome, and not two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from horarium.clock import SECOND, Instant, to_datetime
from horarium.model import Job, Run, State, run_id
from horarium.model.overrides import Override
from horarium.rules.holds import InForce, reason_of

LINE_OCTETS_MAX = 75
"""RFC 5545 section 3.1: longer lines are folded."""
TEXT_CHARS_MAX = 500
_WRITTEN = {
    **dict.fromkeys([*range(32), 127]),
    **dict.fromkeys(map(ord, "\n\x85\u2028\u2029"), "\\n"),
    **{ord(char): f"\\{char}" for char in "\\;,"},
}
"""What becomes of single characters of a text; None: it is left out."""
_STATUS = {State.CANCELLED: "CANCELLED", State.SKIPPED: "CANCELLED"}
_OUTCOMES = {State.COMPLETED: "", State.RUNNING: " (running)", State.CANCELLING: " (stopping)", State.PENDING: ""}


class Event(Struct, frozen=True):
    """One event. `seconds`: how long it took, as far as that is known."""

    uid: str
    at: Instant
    summary: str
    description: str = ""
    status: str = "CONFIRMED"
    seconds: int = 0
    changed_at: Instant | None = None


def event_ahead(job: Job, at: Instant, moved: Override | None, words: str, held: InForce | None = None) -> Event:
    """A run that lies ahead: at its fire time, or where that was moved to. `held`: the hold over it."""
    summary = job.title or job.name
    uid = _uid(run_id(job.id, at if moved is None else moved.fire_at))
    if held is None:
        return Event(uid, at, summary, words)
    return Event(uid, at, f"{summary} (held)", f"{words}\n{reason_of(held.hold)}", "TENTATIVE")


def event_of(job: Job, run: Run) -> Event:
    """A run: it lies where it began, or is due."""
    outcome = _OUTCOMES.get(run.state, f" ({run.state})")
    said = [f"Run {run.id}: {run.state}"]
    if run.error:
        said.append(run.error[:TEXT_CHARS_MAX])
    status, seconds = _STATUS.get(run.state, "CONFIRMED"), max(0, (run.took or 0) // SECOND)
    summary, at = f"{job.title or job.name}{outcome}", run.started_at or run.due_at
    return Event(_uid(run.id), at, summary, "\n".join(said), status, seconds, run.finished_at)


def _uid(identity: str) -> str:
    return f"{identity}@horarium"


def feed_text(name: str, events: Iterable[Event], now: Instant) -> bytes:
    lines = [
        "BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//Horarium//Horarium//EN", "CALSCALE:GREGORIAN", "METHOD:PUBLISH",
        f"NAME:{_text(name)}", f"X-WR-CALNAME:{_text(name)}", "REFRESH-INTERVAL;VALUE=DURATION:PT1H",
        "X-PUBLISHED-TTL:PT1H",
    ]  # fmt: skip
    for event in events:
        lines += _lines(event, now)
    lines.append("END:VCALENDAR")
    return b"".join(b"\r\n ".join(_folded(line)) + b"\r\n" for line in lines)


def _lines(event: Event, now: Instant) -> Iterator[str]:
    yield "BEGIN:VEVENT"
    yield f"UID:{event.uid}"
    yield f"DTSTAMP:{_instant(now if event.changed_at is None else event.changed_at)}"
    yield f"DTSTART:{_instant(event.at)}"
    if event.seconds:
        yield f"DURATION:PT{event.seconds}S"
    yield f"SUMMARY:{_text(event.summary)}"
    if event.description:
        yield f"DESCRIPTION:{_text(event.description)}"
    yield f"STATUS:{event.status}"
    yield "TRANSP:TRANSPARENT"
    yield "END:VEVENT"


def _instant(at: Instant) -> str:
    return f"{to_datetime(at):%Y%m%dT%H%M%SZ}"


def _text(value: str) -> str:
    """RFC 5545 section 3.3.11; other control characters are in no text. Line separators of Unicode alone are written
    as line ends: parsers may take them for that."""
    return value.translate(_WRITTEN)


def _folded(line: str) -> Iterator[bytes]:
    """Parts of at most 75 octets, the blank that begins each later one included; no character is divided."""
    whole = line.encode("utf-8", "replace")
    if len(whole) <= LINE_OCTETS_MAX:
        yield whole
        return
    part, size = bytearray(), LINE_OCTETS_MAX
    for char in line:
        octets = char.encode("utf-8", "replace")
        if len(part) + len(octets) > size:
            yield bytes(part)
            part, size = bytearray(), LINE_OCTETS_MAX - 1
        part += octets
    yield bytes(part)
