"""Holds: what one lies over, when it is in force, and what becomes of runs and fire times meanwhile.

A hold is in force in stretches, each from its first instant to the one at which it ends: one stretch, or one for each
fire time of its `repeat`. All here is pure: whether a run may begin follows from the holds, the run and the instant. A
run or a job that a hold keeps waiting is due again at the end of the stretch, or a day later, whichever is sooner: so
a node that did not hear of the end of a hold looks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import replace

from horarium.clock import DAY, INSTANT_MAX, Instant, to_micros, to_text
from horarium.model import DEFAULT_RUN_POLICY, EventKind, HttpTarget, Job, Run, State, due_then, own_labels
from horarium.model.holds import HeldMissed, Hold, HoldScope
from horarium.model.states import Cause, Disposition
from horarium.model.targets import FOLLOW_QUEUE, NOTIFY_QUEUE
from horarium.policies import Timeouts
from horarium.rules.compiled import trigger_for
from horarium.rules.fairness import CLAIMED_AHEAD, awaits_turn, turn_later
from horarium.rules.overridden import run_moved_to
from horarium.rules.rates import given_back
from horarium.rules.settling import cancel, clipped, noted, retention_of
from horarium.triggers import Trigger

FOREVER: Instant = INSTANT_MAX
LOOK_AGAIN = DAY
"""After this a run or a job that waits is looked at again, though its hold goes on."""
PROBES_AHEAD = 60
"""Runs kept back together are spread over this number of probes of a circuit breaker."""
STRETCHES_MAX = 1_000
"""Stretches of one hold that are looked at together."""
PULLED = "pull/"
OURS = frozenset({FOLLOW_QUEUE, NOTIFY_QUEUE})
"""Queues of the scheduler's own work: a hold on everything keeps no message from people."""
PLANNED_CAUSES = frozenset({Cause.SCHEDULE, Cause.CATCH_UP})


class Stretch(NamedTuple):
    """From its first instant to the one at which it is over."""

    begins_at: Instant
    ends_at: Instant


class InForce(NamedTuple):
    """A hold, and the stretch of it that is in force."""

    hold: Hold
    stretch: Stretch


class Skipped(NamedTuple):
    """A stretch whose fire times do not run, and why."""

    begins_at: Instant
    ends_at: Instant
    reason: str


class JobHold(NamedTuple):
    """What holds mean for the plan of one job. `until`: nothing is planned before this. `skipped`: by begin. `next_at`:
    when the next stretch begins. `over`: those that are over and skip nothing, of a job that has waited for them."""

    until: Instant | None = None
    skipped: tuple[Skipped, ...] = ()
    next_at: Instant | None = None
    over: tuple[Skipped, ...] = ()


NOT_HELD = JobHold()


# ---- when -------------------------------------------------------------------------------------------------------


def end_of(hold: Hold) -> Instant:
    """When it ends for good, as far as is known."""
    ends_at = FOREVER if hold.ends_at is None else hold.ends_at
    return ends_at if hold.lifted_at is None else min(ends_at, hold.lifted_at)


def stretch_at(hold: Hold, at: Instant) -> Stretch | None:
    """The stretch of the hold that is in force at this instant."""
    end = end_of(hold)
    if not hold.begins_at <= at < end:
        return None
    if hold.repeat is None:
        return Stretch(hold.begins_at, end)
    trigger, length = _repeats(hold)
    first = fire = trigger.next_fire(at - length)
    if first is None or first > at:
        return None
    until = first + length
    for _ in range(STRETCHES_MAX):
        fire = None if fire is None else trigger.next_fire(fire)
        if fire is None or fire > until:
            break
        until = fire + length
    return Stretch(max(first, hold.begins_at), min(until, end))


def next_begin(hold: Hold, after: Instant) -> Instant | None:
    """When its next stretch begins after this instant."""
    if hold.repeat is None:
        begins_at: Instant | None = hold.begins_at if hold.begins_at > after else None
    else:
        begins_at = _repeats(hold)[0].next_fire(max(after, hold.begins_at - 1))
    return begins_at if begins_at is not None and begins_at < end_of(hold) else None


