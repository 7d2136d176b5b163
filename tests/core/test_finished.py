"""Planning at its ends: rhythms finer than a second, jobs that are finished, rules that are too expensive."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import DAY, MINUTE, SECOND, Instant, to_text
from horarium.errors import TooExpensive
from horarium.model import Job, Plan, QueueTarget, State
from horarium.policies import Overlap
from horarium.rules.finishing import is_finished
from horarium.rules.planning import next_fire, plan
from horarium.triggers.budget import PLAN_STEPS, PLAN_STEPS_MAX

NOW = 1_767_571_200 * SECOND


def a_job(**changes: Any) -> Job:
    """Fires every ten seconds; all before NOW is accounted for."""
    fields: dict[str, Any] = {
        "name": "job",
        "id": "id",
        "trigger": {"type": "interval", "every_seconds": 10, "anchor": to_text(NOW - MINUTE)},
        "target": QueueTarget(queue="q"),
        "planned_until": NOW,
        "created_at": NOW - DAY,
        "anchor_at": NOW - DAY,
        **changes,
    }
    job = Job(**fields)
    return replace(job, next_fire_at=next_fire(job, job.planned_until))


def pending(planned: Plan) -> list[Instant]:
    return [run.fire_at for run in planned.runs if run.state is State.PENDING]


def test_a_rhythm_of_milliseconds_is_planned_a_look_ahead_at_a_time() -> None:
    trigger = {"type": "interval", "every_seconds": 0.05, "anchor": to_text(NOW)}
    job = a_job(trigger=trigger)
    planned = plan(job, [], NOW, SECOND)
    assert pending(planned) == [NOW + 50_000 * n for n in range(1, 21)]
    again = plan(planned.job, [], NOW + SECOND // 2, SECOND)
    assert pending(again) == [NOW + 50_000 * n for n in range(21, 31)]
    serial = plan(replace(job, overlap=Overlap.SKIP), [], NOW + 50_000, SECOND)
    assert pending(serial) == [NOW + 50_000]


@pytest.mark.parametrize(
    ("changes", "finished"),
    [
        ({}, False),
        ({"trigger": {"type": "once", "at": to_text(NOW - 1)}}, True),
        ({"trigger": {"type": "once", "at": to_text(NOW + 1)}}, False),
        ({"trigger": {"type": "once", "at": to_text(NOW - 1)}, "enabled": False}, True),
        ({"enabled": False}, False),
        ({"enabled": False, "ends_at": NOW}, True),
        ({"fires_max": 3, "fires_count": 3}, True),
        ({"fires_max": 3, "fires_count": 2}, False),
        ({"deleted_at": NOW}, False),
    ],
)
def test_a_job_is_finished_when_its_rule_yields_no_more(changes: dict[str, Any], finished: bool) -> None:
    assert is_finished(a_job(**changes)) is finished


@pytest.mark.slow
def test_what_is_too_expensive_says_so_and_is_planned_with_more_steps() -> None:
    seconds = {"type": "rrule", "rrule": "FREQ=SECONDLY"}
    but_one = [{"type": "rrule", "rrule": f"FREQ=MINUTELY;BYSECOND={n}"} for n in range(59)]
    job = a_job(trigger={"type": "except", "trigger": seconds, "except": but_one})
    with pytest.raises(TooExpensive):
        plan(job, [], NOW + 10 * MINUTE, steps=PLAN_STEPS)
    assert pending(plan(job, [], NOW + 10 * MINUTE, steps=PLAN_STEPS_MAX)) == [NOW + 10 * MINUTE - SECOND]
