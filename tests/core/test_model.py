"""The values: the table of states, identities, and what a run's history tells."""

from __future__ import annotations

import uuid

import pytest
from msgspec.structs import replace

from horarium.clock import MINUTE, SECOND
from horarium.model import (
    TRANSITIONS,
    UNFINISHED,
    BusTarget,
    Event,
    Failed,
    HandlerTarget,
    HttpTarget,
    QueueTarget,
    Run,
    State,
    Succeeded,
    Target,
    fraction,
    queue_of,
    run_id,
    timeline,
    uuid7,
    uuid7s,
)
from horarium.policies import Retention
from horarium.rules.settling import cancel, settle

NOW = 1_767_571_200 * SECOND


def a_run() -> Run:
    return Run(id="run", queue="pull/q", fire_at=NOW, due_at=NOW, created_at=NOW)


def claimed(run: Run, at: int) -> Run:
    held = {"token": run.token + 1, "attempt": run.attempt + 1, "worker": "w"}
    return replace(run, state=State.RUNNING, started_at=at, lease_expires_at=at + MINUTE, **held)


def test_a_final_state_leads_nowhere() -> None:
    assert {state for state in State if not TRANSITIONS[state]} == set(State) - UNFINISHED


def test_every_state_can_be_reached() -> None:
    assert {state for following in TRANSITIONS.values() for state in following} == set(State)


@pytest.mark.parametrize(
    ("target", "queue"),
    [
        (HttpTarget(url="http://x"), "http"),
        (HandlerTarget(name="report"), "handler/report"),
        (QueueTarget(queue="q"), "pull/q"),
        (BusTarget(), "bus/default"),
    ],
)
def test_a_target_names_the_queue_of_its_runs(target: Target, queue: str) -> None:
    assert queue_of(target) == queue


def test_run_ids_sort_by_fire_time_and_are_the_same_on_every_node() -> None:
    ids = [run_id("job", NOW + index * SECOND) for index in range(100)]
    assert ids == sorted(ids)
    assert ids[3] == run_id("job", NOW + 3 * SECOND)
    assert run_id("other", NOW) != ids[0]


def test_a_uuid_has_its_version_and_variant() -> None:
    text = uuid7(NOW, b"\xff" * 10)
    assert (text[14], text[19] in "89ab", len(text)) == ("7", True, 36)


def test_a_uuid_is_made_of_the_same_bits_for_good() -> None:
    instant = 1_800_000_000_123_456
    assert uuid7(instant, bytes.fromhex("00112233445566778899")) == "01a3185c-507b-7001-a233-445566778899"
    assert uuid7(instant, bytes.fromhex("fedcba98765432100123") + b"more") == "01a3185c-507b-7fed-ba98-765432100123"


def test_chance_is_reproducible_and_within_bounds() -> None:
    drawn = [fraction("a", index) for index in range(1_000)]
    assert drawn == [fraction("a", index) for index in range(1_000)]
    assert 0 <= min(drawn) < 0.05
    assert 0.95 < max(drawn) < 1


def test_the_timeline_tells_a_life_in_order() -> None:
    run = settle(claimed(a_run(), NOW + SECOND), None, Failed("no"), NOW + 2 * SECOND)
    run = settle(claimed(run, NOW + 10 * SECOND), None, Succeeded(), NOW + 11 * SECOND)
    told = [(event.at - NOW, event.state) for event in timeline(run)]
    assert told == [
        (0, State.PENDING),
        (SECOND, State.RUNNING),
        (2 * SECOND, State.PENDING),
        (10 * SECOND, State.RUNNING),
        (11 * SECOND, State.COMPLETED),
    ]


def test_the_timeline_shows_a_cancel_between_claim_and_end() -> None:
    run = cancel(claimed(a_run(), NOW + SECOND), Retention(), NOW + 2 * SECOND, "why")
    run = settle(run, None, Failed("stopped"), NOW + 3 * SECOND)
    states = [event.state for event in timeline(run)]
    assert states == [State.PENDING, State.RUNNING, State.CANCELLING, State.CANCELLED]


def test_the_timeline_begins_an_attempt_before_its_end_in_the_same_instant() -> None:
    """As in virtual time, where a handler takes none."""
    run = settle(claimed(a_run(), NOW), None, Failed("no", trace="at line 3"), NOW)
    later = run.due_at
    run = settle(claimed(run, later), None, Failed("no", trace="at line 3", retryable=False), later)
    running, pending = State.RUNNING, State.PENDING
    assert [event.state for event in timeline(run)] == [pending, running, pending, running, State.FAILED]
    run = cancel(claimed(a_run(), NOW), Retention(), NOW, "why")
    assert [event.state for event in timeline(run)] == [pending, running, State.CANCELLING]


def test_the_timeline_of_a_skipped_run_is_its_one_event() -> None:
    event = Event(NOW, State.SKIPPED, "missed")
    run = replace(a_run(), state=State.SKIPPED, finished_at=NOW, history=(event,))
    assert timeline(run) == [event]


def test_a_batch_of_ids_ascends_and_each_is_a_version_7_uuid() -> None:
    made = uuid7s(1_800_000_000_000_000, bytes.fromhex("7fffffffffffffffffff"), 3_000)
    assert made == sorted(set(made))
    assert {(uuid.UUID(text).version, uuid.UUID(text).variant) for text in made} == {(7, uuid.RFC_4122)}
    assert made[0][:14] == uuid7(1_800_000_000_000_000, bytes(10))[:14]