def stretches(hold: Hold, after: Instant, until: Instant) -> list[Stretch]:
    """Its stretches that reach into (after, until], the first 1,000 at most."""
    end = end_of(hold)
    if hold.begins_at > until or end <= max(after + 1, hold.begins_at):  # one that was lifted before it began has none
        return []
    if hold.repeat is None:
        return [Stretch(hold.begins_at, end)]
    trigger, length = _repeats(hold)
    fires = trigger.list_fires(max(after, hold.begins_at) - length, min(until, end - 1), STRETCHES_MAX)
    return [Stretch(max(fire, hold.begins_at), min(fire + length, end)) for fire in fires]


def _repeats(hold: Hold) -> tuple[Trigger, int]:
    assert hold.repeat is not None, "asked of a hold that repeats"
    return trigger_for(hold.repeat.trigger, hold.begins_at, hold.id), to_micros(hold.repeat.seconds)


# ---- over what --------------------------------------------------------------------------------------------------


def covers_job(scope: HoldScope, job: Job) -> bool:
    """Whether it lies over the runs of this job."""
    return _covers(scope, job.queue, job.name, job)


def covers_run(scope: HoldScope, run: Run, job: Job | None) -> bool:
    """Whether it lies over this run, of this job if it has one."""
    return _covers(scope, run.queue, run.job, job, run)


def goes_on_in(scope: HoldScope, run: Run, job: Job | None) -> bool:
    """Whether this run, which is under way, is of what it lies over."""
    return covers_run(scope, run, job) or (scope.worker is not None and scope.worker == run.worker)


def _covers(scope: HoldScope, queue: str, name: str | None, job: Job | None, run: Run | None = None) -> bool:
    if queue in OURS or scope.worker is not None:
        return False
    if scope.host is not None:
        return is_at(scope.host, host_of(job, run))
    if scope.queue is not None:
        return queue in (scope.queue, PULLED + scope.queue)  # as it is listed, or as a worker calls it
    if scope.job is not None:
        return scope.job == name
    if scope.labels:
        labels = job.labels if job is not None else {} if run is None else own_labels(run)
        return scope.labels.items() <= labels.items()
    return scope.all


def is_held(scope: HoldScope, queue: str) -> bool:
    """Whether it lies over a whole queue."""
    return _is_whole(scope) and _covers(scope, queue, None, None)


def is_at(scope: str, host: str | None) -> bool:
    """Whether a host with its port is meant by a name, or by a name and a port."""
    return host is not None and scope in (host, host.rpartition(":")[0])


def host_of(job: Job | None, run: Run | None = None) -> str | None:
    """The host and port of the HTTP target, as `api.example.com:443`; None: it has none."""
    target = job.target if job is not None else (run.policy.target if run is not None and run.policy else None)
    if not isinstance(target, HttpTarget):
        return None
    return host_in(target.url)


def named_host(text: str) -> str | None:
    """The host that people name, with its port if they name one, as `host_in` has it; None: it is none."""
    found = host_in(f"http://{text}")
    name, _, port = (found or "").rpartition(":")
    written = f"[{name}]" if ":" in name else name
    if not name or " " in name or text.lower() not in (written, f"{written}:{port}"):
        return None
    return name if text.lower() == written else found


