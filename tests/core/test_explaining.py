"""Why a job ran, did not run, will run or will not run."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from horarium.clock import HOUR, Instant, to_instant
from horarium.model import Cause, Disposition, State
from horarium.rules.explaining import Explanation, candidates, explain
from horarium.testing.values import a_job, a_run
from horarium.triggers import Cron, RRule

NOW = to_instant(datetime.fromisoformat("2027-02-01T00:00:00+00:00"))
BERLIN = "Europe/Berlin"


def instant(text: str) -> Instant:
    return to_instant(datetime.fromisoformat(text))


def cron(expression: str, **fields: Any) -> dict[str, Any]:
    return {"type": "cron", "expression": expression, "timezone": BERLIN, **fields}


def told(trigger: dict[str, Any], at: str, now: Instant = NOW, **fields: Any) -> Explanation:
    return explain(a_job(trigger=trigger, **fields), instant(at), now, None)


@pytest.mark.parametrize(
    ("rule", "at", "reason"),
    [
        ("30 9 * * MON", "2027-03-02T09:30:00+01:00", "not a Monday: 2 March 2027 is a Tuesday"),
        (
            "30 9 * * MON-FRI",
            "2027-03-06T09:30:00+01:00",
            "not a Monday, Tuesday, Wednesday, Thursday or Friday: 6 March",
        ),
        ("30 9 * * MON", "2027-03-01T09:31:00+01:00", "not at 09:31:00: around it, on that day, it fires at 09:30"),
        ("0 3 1 * *", "2027-03-02T03:00:00+01:00", "not day 1 of the month: 2 March 2027"),
        ("0 3 * 3 *", "2027-04-02T03:00:00+02:00", "not in March: 2 April 2027"),
    ],
)
def test_what_does_not_match_is_named(rule: str, at: str, reason: str) -> None:
    found = told(cron(rule), at)
    assert (found.fires, found.disposition) == (False, None)
    assert found.reason.startswith(reason)
    assert found.previous is not None
    assert found.next is not None
    assert found.previous < found.at < found.next


GAPS = [
    ("shift", "2027-03-28T02:30:00+01:00", True, "moved to 03:30"),
    ("skip", "2027-03-28T02:30:00+01:00", False, "the policy is to skip it"),
    ("run_at_transition", "2027-03-28T02:30:00+01:00", False, "moved to 03:00"),
    ("run_at_transition", "2027-03-28T03:00:00+02:00", True, "moved to 03:00"),
]


@pytest.mark.parametrize(("gap", "at", "fires", "became"), GAPS)
@pytest.mark.parametrize("kind", [Cron, RRule])
def test_a_time_that_the_clock_skips(kind: type, gap: str, at: str, fires: bool, became: str) -> None:
    rule = {"type": "rrule", "rrule": f"DTSTART;TZID={BERLIN}:20250101T023000\nRRULE:FREQ=DAILY", "gap": gap}
    found = told(cron("30 2 * * *", gap=gap) if kind is Cron else rule, at)
    assert found.fires is fires
    assert found.disposition == (None if fires else Disposition.DST_GAP)
    assert found.reason.startswith("in the gap of 28 March 2027 (02:30 does not exist in Europe/Berlin)")
    assert became in found.reason


@pytest.mark.parametrize(("repeat", "at", "which"), [("first", "+01:00", "first"), ("second", "+02:00", "second")])
def test_a_time_that_the_clock_shows_twice(repeat: str, at: str, which: str) -> None:
    found = told(cron("30 2 * * *", repeat=repeat), f"2027-10-31T02:30:00{at}")
    assert not found.fires
    assert found.reason.startswith(f"02:30 comes twice on that day in Europe/Berlin, and the rule fires at the {which}")
    assert "twice" not in told(cron("30 2 * * *", repeat=repeat), f"2027-10-31T02:31:00{at}").reason


def test_what_the_rule_names_itself_is_not_in_the_gap() -> None:
    assert told(cron("30 3 * * *"), "2027-03-28T03:30:00+02:00").reason == "the rule fires then: it will run"
    assert told(cron("30 2 * * *", gap="shift"), "2027-03-28T03:00:00+02:00").disposition is None


def test_exclusions_are_named() -> None:
    rule = {"type": "except", "trigger": cron("0 9 * * *"), "except": [{"dates": ["2027-12-24"]}]}
    found = told(rule, "2027-12-24T09:00:00+01:00")
    assert (found.fires, found.disposition) == (False, Disposition.EXCLUDED)
    assert found.reason == 'excluded by "except on 2027-12-24 (Europe/Berlin)"'
    assert told(rule, "2027-12-24T09:01:00+01:00").disposition is None
    within = {"type": "any_of", "triggers": [rule, cron("0 7 1 1 *")]}
    assert told(within, "2027-12-24T09:00:00+01:00").disposition is Disposition.EXCLUDED
    dates = f"DTSTART;TZID={BERLIN}:20250101T083000\nRRULE:FREQ=DAILY\nEXDATE;TZID={BERLIN}:20270305T083000"
    found = told({"type": "rrule", "rrule": dates}, "2027-03-05T08:30:00+01:00")
    assert (found.disposition, found.reason) == (Disposition.EXCLUDED, "excluded by EXDATE")
    fires = candidates(
        a_job(trigger=rule), instant("2027-12-23T00:00:00+01:00"), instant("2027-12-26T00:00:00+01:00"), 9
    )
    assert len(fires) == 3


def test_the_job_has_its_say() -> None:
    at, rule = "2027-03-05T09:00:00+01:00", cron("0 9 * * *")
    assert told(rule, at, ends_at=NOW).reason == "after ends_at, 2027-02-01T00:00:00Z"
    assert told(rule, at, starts_at=instant("2027-04-01T00:00:00Z")).reason.startswith("before starts_at")
    limited = told(rule, at, fires_max=3, fires_count=1)
    assert (limited.fires, limited.disposition) == (False, Disposition.LIMIT_REACHED)
    assert (
        told(rule, "2027-01-16T09:00:00+01:00", fires_max=3, fires_count=1, planned_until=NOW - 30 * HOUR).fires
        is False
    )
    paused = told(rule, at, enabled=False, paused_at=NOW - HOUR, pause_reason="maintenance")
    assert (paused.fires, paused.disposition) == (False, Disposition.SKIPPED_PAUSED)
    assert "because: maintenance" in paused.reason
    both = told(rule, at, enabled=False, paused_at=NOW - HOUR, planned_until=NOW - HOUR, fires_max=3, fires_count=3)
    assert (both.fires, both.disposition) == (False, Disposition.LIMIT_REACHED)
    assert told(rule, at, enabled=False, paused_at=NOW - HOUR, fires_max=3).disposition is Disposition.SKIPPED_PAUSED
    until = {"enabled": False, "paused_at": NOW - HOUR, "paused_until": instant("2027-03-04T00:00:00+01:00")}
    assert [told(rule, at, **until, fires_max=each).fires for each in (2, 1)] == [True, False]
    assert told(rule, at).fires
    assert "the job was made later" in told(rule, "2027-01-10T09:00:00+01:00").reason
    assert "no run is kept" in told(rule, "2027-01-20T09:00:00+01:00", planned_until=NOW).reason


def test_what_happened_is_in_the_run() -> None:
    job = a_job()

    def said(**fields: Any) -> Explanation:
        return explain(job, job.anchor_at, NOW, a_run(1, job, **fields))

    done = said(state=State.COMPLETED, attempt=1, disposition=Disposition.RAN)
    assert (done.fires, done.disposition, done.reason) == (True, Disposition.RAN, "the rule fires then; completed")
    by_hand = said(state=State.FAILED, attempt=3, error="no paper", cause=Cause.MANUAL, disposition=Disposition.RAN)
    assert by_hand.reason == "it was asked for by hand; failed: no paper"
    late = said(state=State.FAILED, disposition=Disposition.NOT_STARTED, error="no worker started it in time")
    assert (late.fires, late.disposition) == (False, Disposition.NOT_STARTED)
    skipped = said(state=State.SKIPPED, disposition=Disposition.SKIPPED_OVERLAP, error="overlap: skip; 1 unfinished")
    assert (skipped.fires, skipped.reason) == (False, "skipped_overlap: overlap: skip; 1 unfinished")
    waits = said(due_at=NOW + HOUR, attempt=1, error="no paper")
    assert "it waits until 2027-02-01T01:00:00Z after attempt 1 failed: no paper" in waits.reason
    assert "performed by w" in said(state=State.RUNNING, attempt=1, worker="w").reason


def test_a_rule_that_is_dear_to_ask_is_explained_all_the_same() -> None:
    every_second = {"type": "rrule", "rrule": "FREQ=SECONDLY"}
    assert told(every_second, "2027-03-05T09:00:00.5+01:00").reason.startswith("not at 08:00:00: around it")
