"""Rate limits: which claimed attempts may begin, and when the others have their turn.

The generic cell rate algorithm (ITU-T I.371, annex A) on the steady scale, which all nodes share: of a key only its
theoretical arrival time is kept, and each attempt moves it on by one interval. With an interval of
`(per_seconds + slack) / (max - burst + 1)` and a tolerance of `burst - 1` intervals, no half-open window of
`per_seconds` holds more than `max` attempts that begin within `slack` of the instant for which they were let in.

Who has to wait gets a place in the line of the key, and is due at it, so that it stays outside of what claims walk
over. A place is an estimate: what counts is the arrival time at the begin, so a lost place costs only the place. Lines
are kept by rank: runs of a higher priority go before, and so do those that had a place before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import INSTANT_MAX, INSTANT_MIN, SECOND, Instant, to_micros, to_text
from horarium.model import CLAIMED, Event, EventKind, Run, State, due_then
from horarium.policies import Limit
from horarium.rules.fairness import CLAIMED_AHEAD, turn_later

SLACK_PART = 120
"""Which part of its window an attempt may take to begin once it was let in."""
SLACK_MIN = SECOND // 20
SLACK_MAX = SECOND
"""So that nothing which was let in begins later than this once its key is shut."""
IDLE = 600 * SECOND
"""How long a key is remembered after it last held anything back."""

_IN_LINE = frozenset({EventKind.LIMITED, EventKind.THROTTLED})


class Override(Limit, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A limit in place of what runs say, `until` (wall time) or for good."""

    until: Instant | None = None


class Bucket(Struct, frozen=True, omit_defaults=True):
    """The state of a key, on the steady scale. `arrival_at`: the theoretical arrival time of the next attempt. `line`:
    the same for each rank, with all that wait at it or before. `limit`: what a run said last; `applied`: the limit by
    which these instants were made."""

    arrival_at: Instant = 0
    line: dict[int, Instant] = {}
    shut_until: Instant = 0
    limit: Limit | None = None
    applied: Limit | None = None
    override: Override | None = None


class Admitted(Struct, frozen=True):
    """`turns`: when each run may begin that is let in (steady). `waiting`: those that have to wait, as they are to be.
    `buckets`: what has changed."""

    turns: dict[str, tuple[Instant, Instant]]
    waiting: list[Run]
    buckets: dict[str, Bucket]


class Pace(Struct, frozen=True):
    """A limit in microseconds."""

    interval: int
    tolerance: int
    slack: int


