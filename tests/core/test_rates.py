"""Rate limits as a pure rule: no window holds more than `max`, most of what is allowed is used, and who waits has a
place."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from horarium.clock import DAY, HOUR, MINUTE, SECOND, Instant, to_micros
from horarium.model import EventKind, Run, State
from horarium.policies import Limit, Rate
from horarium.rules.rates import (
    IDLE,
    Bucket,
    Override,
    admit,
    given_back,
    is_idle,
    line_up,
    opens_at,
    overridden,
    pace_of,
    shut,
    waits_for,
)
from horarium.testing.values import NOW, a_run

LIMIT = Limit(100, 60.0)
STEADY = NOW + 7 * HOUR
"""The steady scale need not be wall time."""
AHEAD = STEADY - NOW


def limited(number: int, limit: Limit = LIMIT, key: str = "api", **changes: Any) -> Run:
    return a_run(number, rates=(Rate(limit.max, limit.per_seconds, limit.burst, key=key),), **changes)


def claimed(run: Run) -> Run:
    return replace(run, state=State.RUNNING, attempt=run.attempt + 1, token=run.token + 1, worker="w", started_at=NOW)


def fullest(begins: Sequence[Instant], window: int) -> int:
    """The most begins in any half-open window."""
    begins = sorted(begins)
    return max((bisect_left(begins, at + window) - index for index, at in enumerate(begins)), default=0)


class Line:
    """Claims of runs under one key, as they fall due, by claimants whose clocks differ; each begins somewhere within
    its turn."""

    def __init__(self, limit: Limit, chance: Random) -> None:
        self.limit, self.chance = limit, chance
        self.bucket = Bucket()
        self.begins: list[Instant] = []
        self.waiting: list[tuple[Instant, int, Run]] = []
        self.made = 0

    def add(self, at: Instant, count: int) -> None:
        for _ in range(count):
            self.made += 1
            heappush(self.waiting, (at, self.made, limited(self.made, self.limit, due_at=at)))

    def claim(self, now: Instant, most: int, ahead: int = 0) -> None:
        """`ahead`: runs are claimed that fall due so soon."""
        taken: list[Run] = []
        while self.waiting and self.waiting[0][0] <= now + ahead and len(taken) < most:
            taken.append(claimed(heappop(self.waiting)[2]))
        admitted = admit({"api": self.bucket}, taken, now, now + AHEAD)
        self.bucket = admitted.buckets.get("api", self.bucket)
        for first, last in admitted.turns.values():
            self.begins.append(self.chance.randint(max(first, now + AHEAD), last))
        for run in admitted.waiting:
            heappush(self.waiting, (run.due_at, len(self.begins) + self.chance.getrandbits(40), run))


limits = st.builds(
    lambda most, seconds, share: Limit(most, seconds, max(1, round(most * share)) if share else None),
    st.integers(1, 300),
    st.sampled_from([1.0, 2.5, 60.0, 3600.0]),
    st.sampled_from([0, 0.05, 0.5, 1.0]),
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(limits, st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 400), st.floats(0, 1.5)), max_size=12))
def test_no_window_holds_more_than_max_however_runs_come_and_begin(
    limit: Limit, seed: int, arrivals: list[tuple[int, float]]
) -> None:
    chance, window = Random(seed), to_micros(limit.per_seconds)
    line, now = Line(limit, chance), NOW
    for count, pause in arrivals:
        line.add(now, count)
        line.claim(now + chance.randint(0, 2 * SECOND), chance.choice((1, 10, 1000)), chance.choice((0, SECOND)))
        now += round(pause * window)
        line.claim(now, 1000)
    assert fullest(line.begins, window) <= limit.max


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.sampled_from([Limit(100, 60.0), Limit(5, 1.0), Limit(20, 10.0, 20), Limit(1000, 60.0)]), st.integers(0, 99))
def test_most_of_what_is_allowed_is_used_though_claims_come_late(limit: Limit, seed: int) -> None:
    line, window = Line(limit, Random(seed)), to_micros(limit.per_seconds)
    line.add(NOW, limit.max * 8)
    now = NOW
    while now < NOW + 5 * window:
        line.claim(now, 1000)
        now = max(now, line.waiting[0][0]) + line.chance.randint(0, pace_of(limit).slack // 5)
    burst = limit.burst or max(1, limit.max // 10)
    allowed = 5 * (limit.max - burst + 1) + burst - 1
    assert len(line.begins) >= 0.9 * allowed


def test_who_waits_has_the_next_place_of_the_line_and_costs_no_attempt() -> None:
    runs = [claimed(limited(number)) for number in range(13)]
    admitted = admit({"api": Bucket()}, runs, NOW, STEADY)
    assert list(admitted.turns) == [run.id for run in runs[:10]]
    places = [run.due_at for run in admitted.waiting]
    interval = pace_of(LIMIT).interval
    assert [b - a for a, b in pairwise(places)] == [interval, interval]
    assert 0 < places[0] - NOW <= interval
    assert {(run.state, run.attempt, run.worker, waits_for(run)) for run in admitted.waiting} == {
        (State.PENDING, 0, None, "api")
    }


def test_a_place_is_kept_against_those_that_come_later_but_not_against_a_higher_priority() -> None:
    first = admit({"api": Bucket()}, [claimed(limited(number)) for number in range(12)], NOW, STEADY)
    bucket, (placed, _) = first.buckets["api"], first.waiting
    at = placed.due_at
    late = admit({"api": bucket}, [claimed(limited(20, due_at=at))], at, at + AHEAD)
    assert not late.turns
    higher = admit({"api": bucket}, [claimed(limited(21, due_at=at, priority=5))], at, at + AHEAD)
    assert len(higher.turns) == 1
    pushed = admit(higher.buckets, [claimed(placed)], at, at + AHEAD)
    assert pushed.waiting[0].due_at - at <= pace_of(LIMIT).interval


def test_a_claim_that_was_given_back_keeps_its_place() -> None:
    waiting = admit({"api": Bucket()}, [claimed(limited(number)) for number in range(11)], NOW, STEADY)
    (placed,) = waiting.waiting
    assert given_back(claimed(placed)) == replace(placed, token=placed.token + 1)
    assert waits_for(given_back(claimed(placed))) == "api"


def test_what_a_clock_that_was_ahead_let_be_claimed_takes_its_turn_now() -> None:
    """It begins at once when the clock has come back."""
    ahead = NOW + 3_650 * DAY
    runs = [claimed(limited(number, Limit(3, 2.0), due_at=ahead)) for number in range(5)]
    admitted = admit({"api": Bucket()}, runs, NOW, STEADY)
    assert list(admitted.turns) == [runs[0].id]
    assert admitted.turns[runs[0].id][1] < STEADY + MINUTE
    assert all(run.due_at > NOW for run in admitted.waiting)


def test_new_runs_are_lined_up_once_there_is_a_line_and_not_before() -> None:
    few = [limited(number) for number in range(10)]
    assert line_up({"api": Bucket()}, few, NOW, STEADY).buckets == {}
    many = line_up({"api": Bucket()}, [limited(number) for number in range(1000)], NOW, STEADY)
    dues = [run.due_at for run in many.waiting]
    assert dues == sorted(dues)
    assert sum(due <= NOW for due in dues) == 10
    assert NOW + 10 * MINUTE < dues[-1] < NOW + 11.5 * MINUTE
    more = line_up(many.buckets, [limited(2000)], NOW, STEADY)
    assert more.waiting[0].due_at == dues[-1] + pace_of(LIMIT).interval


def test_a_run_under_two_limits_takes_of_neither_while_one_is_shut() -> None:
    run = replace(limited(0), rates=(*limited(0).rates, Rate(1, 3600.0, key="slow")))
    open_, shut_ = Bucket(), shut(Bucket(), STEADY + HOUR)
    admitted = admit({"api": open_, "slow": shut_}, [claimed(run)], NOW, STEADY)
    assert not admitted.turns
    assert admitted.buckets["api"].arrival_at == 0
    assert admitted.waiting[0].due_at == NOW + HOUR
    assert waits_for(admitted.waiting[0]) == "slow"


def test_a_shut_key_lets_nothing_in_and_then_a_burst() -> None:
    bucket = shut(Bucket(), STEADY + MINUTE)
    runs = [claimed(limited(number)) for number in range(12)]
    waiting = admit({"api": bucket}, runs, NOW, STEADY)
    assert not waiting.turns
    assert [run.due_at == NOW + MINUTE for run in waiting.waiting] == [True] * 10 + [False] * 2
    assert opens_at(bucket, NOW, STEADY) == STEADY + MINUTE


def test_an_override_holds_for_all_until_its_end() -> None:
    one = Override(1, 3600.0, until=NOW + HOUR)
    bucket = overridden(Bucket(), one, NOW, STEADY)
    runs = [claimed(limited(number)) for number in range(3)]
    assert len(admit({"api": bucket}, runs, NOW, STEADY).turns) == 1
    assert len(admit({"api": bucket}, runs, NOW + HOUR, STEADY + HOUR).turns) == 3


def test_a_start_limit_counts_from_the_place_in_line() -> None:
    runs = [claimed(limited(number, start_by=NOW + MINUTE)) for number in range(11)]
    (waiting,) = admit({"api": Bucket()}, runs, NOW, STEADY).waiting
    assert waiting.start_by == waiting.due_at + MINUTE


def test_the_history_says_once_what_a_run_waits_for() -> None:
    bucket = shut(Bucket(), STEADY + MINUTE)
    (run,) = admit({"api": bucket}, [claimed(limited(0))], NOW, STEADY).waiting
    (again,) = admit({"api": shut(bucket, STEADY + HOUR)}, [claimed(run)], NOW, STEADY).waiting
    assert [event.kind for event in again.history] == [EventKind.LIMITED]
    assert "rate limit 'api'" in again.history[0].message


@pytest.mark.parametrize(
    ("bucket", "idle"),
    [
        (Bucket(), True),
        (Bucket(arrival_at=STEADY), False),
        (Bucket(arrival_at=STEADY - IDLE - 1), True),
        (Bucket(line={0: STEADY}), False),
        (Bucket(shut_until=STEADY + 1), False),
        (Bucket(override=Override(1, 1.0)), False),
        (Bucket(override=Override(1, 1.0, until=NOW)), True),
    ],
)
def test_a_key_is_forgotten_once_that_loses_nothing(bucket: Bucket, idle: bool) -> None:
    assert is_idle(bucket, NOW, STEADY) is idle
