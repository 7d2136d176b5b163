"""The circuit breaker: a host to which enough requests failed in a row is not asked for a while.

Each node counts its own streak of failures of a host, and shares it; a success of any node ends all streaks. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import HOUR, Instant, to_micros
from horarium.model import Failed, HttpTarget, Job, Outcome, Run, Succeeded
from horarium.model.holds import Hold, HoldScope, Probing
from horarium.rules.holds import claim_text
from horarium.triggers.words import counted

PREFIX = "breaker-"
"""How the ids of holds of the breaker begin; the host follows."""
FORGOTTEN = HOUR
"""A streak that grew no more for this long counts no more: its node may be gone."""
ANSWERED_SECONDS = 5.0
"""How much longer than its own limit a probe may take until it is answered for."""


class Streak(Struct, frozen=True):
    """What one node knows of a host: failures in a row, the first and the last of them, and its last success."""

    failures: int = 0
    since: Instant = 0
    at: Instant = 0
    succeeded_at: Instant = 0


def answers(outcome: Outcome | None) -> bool | None:
    """Whether a host answered, by the outcome of a request; None: that says nothing of it. No connection, no answer in
    time and a status from 500 on are failures of the host, other refusals are not."""
    if outcome is None or isinstance(outcome, Succeeded):
        return True
    if not isinstance(outcome, Failed):
        return None
    if outcome.result is None:
        return False if outcome.retryable else None
    status = msgspec.json.decode(outcome.result).get("status")
    return not (isinstance(status, int) and status >= 500)


def after(streak: Streak, answered: bool, now: Instant) -> Streak:
    """The streak after one more request."""
    if answered:
        return Streak(0, 0, now, now)
    return replace(streak, failures=streak.failures + 1, since=streak.since if streak.failures else now, at=now)


def going_on(streak: Streak, others: Iterable[Streak]) -> Streak:
    """The streak, from its last failure on where another node has had a success in the middle of it."""
    succeeded_at = max((other.succeeded_at for other in others), default=0)
    return replace(streak, failures=1, since=streak.at) if streak.since <= succeeded_at < streak.at else streak


def failures_in_a_row(streaks: Iterable[Streak], now: Instant) -> int:
    """Over all nodes, since the last success of any."""
    known = [streak for streak in streaks if now - streak.at < FORGOTTEN]
    succeeded_at = max((streak.succeeded_at for streak in known), default=0)
    return sum(streak.failures for streak in known if streak.since > succeeded_at)


def opened(host: str, failures: int, why: str, seconds: float, now: Instant) -> Hold:
    """The hold on a host that does not answer."""
    return Hold(
        id=PREFIX + host,
        scope=HoldScope(host=host),
        begins_at=now,
        reason=f"{counted(failures, 'request')} to {host} failed in a row: {why}"[:500],
        created_at=now,
        probing=Probing(now + to_micros(seconds), seconds),
    )


def probed(hold: Hold, run: Run, job: Job | None, now: Instant) -> Hold | None:
    """The hold of the breaker that lets this claimed run through as its probe; None: it is not the time for one. The
    next is let through when this one must have ended, at the earliest."""
    probing = hold.probing
    if probing is None or probing.next_at > now:
        return None
    target = job.target if job is not None else (run.policy.target if run.policy is not None else None)
    longest = target.timeout_seconds + ANSWERED_SECONDS if isinstance(target, HttpTarget) else 0.0
    next_at = now + to_micros(max(probing.seconds, longest))
    return replace(hold, probing=replace(probing, next_at=next_at, probe=claim_text(run)))


def probe_failed(hold: Hold, failed: Container[str], now: Instant) -> Hold | None:
    """The open hold after the requests of these claims failed: if its probe is one of them, the next may come sooner.
    None: it is none of them, and perhaps is still to be asked, or that is so already."""
    probing = hold.probing
    if probing is None or probing.probe not in failed or probing.next_at <= now + to_micros(probing.seconds):
        return None
    return replace(hold, probing=replace(probing, next_at=now + to_micros(probing.seconds)))
