"""A rehearsal does what a server does: in order, without a server, and the same each time."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from horarium.clock import DAY, HOUR, MINUTE, SECOND, Instant, to_instant, to_text
from horarium.errors import CallerError, InvalidRequest
from horarium.rules.planning import job_fires
from horarium.testing import rehearsing
from horarium.testing.rehearsed import LATE, Rehearsed
from horarium.testing.rehearsing import Scene, rehearse
from horarium.testing.scenes import scene_of
from horarium.testing.simulate.loop import NodeClock, Time
from horarium.testing.values import a_job
from horarium.wire.masking import SECRET_SHOWN

SINCE = 1_806_105_600 * SECOND
"""2027-03-27T00:00:00Z."""
SAID = frozenset({"cause", "disposition", "fires"})
RECORDED = Path(__file__).parents[1] / "simulation" / "recorded.json"
QUEUE = {"type": "queue", "queue": "q"}


def a_definition(name: str, every: float = 60, **fields: Any) -> dict[str, Any]:
    return {"name": name, "trigger": {"type": "interval", "every_seconds": every}, "target": QUEUE, **fields}


def scene(*jobs: dict[str, Any], until: Instant = SINCE + HOUR, **more: Any) -> Scene:
    given = {kind: more.pop(kind, []) for kind in ("holds", "overrides")}
    given["calendars"] = [{"name": "office", "holidays": ["2027-03-27"]}]
    return replace(scene_of({"jobs": jobs, **given}, SINCE, until), **more)


def begun(found: Rehearsed) -> list[tuple[str, str]]:
    return sorted((run["fire_at"], run["job"]) for run in found.runs if run["began_at"] is not None)


def at(text: str) -> Instant:
    return to_instant(datetime.fromisoformat(text))


# ---- against what is known otherwise


@pytest.mark.slow
def test_it_is_what_a_real_server_did() -> None:
    """recorded.json: an hour of the jobs that `make demo` defines, with the server killed and started again. Of each
    job it has the steps (in microseconds) from one fire time to the next, how late each run began (in ms; null: it
    did not), and by its place what is said of one that is not like the others."""
    recorded = json.loads(RECORDED.read_text())
    given = {**scene_kinds(), "jobs": recorded["jobs"]}
    made = scene_of(given, at(recorded["since"]), at(recorded["until"]))
    begins, _, ends = recorded["down"].partition("/")
    found = rehearse(replace(made, usual=(0.01,), downs=[(at(begins), at(ends))]))
    told = [
        (at(run["fire_at"]), run["job"], run["late_seconds"] > 1, {each: run[each] for each in run if each in SAID})
        for run in found.runs
    ]
    wanted = [run for name, runs in recorded["runs"].items() for run in read_runs(name, runs)]
    assert sorted(told, key=str) == sorted(wanted, key=str)
    assert len(wanted) == 4_318
    assert sum(late for _, _, late, _ in wanted) == 2


def scene_kinds() -> dict[str, list[dict[str, Any]]]:
    return {"calendars": [], "holds": [], "overrides": []}


def read_runs(name: str, runs: dict[str, Any]) -> Iterator[tuple[Instant, str, bool, dict[str, Any]]]:
    """Each run that was recorded of a job: its fire time, whether it began late, and what is said of it."""
    steps = (step for step, times in runs["steps"] for _ in range(times))
    fires = accumulate(steps, initial=at(runs["first"]))
    for place, (fire_at, late) in enumerate(zip(fires, runs["lags"], strict=True)):
        said = {"cause": "schedule", "disposition": "ran", **runs["odd"].get(str(place), {})}
        yield fire_at, name, (late or 0) * SECOND // 1_000 > LATE, said


TRIGGERS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"type": "interval", "every_seconds": 37},
        {"type": "cron", "expression": "*/7 * * * *", "timezone": "Europe/Berlin"},
        {"type": "rrule", "rrule": "FREQ=MINUTELY;INTERVAL=11"},
        {"type": "interval", "every_seconds": 300, "from": "end"},
        {"type": "except", "trigger": {"type": "interval", "every_seconds": 90}, "except": [{"dates": ["2027-03-28"]}]},
    ]
)


ROLLED = {
    "type": "business_day", "trigger": {"type": "cron", "expression": "*/9 * * * *"}, "convention": "following",
    "calendar": "office",
}  # fmt: skip


def holds_of(minutes: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(
        st.builds(
            lambda scope, begin, length, missed: {
                "scope": scope, "reason": "moving", "missed": missed,
                "from": to_text(SINCE + begin * MINUTE), "until": to_text(SINCE + (begin + length) * MINUTE),
            },
            st.sampled_from([{"all": True}, {"job": "job-0"}, {"queue": "q"}]),
            st.integers(0, minutes), st.integers(1, minutes), st.sampled_from(["skip", "catch_up"]),
        ),
        max_size=2,
    )  # fmt: skip


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    jobs = [
        a_definition(
            f"job-{number}",
            trigger=draw(TRIGGERS),
            overlap=draw(st.sampled_from(["allow", "skip", "buffer_one", "cancel_other"])),
            jitter_seconds=draw(st.sampled_from([0, 20])),
            fires_max=draw(st.sampled_from([None, None, 9])),
            priority=draw(st.integers(0, 2)),
        )
        for number in range(draw(st.integers(1, 5)))
    ]
    holds = draw(holds_of(12))
    return scene(*jobs, until=SINCE + 25 * MINUTE, holds=holds, usual=(draw(st.sampled_from([1.0, 50.0, 400.0])),))


@pytest.mark.slow
@settings(deadline=None, max_examples=12, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(scenes())
def test_a_look_further_ahead_changes_nothing(made: Scene) -> None:
    """Where nothing is short: of runs that are due at one instant, any may begin first."""
    with pytest.MonkeyPatch.context() as patch:
        far = rehearse(made)
        patch.setattr(rehearsing, "AHEAD_SECONDS", 1.0)
        near = rehearse(made)
    assert near.totals == far.totals
    assert near.jobs == far.jobs
    assert sorted(near.runs, key=str) == sorted(far.runs, key=str)


# ---- the forecast, which knows it by arithmetic


FORECAST = st.builds(
    lambda trigger, catch_up, jitter, fires_max: {
        "trigger": trigger, "catch_up": {"policy": catch_up}, "jitter_seconds": jitter, "fires_max": fires_max,
    },
    TRIGGERS.filter(lambda trigger: "from" not in trigger) | st.just(ROLLED),
    st.sampled_from(["none", "latest", "all"]), st.sampled_from([0, 0, 40]), st.sampled_from([None, None, 12]),
)  # fmt: skip


async def forecast_of(made: Scene, bucket: int) -> dict[tuple[str, str], int]:
    rehearsal = rehearsing._Rehearsal(made, NodeClock(Time(made.since)))
    await rehearsal._define()
    found = await rehearsal._operations.forecasting.forecast(made.since, made.until, bucket, "job")
    return {(to_text(each.at), job): count for each in found.buckets for job, count in each.starts.items()}


@pytest.mark.slow
@settings(deadline=None, max_examples=int(os.environ.get("FORECAST_EXAMPLES", "10")), derandomize=True,
          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
@given(st.lists(FORECAST, min_size=1, max_size=4), holds_of(19))
def test_a_forecast_under_holds_is_what_a_rehearsal_gives(jobs: list[dict[str, Any]], holds: list[Any]) -> None:
    bucket = 5 * MINUTE
    named = [a_definition(f"job-{number}", **fields) for number, fields in enumerate(jobs)]
    made = scene(*named, until=SINCE + 40 * MINUTE, holds=holds, usual=(0.001,))
    wanted: Counter[tuple[str, str]] = Counter()
    for run in rehearse(made).runs:
        if run["began_at"] is not None:
            began = at(run["began_at"])
            wanted[to_text(began - (began - SINCE) % bucket), run["job"]] += 1
    assert asyncio.run(forecast_of(made, bucket // SECOND)) == wanted


@pytest.mark.parametrize("kind", ["interval", "cron"])
def test_without_events_each_fire_time_begins_at_its_instant(kind: str) -> None:
    trigger = {"type": "cron", "expression": "17 */2 * * *", "timezone": "Europe/Berlin"}
    definition = a_definition("a") if kind == "interval" else {**a_definition("a"), "trigger": trigger}
    found = rehearse(scene(definition, until=SINCE + DAY // 4))
    wanted = job_fires(a_job("a", trigger=definition["trigger"], anchor_at=SINCE), SINCE - 1, 400)
    assert [at(run["began_at"]) for run in found.runs] == [fire for fire in wanted if fire < SINCE + DAY // 4]
    assert found.totals.uneventful


# ---- what people ask


def test_too_few_slots_make_runs_late() -> None:
    jobs = [a_definition(f"job-{number}") for number in range(4)]
    enough = rehearse(scene(*jobs, usual=(20.0,), slots={"pull/q": 4}))
    assert enough.totals.late == 0
    few = rehearse(scene(*jobs, usual=(20.0,), slots={"pull/q": 1}))
    assert few.totals.late > 3 * 50
    assert few.totals.waiting > 0
    assert few.totals.runs + few.totals.waiting == enough.totals.runs


def test_what_a_stop_of_the_service_costs() -> None:
    down = [(SINCE + 10 * MINUTE + SECOND, SINCE + 20 * MINUTE + 30 * SECOND)]
    policies = {"none": None, "latest": None, "all": None}
    jobs = [a_definition(name, catch_up={"policy": name}) for name in policies]
    found = rehearse(scene(*jobs, downs=down, usual=(1.0,)))
    assert {name: (of.caught_up, of.skipped) for name, of in found.jobs.items()} == {
        "none": (0, {"missed": 10}), "latest": (1, {"missed": 9}), "all": (10, {}),
    }  # fmt: skip
    assert not [run for run in found.runs if run["began_at"] and down[0][0] <= at(run["began_at"]) < down[0][1]]


def test_holds_overrides_and_time_limits_are_as_on_a_server() -> None:
    until = SINCE + 30 * MINUTE
    hold = {"scope": {"job": "held"}, "reason": "moving", "missed": "skip",
            "from": to_text(SINCE + 10 * MINUTE), "until": to_text(SINCE + 15 * MINUTE)}  # fmt: skip
    moved = {"job": "moved", "fire_at": to_text(SINCE + 5 * MINUTE), "to": to_text(SINCE + 5 * MINUTE + 7 * SECOND)}
    found = rehearse(
        scene(
            a_definition("held"), a_definition("moved"), a_definition("skipped"),
            a_definition("limited", timeouts={"execution_seconds": 5}, retry={"attempts_max": 1}),
            until=until, holds=[hold], seconds={"limited": (9.0,)},
            overrides=[moved, {"job": "skipped", "fire_at": to_text(SINCE + MINUTE)}],
        )
    )  # fmt: skip
    assert (found.jobs["held"].held, found.jobs["held"].runs) == (5, 24)
    assert found.jobs["skipped"].skipped == {"skipped_override": 1}
    assert found.jobs["limited"].failed == found.jobs["limited"].runs == 29
    (run,) = [run for run in found.runs if run["job"] == "moved" and run["due_at"] == moved["to"]]
    assert (run["fire_at"], run["began_at"]) == (moved["fire_at"], moved["to"])


def test_the_seed_decides_what_is_drawn() -> None:
    made = scene(a_definition("a"), a_definition("b"), seconds={"a": (1.0, 30.0, 300.0)}, slots={"pull/q": 1})
    first, again, other = rehearse(made), rehearse(made), rehearse(replace(made, seed=1))
    assert first == again
    assert first.runs != other.runs


def test_a_job_that_exists_goes_on_in_its_phase_and_count() -> None:
    shown = {
        **a_definition("a", every=600, fires_max=10), "created_at": "2027-01-01T00:00:00Z",
        "next_fire_at": to_text(SINCE - 90 * SECOND), "fires_count": 7, "version": 3, "state": "enabled",
        "target": {"type": "http", "url": "https://example.com/", "headers": {"authorization": SECRET_SHOWN}},
    }  # fmt: skip
    found = rehearse(scene(shown))
    assert begun(found) == [(to_text(SINCE + seconds * SECOND), "a") for seconds in (510, 1110, 1710)]


def test_jobs_that_follow_run_when_they_are_triggered() -> None:
    first = a_definition("first", every=600, on={"completed": [{"trigger": "second"}]})
    second = {"name": "second", "trigger": {"type": "once", "at": "2100-01-01T00:00:00Z"}, "target": QUEUE}
    found = rehearse(scene(first, second, usual=(5.0,), until=SINCE + HOUR + MINUTE))
    assert Counter(run["job"] for run in found.runs) == {"first": 6, "second": 6}


def test_a_job_that_follows_from_others_runs_once_in_each_window() -> None:
    def at_hour(name: str, hour: int) -> dict[str, Any]:
        return {"name": name, "trigger": {"type": "cron", "expression": f"0 {hour} * * *"}, "target": QUEUE}

    joined = {"type": "after", "jobs": ["a", "b"], "within": "day", "deadline_seconds": 6 * 3600}
    load = {"name": "load", "trigger": joined, "target": QUEUE}
    both = (at_hour("a", 1), at_hour("b", 2), load)
    made = scene(*both, usual=(60.0,), until=SINCE + 2 * DAY)
    ran = [(run["fire_at"], run["began_at"][:16]) for run in rehearse(made).runs if run["job"] == "load"]
    assert ran == [
        ("2027-03-27T00:00:00Z", "2027-03-27T02:01"), ("2027-03-28T00:00:00Z", "2027-03-28T02:01"),
    ]  # fmt: skip
    down = (SINCE + DAY + HOUR, SINCE + DAY + 8 * HOUR)
    found = rehearse(replace(made, downs=(down,), documents=scene(*both[1:], at_hour("a", 1)).documents))
    assert found.jobs["load"].runs == 1, "after its deadline it is missed"


def test_the_slots_of_a_queue_are_given_by_its_name() -> None:
    short, whole = (rehearse(scene(a_definition("a"), usual=(90.0,), slots={name: 1})) for name in ("q", "pull/q"))
    assert short.runs == whole.runs


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(InvalidRequest, match="until"):
        rehearse(scene(a_definition("a"), until=SINCE))
    with pytest.raises(CallerError, match="every_seconds"):
        rehearse(scene(a_definition("a", every=-1)))
    with pytest.raises(InvalidRequest, match="twice"):
        rehearse(scene(a_definition("a"), a_definition("a")))
    with pytest.raises(InvalidRequest, match="no job has the queue nosuch; there are q"):
        rehearse(scene(a_definition("a"), slots={"nosuch": 1}))
    with pytest.raises(InvalidRequest, match="no job named"):
        scene(a_definition("a"), overrides=[{"job": "b", "fire_at": "2027-03-27T00:00:00Z"}])