@lru_cache(maxsize=256)
def host_in(url: str) -> str | None:
    """The host and port of a URL."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    return None if parts.hostname is None else f"{parts.hostname.rstrip('.')}:{port}"


def held_queues(holds: Iterable[Hold], queues: Sequence[str], at: Instant) -> tuple[list[str], Instant | None]:
    """Those of these queues that no hold lies over as a whole, and when the first of the others is free again."""
    whole = [(hold.scope, found) for hold in holds if _is_whole(hold.scope) and (found := stretch_at(hold, at))]
    if not whole:
        return list(queues), None
    free, ends = [], []
    for queue in queues:
        over = [stretch.ends_at for scope, stretch in whole if is_held(scope, queue)]
        if over:
            ends.append(max(over))
        else:
            free.append(queue)
    return free, min(ends, default=None)


def drained_until(holds: Iterable[Hold], worker: str, at: Instant) -> Instant | None:
    """Until when a hold keeps this worker from taking runs; None: it takes them."""
    return _last_end((hold for hold in holds if hold.scope.worker == worker), at)


def _is_whole(scope: HoldScope) -> bool:
    return scope.all or scope.queue is not None


def everything_until(holds: Iterable[Hold], at: Instant) -> Instant | None:
    """Until when everything is held, or None."""
    return _last_end((hold for hold in holds if hold.scope.all), at)


def _last_end(holds: Iterable[Hold], at: Instant) -> Instant | None:
    """Until when any of these is in force."""
    return max((each.stretch.ends_at for each in _at(holds, at)), default=None)


def _at(holds: Iterable[Hold], at: Instant) -> list[InForce]:
    """Those of these that are in force at this instant."""
    return [InForce(hold, stretch) for hold in holds if (stretch := stretch_at(hold, at)) is not None]


# ---- runs -------------------------------------------------------------------------------------------------------


def hold_on(holds: Iterable[Hold], run: Run, job: Job | None, at: Instant) -> InForce | None:
    """The hold that keeps this run from its begin at this instant; of several, the one that ends last."""
    over = (hold for hold in holds if covers_run(hold.scope, run, job))
    found = [each for each in _at(over, at) if not _lets_through(each.hold, run)]
    return max(found, key=lambda each: each.stretch.ends_at, default=None)


def _lets_through(hold: Hold, run: Run) -> bool:
    """Whether this claim is the probe of a circuit breaker."""
    return hold.probing is not None and hold.probing.probe == claim_text(run)


def claim_text(run: Run) -> str:
    """The name of a claim, by which a probe is known."""
    return f"{run.id}/{run.token}"


def kept_back(run: Run, held: InForce, now: Instant, place: int = 0) -> Run:
    """The run, claimed or not, as it waits for the end of a hold: at no cost of an attempt. The limit for starting in
    time counts from there. `place`: which it is of those that this claim keeps back, from 0. Each waits for another
    probe of the circuit breaker: all would be claimed and put back again with each probe, and others wait meanwhile."""
    until = wakes_at(held, now)
    if held.hold.probing is not None:
        until += to_micros(held.hold.probing.seconds) * (place % PROBES_AHEAD)
    if run.history and run.history[-1].kind is EventKind.HELD and run.history[-1].state is State.PENDING:
        run = replace(run, history=run.history[:-1])
    return noted(turn_later(due_then(given_back(run), until)), now, words_of_hold(held), EventKind.HELD)


def skipped_at_claim(run: Run, job: Job | None, holds: Iterable[Hold], now: Instant) -> Run | None:
    """The claimed run ended, where it was planned ahead for an instant whose fire times a hold skips, and has not begun
    before. None: there is no such hold."""
    if run.cause not in PLANNED_CAUSES or run.attempt > 1 or job is None:
        return None
    for hold in holds:
        if hold.missed is HeldMissed.SKIP and covers_job(hold.scope, job):
            stretch = stretch_at(hold, owed_at(run))
            if stretch is not None:
                ended = cancel(given_back(run), retention_of(run, job), now, reason_of(hold))
                return replace(ended, disposition=Disposition.HELD)
    return None


def owed_at(run: Run) -> Instant:
    """The instant at which its fire time is owed: its own, or the one to which it was moved."""
    moved = run_moved_to(run)
    return run.fire_at if moved is None else moved


def in_time_again(run: Run, job: Job | None, holds: Iterable[Hold], now: Instant) -> Run | None:
    """The pending run that is over its limit for starting, where a hold kept it from that: it waits for the end of the
    hold, or has all of its limit from there on. None: no hold did."""
    holds = list(holds)
    held = hold_on(holds, run, job, now)
    if held is not None:
        return kept_back(run, held, now)
    limit = None if awaits_turn(run) else _timeouts_of(run, job).start_seconds
    if limit is None:
        return None
    since = now - to_micros(limit)
    ends = [each.ends_at for hold in holds if covers_run(hold.scope, run, job) for each in stretches(hold, since, now)]
    if not ends or max(ends) <= since:
        return None
    again = replace(run, start_by=max(ends) + to_micros(limit))
    return noted(again, now, "the hold is over: its limit for starting counts from then", EventKind.RELEASED)


def _timeouts_of(run: Run, job: Job | None) -> Timeouts:
    return job.timeouts if job is not None else (run.policy or DEFAULT_RUN_POLICY).timeouts


def brought_back(run: Run, now: Instant) -> Run | None:
    """The pending run that waits for a hold, due as before, with all of its limit for starting; None: it waits for
    none."""
    last = run.history[-1] if run.history else None
    if last is None or last.kind is not EventKind.HELD or run.state is not State.PENDING or run.due_at <= now:
        return None
    due_at = last.at if last.at <= now + CLAIMED_AHEAD else now
    begins_at = due_at if awaits_turn(run) else max(due_at, now)
    start_by = None if run.start_by is None else run.start_by + begins_at - run.due_at
    return noted(replace(run, due_at=due_at, start_by=start_by), now, "the hold was lifted", EventKind.RELEASED)


def wakes_at(held: InForce, now: Instant) -> Instant:
    """When what waits for it is looked at again."""
    probing = held.hold.probing
    if probing is None:
        return min(held.stretch.ends_at, now + LOOK_AGAIN)
    soon = now + to_micros(probing.seconds)
    return min(probing.next_at, soon) if probing.next_at > now else soon


def words_of_hold(held: InForce) -> str:
    """Why something waits, and until when."""
    ends_at = held.stretch.ends_at
    until = "until it is lifted" if ends_at >= FOREVER else f"until {to_text(ends_at)}"
    return clipped(f"waits {until}: {reason_of(held.hold)}")


def scope_words(scope: HoldScope) -> str:
    """What a hold lies over, for people."""
    if scope.labels:
        return "jobs with " + ", ".join(f"{name}={value}" for name, value in sorted(scope.labels.items()))
    for kind, name in (("job", scope.job), ("queue", scope.queue), ("host", scope.host), ("worker", scope.worker)):
        if name is not None:
            return f"{kind} {name}"
    return "everything"


def in_force(holds: Iterable[Hold], now: Instant) -> list[InForce]:
    """Those that are, by id."""
    return sorted(_at(holds, now), key=lambda each: each.hold.id)


def end_words(stretch: Stretch) -> str:
    """Until when it lasts."""
    return "it is lifted" if stretch.ends_at >= FOREVER else to_text(stretch.ends_at)


def hold_at(holds: Iterable[Hold], job: Job, at: Instant) -> InForce | None:
    """The hold that lies over this fire time of the job; one that skips it, if there is one."""
    found = _at((hold for hold in holds if covers_job(hold.scope, job)), at)
    return min(found, key=lambda each: each.hold.missed is not HeldMissed.SKIP, default=None)


def reason_of(hold: Hold) -> str:
    """The reason in words, for rows and pages."""
    return f"held by {hold.id}: {hold.reason}"


# ---- jobs -------------------------------------------------------------------------------------------------------


def job_hold(holds: Sequence[Hold], job: Job, now: Instant) -> JobHold:
    """What these holds mean for a plan of this job."""
    over = [hold for hold in holds if covers_job(hold.scope, job)] if holds else None
    if not over:
        return NOT_HELD
    plain = [hold for hold in over if hold.probing is None]
    until = max((wakes_at(each, now) for each in _at(plain, now)), default=None)
    begins = [begin for hold in over if (begin := next_begin(hold, now)) is not None]
    skipped, waited = (_stretches_of(plain, missed, job, now) for missed in (HeldMissed.SKIP, HeldMissed.CATCH_UP))
    return JobHold(until, skipped, min(begins, default=None), waited)


def _stretches_of(holds: Iterable[Hold], missed: HeldMissed, job: Job, now: Instant) -> tuple[Skipped, ...]:
    found = (hold for hold in holds if hold.missed is missed)
    return tuple(
        sorted(Skipped(*each, reason_of(hold)) for hold in found for each in stretches(hold, job.planned_until, now))
    )


def let_go(run: Run, over: Sequence[Skipped], now: Instant) -> Run:
    """The new run, which says so where a hold lay over its fire time."""
    for begins_at, ends_at, reason in over:
        if begins_at <= owed_at(run) < ends_at and run.state is State.PENDING:
            run = noted(run, begins_at, f"waited for the end of a hold: {reason}", EventKind.HELD)
            return noted(run, now, "the hold is over", EventKind.RELEASED)
    return run
