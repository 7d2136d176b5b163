"""Runs that wait for a person's decision (docs/approvals.md): how they wait, and what becomes of them.

Such a run is pending like any other, and due when the time for its decision is over: so it is not claimed, and holds
nothing, before that. Its history says that it was asked about, and what was decided; nothing else is stored of it but
the record that leads to it. A run that is claimed and still asked about has had its time (`expired`). The approval
says which work was approved: where the job does other work by then, the run is asked about again (`is_outdated`).
"""

from __future__ import annotations

from hashlib import sha256

import msgspec
from msgspec.structs import replace

from horarium.clock import Instant, to_micros, to_text
from horarium.model import Disposition, Event, EventKind, Job, Released, Run, State, due_then
from horarium.policies import DEFAULT_APPROVAL, Approval
from horarium.rules.compiled import retention_of_job
from horarium.rules.settling import noted, settle, terminate

DECIDED = frozenset({EventKind.DECIDED, EventKind.EXPIRED})
_OF_APPROVALS = DECIDED | {EventKind.ASKED}


def last_word(run: Run) -> Event | None:
    """The last line of its history about a decision."""
    return next((event for event in reversed(run.history) if event.kind in _OF_APPROVALS), None)


def is_waiting(run: Run) -> bool:
    """Whether the run waits for a decision, or has waited in vain."""
    last = last_word(run) if run.history else None
    return last is not None and last.kind is EventKind.ASKED and not run.finished


def approval_of(job: Job | None) -> Approval:
    """By which rules it is decided. Where a job asks no longer, its runs begin without one."""
    if job is None or job.approval is None:
        return replace(DEFAULT_APPROVAL, then="run")
    return job.approval


def asked(job: Job, run: Run) -> Run:
    """The new run of a job that asks for approval: due when the time for a decision is over, and begun not before. A
    limit for its start moves along."""
    approval = approval_of(job)
    due_at = run.due_at + to_micros(approval.within_seconds)
    then = "it runs" if approval.then == "run" else "it is skipped"
    text = f"it waits for a decision until {to_text(due_at)}; then {then}"
    event = Event(run.due_at, State.PENDING, text, EventKind.ASKED)
    return replace(due_then(run, due_at), history=(*run.history, event))


def approved(
    run: Run, job: Job, version: int, now: Instant, by: str, reason: str | None, asker: tuple[str, str] = ("", "")
) -> Run:
    """The run, due at its own time again, or now. Its token grows, so that of two decisions about a run that stays
    pending one is written. `version`: that of the job; `asker`: who asked for the run, if anybody did: subject and
    name."""
    asked = last_word(run)
    due_at = now if asked is None else max(now, asked.at)
    released = replace(due_then(run, due_at), token=run.token + 1)
    *before, word = noted(released, now, said(f"version {version} approved", by, reason), EventKind.DECIDED).history
    return replace(released, history=(*before, replace(word, detail=_approved_work(job, asker))))


def is_outdated(run: Run, job: Job) -> bool:
    """Whether the run is to do other work than a person approved."""
    last = last_word(run) if job.approval is not None and run.history else None
    if last is None or last.kind is not EventKind.DECIDED or last.detail is None or run.finished:
        return False
    return last.detail != _approved_work(job, asker_of(run))


def asked_again(run: Run, job: Job, now: Instant) -> Run:
    """A pending run that is outdated, as it waits for another decision."""
    told = noted(run, now, "the job's target was changed after this was approved")
    return asked(job, replace(told, due_at=max(now, run.due_at), token=run.token + 1))


def was_approved(run: Run) -> bool:
    """Whether it was approved once, and waits again perhaps."""
    return any(event.kind is EventKind.DECIDED for event in run.history)


def asker_of(run: Run) -> tuple[str, str]:
    """Who asked for a run that was approved: subject and name, empty where its rule did."""
    last = next((event.detail for event in reversed(run.history) if event.kind is EventKind.DECIDED), None)
    if last is None:
        return "", ""
    _, by, name = msgspec.json.decode(last, type=tuple[str, str, str])
    return by, name


def _approved_work(job: Job, asker: tuple[str, str]) -> str:
    digest = sha256(msgspec.json.encode(job.target, order="sorted")).hexdigest()[:16]
    return msgspec.json.encode([digest, *asker]).decode()


def rejected(run: Run, job: Job, now: Instant, by: str, reason: str | None) -> Run:
    """The run, which does not begin."""
    why = said("rejected", by, reason)
    return noted(_skipped(run, job, now, Disposition.REJECTED, why), now, why, EventKind.DECIDED)


def expired(run: Run, job: Job, now: Instant) -> Run:
    """The run, claimed or not, whose time for a decision is over: it does not begin, or is due now, as its job says."""
    approval = approval_of(job)
    waited = f"no decision until {to_text(run.due_at)}"
    if approval.then == "skip":
        ended = _skipped(run, job, now, Disposition.APPROVAL_EXPIRED, waited)
        return noted(ended, now, f"{waited}: it is skipped", EventKind.EXPIRED)
    if run.state is State.PENDING:
        return noted(replace(run, token=run.token + 1), now, f"{waited}: it runs", EventKind.EXPIRED)
    after = settle(run, job, Released(waited), now)
    return noted(after, now, f"{waited}: it runs", EventKind.EXPIRED) if after.state is State.PENDING else after


def _skipped(run: Run, job: Job, now: Instant, disposition: Disposition, why: str) -> Run:
    ended = terminate(run, retention_of_job(job), now, why)
    return replace(ended, state=State.SKIPPED, disposition=disposition, error=why)


def said(word: str, by: str, reason: str | None) -> str:
    """A decision in words."""
    return f"{word}{f' by {by}' if by else ''}{f', because: {reason}' if reason else ''}"