def pace_of(limit: Limit) -> Pace:
    """How a limit is kept."""
    window = to_micros(limit.per_seconds)
    burst = limit.burst or max(1, limit.max // 10)
    slack = min(max(window // SLACK_PART, SLACK_MIN), SLACK_MAX)
    interval = ceil((window + slack) / (limit.max - burst + 1))
    return Pace(interval, (burst - 1) * interval, slack)


def in_force(bucket: Bucket, limit: Limit, now: Instant) -> Limit:
    """The limit that holds: an override, or what the run says."""
    override = bucket.override
    if override is None or (override.until is not None and override.until <= now):
        return limit
    return _bare(override)


def _bare(override: Override) -> Limit:
    return Limit(override.max, override.per_seconds, override.burst)


def waits_for(run: Run) -> str | None:
    """The key for which the run waits in line, if it does."""
    event = _place(run)
    if run.state is not State.PENDING or event is None:
        return None
    return event.detail or (run.rates[0].key if run.rates else None)


def _place(run: Run) -> Event | None:
    """What gave the run a place since its last attempt began. A claim that was given back took nothing from it."""
    for event in reversed(run.history):
        if event.kind in _IN_LINE:
            return event
        if event.kind is not EventKind.RELEASED and (event.kind is not None or event.state is not State.RUNNING):
            return None
    return None


# ---- at a claim --------------------------------------------------------------------------------------------------


def admit(buckets: Mapping[str, Bucket], runs: Iterable[Run], now: Instant, steady: Instant) -> Admitted:
    """Let claimed runs begin as far as their keys allow, in this order, and give the others their place in line."""
    known = dict(buckets)
    admitted = Admitted({}, [], {})
    for run in runs:
        ahead = run.due_at - now
        due = steady + (ahead if 0 < ahead <= CLAIMED_AHEAD else 0)  # further ahead: claimed by a wrong clock
        paces = _paces(known, run, now, steady)
        in_line = _place(run) is not None
        rank = _rank(run, in_line)
        if all(_opens_at(known[key], pace, None if in_line else rank) <= due for key, pace in paces):
            admitted.turns[run.id] = _take(known, paces, due)
        else:
            admitted.waiting.append(_queue(known, paces, run, rank, due, now, steady))
    admitted.buckets.update(_changed(buckets, known, steady))
    return admitted


def line_up(buckets: Mapping[str, Bucket], runs: Sequence[Run], now: Instant, steady: Instant) -> Admitted:
    """Give new runs that are due their place in line, where there is one: if all of them could begin at once, nothing
    changes."""
    known = dict(buckets)
    placed: list[Run] = []
    for run in runs:
        due = steady + max(0, run.due_at - now)
        paces = _paces(known, run, now, steady)
        placed.append(_queue(known, paces, run, _rank(run, False), due, now, steady))
    if all(run.due_at <= now for run in placed):
        return Admitted({}, [], {})
    return Admitted({}, placed, _changed(buckets, known, steady))


def _rank(run: Run, in_line: bool) -> int:
    return 2 * run.priority + in_line


def _opens_at(bucket: Bucket, pace: Pace, rank: int | None) -> Instant:
    """When the next attempt may begin; with a rank, behind all that wait at it or before."""
    return max(bucket.shut_until, _arrival_at(bucket, rank) - pace.tolerance)


def _arrival_at(bucket: Bucket, rank: int | None) -> Instant:
    ahead = [] if rank is None else [at for other, at in bucket.line.items() if other >= rank]
    return max([bucket.arrival_at, *ahead])


def _take(known: dict[str, Bucket], paces: Iterable[tuple[str, Pace]], due: Instant) -> tuple[Instant, Instant]:
    """Take a place of each key: when the attempt may begin, within one slack around the instant of that place, most of
    it after. The instant may lie a little before the claim, so that one which comes late does not slow the key down."""
    first, last = INSTANT_MIN, INSTANT_MAX
    for key, pace in paces:
        bucket = known[key]
        let_in = max(_opens_at(bucket, pace, None), due - pace.slack // 4)
        known[key] = replace(bucket, arrival_at=max(bucket.arrival_at, let_in) + pace.interval)
        early = pace.slack // 8
        first, last = max(first, let_in - early), min(last, let_in - early + pace.slack)
    return first, last


def _queue(
    known: dict[str, Bucket],
    paces: Sequence[tuple[str, Pace]],
    run: Run,
    rank: int,
    due: Instant,
    now: Instant,
    steady: Instant,
) -> Run:
    """The run, due at its place in line."""
    opens = [_opens_at(known[key], pace, rank) for key, pace in paces]
    place = max(due, *opens)
    for key, pace in paces:
        bucket = known[key]
        behind = max(_arrival_at(bucket, rank), place) + pace.interval
        known[key] = replace(bucket, line={**bucket.line, rank: behind})
    shutting = paces[opens.index(max(opens))][0]
    return waiting(run, shutting, max(now + place - steady, run.due_at), now)


def waiting(run: Run, key: str, until: Instant, now: Instant) -> Run:
    """The run as it waits for its key: it costs no attempt, and its limit for starting counts from then."""
    wait = max(0, until - run.due_at)
    history = run.history[:-1] if run.history and run.history[-1].kind is EventKind.LIMITED else run.history
    said = f"waits for the rate limit {key!r} until {to_text(until)}"
    put_off = replace(
        given_back(run),
        due_at=until,
        start_by=None if run.start_by is None else run.start_by + wait,
        history=(*history, Event(now, State.PENDING, said, EventKind.LIMITED, key)),
    )
    return turn_later(put_off)


def given_back(run: Run) -> Run:
    """The run as it was before this claim, which leaves no trace."""
    return replace(
        run,
        state=State.PENDING,
        attempt=run.attempt - (run.state in CLAIMED),
        worker=None,
        lease_expires_at=None,
        deadline=None,
        started_at=None,
    )


def _paces(known: dict[str, Bucket], run: Run, now: Instant, steady: Instant) -> list[tuple[str, Pace]]:
    """How the keys of the run are kept; their states are made to fit."""
    paces = []
    for rate in run.rates:
        limit = Limit(rate.max, rate.per_seconds, rate.burst)
        known[rate.key] = applying(replace(known[rate.key], limit=limit), in_force(known[rate.key], limit, now), steady)
        paces.append((rate.key, pace_of(known[rate.key].applied or limit)))
    return paces


def applying(bucket: Bucket, limit: Limit, steady: Instant) -> Bucket:
    """The state under this limit: attempts that were taken under another one count as many under this."""
    if bucket.applied == limit:
        return bucket
    if bucket.applied is None:
        return replace(bucket, applied=limit)
    before, after = pace_of(bucket.applied).interval, pace_of(limit).interval

    def moved(at: Instant) -> Instant:
        return steady + ceil((at - steady) / before) * after if at > steady else at

    return replace(
        bucket,
        arrival_at=moved(bucket.arrival_at),
        line={rank: moved(at) for rank, at in bucket.line.items()},
        applied=limit,
    )


def _changed(before: Mapping[str, Bucket], after: Mapping[str, Bucket], steady: Instant) -> dict[str, Bucket]:
    changed = {key: bucket for key, bucket in after.items() if bucket != before[key]}
    return {
        key: replace(bucket, line={rank: at for rank, at in bucket.line.items() if at > max(steady, bucket.arrival_at)})
        for key, bucket in changed.items()
    }


# ---- the rest ----------------------------------------------------------------------------------------------------


def shut(bucket: Bucket, until: Instant) -> Bucket:
    """Nothing begins under this key before then."""
    return bucket if bucket.shut_until >= until else replace(bucket, shut_until=until)


def overridden(bucket: Bucket, override: Override | None, now: Instant, steady: Instant) -> Bucket:
    """The key with this limit. What was taken stays taken; who waits gets a new place."""
    bucket = replace(bucket, override=override, line={})
    limit = shown_limit(bucket, now)
    return bucket if limit is None else applying(bucket, limit, steady)


def shown_limit(bucket: Bucket, now: Instant) -> Limit | None:
    """The limit that holds for a key, as far as it is known."""
    said = bucket.limit or (None if bucket.override is None else _bare(bucket.override))
    return None if said is None else in_force(bucket, said, now)


def opens_at(bucket: Bucket, now: Instant, steady: Instant) -> Instant | None:
    """When a new run of priority 0 may begin; None: now."""
    limit = shown_limit(bucket, now)
    at = max(bucket.shut_until, 0 if limit is None else _opens_at(bucket, pace_of(limit), 0))
    return at if at > steady else None


def brought_forward(run: Run, now: Instant) -> Run:
    """The run that waits, due now, as it is before it gets another place."""
    return due_then(run, now)


def is_idle(bucket: Bucket, now: Instant, steady: Instant) -> bool:
    """Whether nothing is lost if the key is forgotten."""
    override = bucket.override
    held = max(bucket.arrival_at, bucket.shut_until, *bucket.line.values(), 0)
    return held + IDLE < steady and (override is None or (override.until is not None and override.until <= now))


def rates_of(runs: Iterable[Run]) -> list[str]:
    """The keys of these runs, each once."""
    return list(dict.fromkeys(rate.key for run in runs for rate in run.rates))
