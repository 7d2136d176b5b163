"""The scenes: what happens to a worker, and what docs/worker-protocol.md asks of it then.

A scene is a function of its stage and of the worker's process. It returns where all was right, and raises `Wrong` with
a sentence. Waits are bounds, not expectations: a worker on a slow machine is judged by what it did, not by how fast.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct

from horarium.clock import SECOND
from horarium.model import State
from horarium.testing.conformance.stage import (
    ANSWER_SECONDS,
    CUT_AFTER,
    LEASE_SECONDS,
    START_SECONDS,
    Seen,
    Spoiled,
    Stage,
    Wrong,
)
from horarium.testing.conformance.worker import WorkerProcess

RESULT = {
    "text": 'Grüße, 世界 \N{GRINNING FACE} "quoted"\n',
    "numbers": [0, -1, 2.5],
    "none": None,
    "deep": [{"a": [True]}],
}
PROGRESS = {"percent": 50, "note": "halfway"}
RETRY_AFTER = 600
STOPPING_SECONDS = 2.5
SIGNALLED_SECONDS = 3.0
"""So soon a worker on a busy machine has noticed that it is to end."""
CLAIMS_MAX = 8
"""Claims while the server answers 503 or has nothing due, within some seconds: a worker that waits sends fewer."""
AHEAD_SECONDS = 3600.0
NEVER_SECONDS = 60.0
"""Work that is ended by something else."""

Play = Callable[[Stage, WorkerProcess], Awaitable[None]]


class Scene(Struct, frozen=True):
    """`clock_ahead_seconds`: how far the server's clock is ahead of the worker's."""

    name: str
    play: Play
    clock_ahead_seconds: float = 0.0


async def complete(stage: Stage, worker: WorkerProcess) -> None:
    id = await stage.add(do="complete", result=RESULT)
    await stage.reported(id)
    run = await stage.run(id)
    if run.state != State.COMPLETED:
        raise Wrong(f"the payload asks for `complete`, and the run is {run.state}: {run.error}")
    result = None if run.result is None else msgspec.json.decode(run.result)
    if result != RESULT:
        raise Wrong(f"the result is {result!r}, not the payload's {RESULT!r}")
    idle = stage.now()
    await asyncio.sleep(1.5)
    if (count := stage.claims(idle, stage.now())) > CLAIMS_MAX:
        raise Wrong(f"{count} claims in 1.5 s while nothing was due: ask with `wait_seconds`, and the answer waits")
    _once(stage, id)


async def fail(stage: Stage, worker: WorkerProcess) -> None:
    error = "no such file: übergröße.csv"
    id = await stage.add(do="fail", error=error, retryable=False)
    await stage.reported(id)
    run = await stage.run(id)
    if run.state == State.PENDING:
        raise Wrong("the failure was reported as one to try again: `retryable` false of the payload was not sent")
    if run.state != State.FAILED:
        raise Wrong(f"the payload asks for `fail`, and the run is {run.state}")
    if run.error != error:
        raise Wrong(f"the error is {run.error!r}, not the payload's {error!r}")
    _once(stage, id)


async def retry_after(stage: Stage, worker: WorkerProcess) -> None:
    id = await stage.add(do="fail", error="busy", retry_after_seconds=RETRY_AFTER)
    before = stage.server_now()
    await stage.reported(id)
    run = await stage.run(id)
    if run.state != State.PENDING:
        raise Wrong(f"the attempt failed with `retry_after_seconds`, and the run is {run.state}, not pending")
    wait = (run.due_at - before) / SECOND
    if not RETRY_AFTER - 1 <= wait <= RETRY_AFTER + START_SECONDS + ANSWER_SECONDS:
        raise Wrong(f"the next attempt is due after {wait:.0f} s: `retry_after_seconds` {RETRY_AFTER} was not sent")


async def progress(stage: Stage, worker: WorkerProcess) -> None:
    id = await stage.add(do="complete", progress=PROGRESS, seconds=0.2)
    await stage.reported(id)
    told = [_field(beat, "progress") for beat in stage.beats(id)]
    if PROGRESS not in told:
        raise Wrong(f"no heartbeat had the payload's progress {PROGRESS!r}; {len(told)} came, with {told!r}")


async def late_heartbeat(stage: Stage, worker: WorkerProcess) -> None:
    id = await stage.add(do="complete", seconds=LEASE_SECONDS + 1.0)
    stage.spoil = lambda seen: Spoiled(503, "unavailable") if _first(stage.beats(id), seen) else None
    claimed = await stage.claimed(id)
    await stage.until(
        lambda: any(beat.status == 200 for beat in stage.beats(id)),
        ANSWER_SECONDS,
        "a heartbeat was answered 503, and none came after it: repeat it until the lease ends",
    )
    _in_time(stage, id, claimed)
    report = await stage.reported(id)
    if report.outcome != "completed":
        raise Wrong(f"a heartbeat was answered 503, the next one 200, and the run was reported as {report.outcome}")


async def lease_lost(stage: Stage, worker: WorkerProcess) -> None:
    id = await stage.add(do="complete", seconds=NEVER_SECONDS)

    def lost(seen: Seen) -> Spoiled | None:
        mine = seen.path.startswith(f"/runs/{id}/") or (seen.path == "/runs/settle" and id in str(seen.body))
        return Spoiled(409, "lease_lost") if mine else None

    stage.spoil = lost
    await stage.claimed(id)
    beat = await _first_beat(stage, id)
    after = await stage.add(do="complete")
    await stage.reported(after)
    await asyncio.sleep(LEASE_SECONDS / 2)
    if late := [report for report in stage.reports(id) if report.at > beat.at]:
        raise Wrong(
            f"the heartbeat was answered 409 `lease_lost`, and the run was reported as {late[0].outcome} after it: "
            "another worker has it; stop the work, and report nothing"
        )
    if len(stage.beats(id)) > 2:
        raise Wrong("heartbeats went on after one was answered 409 `lease_lost`: stop the work, and report nothing")


async def cancel(stage: Stage, worker: WorkerProcess) -> None:
    id = await stage.add(do="complete", seconds=NEVER_SECONDS)
    await stage.claimed(id)
    await stage.cancel(id)
    await _first_beat(stage, id)
    said = "a heartbeat was answered with `cancel_requested` true, and the work went on"
    await stage.until(lambda: stage.reports(id), ANSWER_SECONDS, f"{said}: stop it, and report `fail`")
    report = await stage.reported(id)
    run = await stage.run(id)
    if run.state != State.CANCELLED:
        raise Wrong(
            f"{said} until it was reported as {report.outcome}; the run is {run.state}: stop, and report `fail`"
        )


async def stopping(stage: Stage, worker: WorkerProcess) -> None:
    id = await stage.add(do="complete")
    begun: list[float] = []

    def stops(seen: Seen) -> Spoiled | None:
        if not seen.is_claim:
            return None
        begun.append(seen.at)
        return Spoiled(503, "stopping", 1) if seen.at < begun[0] + STOPPING_SECONDS else None

    stage.spoil = stops
    await stage.until(lambda: begun, START_SECONDS, f"no claim came within {START_SECONDS:g} s")
    await asyncio.sleep(STOPPING_SECONDS)
    if (count := stage.claims(begun[0], begun[0] + STOPPING_SECONDS)) > CLAIMS_MAX:
        raise Wrong(
            f"{count} claims in {STOPPING_SECONDS:g} s while each was answered 503 with Retry-After 1: wait so long"
        )
    await stage.claimed(id)
    await stage.reported(id)


async def repeated_report(stage: Stage, worker: WorkerProcess) -> None:
    id = await stage.add(do="complete", result=RESULT)
    stage.spoil = lambda seen: CUT_AFTER if _is_report(seen, id) and len(stage.reports(id)) == 1 else None
    await stage.claimed(id)
    await stage.until(
        lambda: len(stage.reports(id)) > 1,
        ANSWER_SECONDS,
        "the connection was cut after the report, and the report was not repeated: without an answer, send it again",
    )
    await stage.reported(id)
    first, again = stage.reports(id)[:2]
    if (first.outcome, first.token) != (again.outcome, again.token):
        raise Wrong(f"after the cut connection another report came: {again.outcome}, and not {first.outcome} again")
    if (run := await stage.run(id)).attempt != 1:
        raise Wrong(f"the run was performed {run.attempt} times")


async def too_many(stage: Stage, worker: WorkerProcess) -> None:
    id = await stage.add(do="complete")
    refused: dict[str, float] = {}

    def busy(seen: Seen) -> Spoiled | None:
        kind = "claim" if seen.is_claim else "report" if _is_report(seen, id) else ""
        if not kind or seen.at >= refused.setdefault(kind, seen.at) + 0.3:
            return None
        return Spoiled(429, "too_many_waiters", 2)

    stage.spoil = busy
    await stage.claimed(id)
    await stage.reported(id)
    for kind, at in refused.items():
        asked = [seen for seen in stage.seen if (seen.is_claim if kind == "claim" else _is_report(seen, id))]
        early = [seen for seen in asked if at + 0.3 <= seen.at < at + 1.8]
        if early:
            raise Wrong(
                f"a {kind} was answered 429 with Retry-After 2, and the next came after {early[0].at - at:.1f} s: "
                "wait so long"
            )


async def clock(stage: Stage, worker: WorkerProcess) -> None:
    id = await stage.add(do="complete", seconds=LEASE_SECONDS + 0.5)
    claimed = await stage.claimed(id)
    said = (
        "no heartbeat came within the lease while the server's clock is an hour ahead: a lease lasts from `started_at` "
        "to `expires_at`; never compare either with a clock of your own"
    )
    await stage.until(lambda: stage.beats(id) or stage.reports(id), ANSWER_SECONDS, said)
    if not stage.beats(id):
        raise Wrong(said)
    _in_time(stage, id, claimed)
    await stage.reported(id)


async def drain(stage: Stage, worker: WorkerProcess) -> None:
    id = await stage.add(do="complete", seconds=2 * SIGNALLED_SECONDS, result="done")
    await stage.claimed(id)
    await asyncio.sleep(0.3)
    worker.terminate()
    signalled = stage.now()
    await asyncio.sleep(SIGNALLED_SECONDS)
    later = await stage.add(do="complete", seconds=NEVER_SECONDS)
    status = await worker.ended(ANSWER_SECONDS)
    if status is None:
        raise Wrong(f"the worker had not ended {ANSWER_SECONDS:g} s after SIGTERM: finish the run, and exit")
    if not stage.reports(id):
        raise Wrong("the worker ended at SIGTERM without a report of the run that it held: finish it first")
    if (run := await stage.run(id)).state != State.COMPLETED:
        raise Wrong(f"SIGTERM came while the run was performed, and it is {run.state}: finish and report it")
    if stage.claims(signalled + SIGNALLED_SECONDS, stage.now()):
        raise Wrong("a claim came after SIGTERM: claim no more")
    if (await stage.run(later)).state != State.PENDING:
        raise Wrong("a run was claimed after SIGTERM, and was neither reported nor released")
    if status != 0:
        raise Wrong(f"the worker ended with status {status} after SIGTERM; a stop that was asked for is status 0")


SCENES = (
    Scene("complete", complete),
    Scene("fail", fail),
    Scene("retry-after", retry_after),
    Scene("progress", progress),
    Scene("late-heartbeat", late_heartbeat),
    Scene("lease-lost", lease_lost),
    Scene("cancel", cancel),
    Scene("stopping", stopping),
    Scene("repeated-report", repeated_report),
    Scene("too-many", too_many),
    Scene("clock", clock, AHEAD_SECONDS),
    Scene("drain", drain),
)


async def _first_beat(stage: Stage, id: str) -> Seen:
    beats = await stage.until(
        lambda: [beat for beat in stage.beats(id) if beat.status] or stage.reports(id),
        ANSWER_SECONDS,
        "the work took longer than a lease, and no heartbeat came",
    )
    if not isinstance(beats[0], Seen):
        raise Wrong(f"the run was reported as {beats[0].outcome} before its work was done")
    return beats[0]


def _in_time(stage: Stage, id: str, claimed: float) -> None:
    """A heartbeat came within the first lease, and some more for a slow machine."""
    first = min((beat.at for beat in stage.beats(id)), default=None)
    if first is None:
        raise Wrong(f"the work took longer than its lease of {LEASE_SECONDS:g} s, and no heartbeat came")
    if first > claimed + LEASE_SECONDS:
        raise Wrong(
            f"the first heartbeat came {first - claimed:.1f} s after the claim; the lease lasts {LEASE_SECONDS:g} s: "
            "send one at a third of it"
        )


def _once(stage: Stage, id: str) -> None:
    """What was answered with 200 is reported no more."""
    good = [report for report in stage.reports(id) if report.status == 200]
    if len(good) > 1:
        raise Wrong("the end of the run was reported again, although the first report was answered with 200")


def _is_report(seen: Seen, id: str) -> bool:
    if seen.path == "/runs/settle":
        return isinstance(seen.body, list) and any(_field_of(each, "id") == id for each in seen.body)
    return seen.path in (f"/runs/{id}/complete", f"/runs/{id}/fail")


def _first(found: list[Seen], seen: Seen) -> bool:
    return bool(found) and found[0] is seen


def _field(seen: Seen, name: str) -> Any:
    return _field_of(seen.body, name)


def _field_of(body: Any, name: str) -> Any:
    return body.get(name) if isinstance(body, dict) else None
