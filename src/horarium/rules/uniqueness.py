"""Unique runs: how long one holds its key, and what a call with that key makes of a run that waits."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from horarium.clock import INSTANT_MAX, Instant, to_micros
from horarium.errors import InvalidRequest
from horarium.model import DEFAULT_RUN_POLICY, Event, Run, RunPolicy, State, callers_key, due_then
from horarium.policies import Debounce, OnConflict, Unique, Until


def rule_of(unique_key: str | None, unique: Unique | None, debounce: Debounce | None) -> Unique | Debounce | None:
    """The one rule that a caller gave; `unique_key` alone is none. Raises InvalidRequest for several, and for
    one that is at odds with itself."""
    if unique is None and debounce is None:
        return None
    named = {"unique_key": unique_key, "unique": unique, "debounce": debounce}
    given = [name for name, value in named.items() if value is not None]
    if len(given) > 1:
        raise InvalidRequest(f"{given[1]}: give one of {' and '.join(given)}", field=given[1])
    if unique is not None and unique.for_seconds is not None and unique.until is not Until.FORGOTTEN:
        raise InvalidRequest("unique.until: give for_seconds or until, not both", field="unique.until")
    if debounce is not None and (most := debounce.max_seconds) is not None and most < debounce.seconds:
        message = f"debounce.max_seconds: {most:g} is less than seconds, which is {debounce.seconds:g}"
        raise InvalidRequest(message, field="debounce.max_seconds")
    return unique or debounce


def stored_key(rule: Unique | Debounce) -> str:
    """The key as it is stored. Raises InvalidRequest."""
    return callers_key(rule.key, field_of(rule))


def field_of(rule: Unique | Debounce) -> str:
    """Where a caller writes the key."""
    return "debounce.key" if isinstance(rule, Debounce) else "unique.key"


def generation_key(key: str, generation: int) -> str:
    """The unique key of a run, of one as it is stored. A key that was given up goes on with the next generation, so
    that the run which had it keeps its own."""
    return f"{key} {generation}" if generation else key


def holds(run: Run, rule: Unique | Debounce, now: Instant) -> bool:
    """Whether the run still holds the key."""
    if isinstance(rule, Debounce):
        return _waits(run)
    if rule.for_seconds is not None:
        return now < run.created_at + to_micros(rule.for_seconds)
    match rule.until:
        case Until.BEGUN:
            return _waits(run)
        case Until.FINISHED:
            return not run.finished
        case Until.FORGOTTEN:
            return True


def asks_the_same(made: Run, wanted: Run) -> bool:
    """Whether two requests for a one-off run are alike, but for when it is due and whether it is in a batch."""
    return _asked(made) == _asked(wanted)


def same_payload(one: bytes | None, other: bytes | None) -> bool:
    """Whether two payloads say the same."""
    return _decoded(one) == _decoded(other)


def _asked(run: Run) -> tuple[object, ...]:
    policy, payload = replace(run.policy or DEFAULT_RUN_POLICY, batch=None), _decoded(run.payload)
    return run.queue, payload, policy, run.priority, run.rates, run.concurrency_key, run.concurrency_max, run.fair


def _decoded(payload: bytes | None) -> object:
    return None if payload is None else msgspec.json.decode(payload)


def debounced(run: Run, rule: Debounce, first_at: Instant, now: Instant) -> Run:
    """The run, due once no call came for a while, or at the latest so long after the first."""
    due_at = now + to_micros(rule.seconds)
    if rule.max_seconds is not None:
        due_at = min(due_at, first_at + to_micros(rule.max_seconds))
    return due_then(run, min(max(due_at, now), INSTANT_MAX))


def replacement(waiting: Run, wanted: Run, rule: Unique | Debounce, now: Instant) -> Run | None:
    """The waiting run with payload, due time and priority of the wanted one; None: it stays as it is."""
    keeps = isinstance(rule, Unique) and rule.on_conflict is OnConflict.KEEP
    if keeps or not _waits(waiting):
        return None
    if isinstance(rule, Debounce):
        wanted = debounced(wanted, rule, waiting.created_at, now)
    said = "debounced" if isinstance(rule, Debounce) else "replaced"
    changed = [event for event in waiting.history if event.message not in ("debounced", "replaced")]
    return replace(
        waiting,
        payload=wanted.payload,
        policy=_policy(waiting, wanted),
        due_at=wanted.due_at,
        start_by=wanted.start_by,
        priority=wanted.priority,
        history=(*changed, Event(now, State.PENDING, said)),
    )


def _policy(waiting: Run, wanted: Run) -> RunPolicy | None:
    """It stays in its batch."""
    if wanted.queue != waiting.queue or waiting.policy is None or waiting.policy.batch is None:
        return wanted.policy if wanted.queue == waiting.queue else waiting.policy
    return replace(wanted.policy or DEFAULT_RUN_POLICY, batch=waiting.policy.batch)


def _waits(run: Run) -> bool:
    return run.state is State.PENDING and run.attempt == 0
