"""Turns: what keys share of a queue by their weights, and a key that came late."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from horarium.clock import SECOND
from horarium.model import Event, EventKind, Level, Run, State
from horarium.rules.fairness import (
    GRACE,
    LEAD,
    PARTS,
    awaits_turn,
    is_over,
    key_of,
    take_turns,
    turn_later,
    without_turn,
)
from horarium.testing.values import NOW, QUEUE, a_run

LEVEL: Level = (QUEUE, 0, False)


def runs_of(key: str, count: int, first: int = 0) -> list[Run]:
    return [a_run(first + number, fair=key) for number in range(count)]


def placed(runs: list[Run], waiting: list[Run], ends: dict[str, int], weights: dict[str, int]) -> list[Run]:
    """The runs at their turns beside those that wait; `ends` goes on."""
    known = {key_of(run): ends.get(run.fair or "", 0) for run in runs}
    first = min((run.due_at for run in waiting), default=None)
    turns = take_turns(runs, {LEVEL: first}, known, {QUEUE: weights}, NOW)
    ends.update({key: end for (_, _, key), end in turns.ends.items()})
    return turns.runs


@pytest.mark.slow
@given(st.lists(st.integers(1, 10), min_size=2, max_size=10), st.integers(10, 200))
def test_shares_of_claims_are_as_the_weights(weights: list[int], rounds: int) -> None:
    told, ends, waiting = {f"k{n}": weight for n, weight in enumerate(weights)}, dict[str, int](), list[Run]()
    for number, (key, weight) in enumerate(told.items()):
        waiting += placed(runs_of(key, 2 * rounds * weight, number * 10_000), waiting, ends, told)
    claimed = sorted(waiting, key=lambda run: (run.due_at, run.id))[: rounds * sum(weights)]
    shares = Counter(run.fair for run in claimed)
    assert all(abs(shares[key] - rounds * weight) <= 0.1 * rounds * weight + 2 for key, weight in told.items())


def test_a_key_that_comes_late_is_next_however_many_of_another_wait() -> None:
    ends = dict[str, int]()
    flood = placed(runs_of("a", 1_000), [], ends, {})
    left = flood[300:]
    late = placed(runs_of("b", 50, 5_000), left, ends, {})
    claimed = sorted([*left, *late], key=lambda run: (run.due_at, run.id))[:100]
    assert Counter(run.fair for run in claimed) == {"a": 50, "b": 50}
    assert max(run.due_at for run in late) < NOW + SECOND


def test_a_key_that_waited_for_nothing_keeps_no_credit_and_one_that_was_alone_owes_nothing() -> None:
    ends = {"a": (NOW - 5 * SECOND) * PARTS, "old": 1}
    made = placed([*runs_of("a", 3), *runs_of("old", 3, 100)], [], ends, {})
    assert sorted(run.due_at - NOW for run in made) == [at - LEAD for at in (0, 0, 10, 10, 20, 20)]
    end, now = (NOW - 1) * PARTS, NOW + LEAD
    assert is_over(end, [None, NOW], now)
    assert not is_over(end, [None, NOW - 2], now)
    assert not is_over(end, [], NOW)


def test_runs_of_a_key_keep_their_order() -> None:
    made = placed(runs_of("a", 50), [], {}, {"a": 1_000})
    assert all((a.due_at, a.id) < (b.due_at, b.id) for a, b in pairwise(made))


def test_priorities_and_queues_have_lines_of_their_own() -> None:
    other, urgent = a_run(1, fair="a", queue="other"), a_run(2, fair="a", priority=9)
    firsts: dict[Level, int | None] = {
        LEVEL: NOW - 9 * SECOND,
        ("other", 0, False): None,
        (QUEUE, 9, False): NOW - 3 * SECOND,
    }
    runs = [other, urgent, *runs_of("a", 2, 10)]
    ends = {key_of(run): 0 for run in runs}
    made = take_turns(runs, firsts, ends, {QUEUE: {}, "other": {}}, NOW).runs
    assert [run.due_at - NOW for run in made] == [-LEAD, -3 * SECOND, -9 * SECOND, 10 - 9 * SECOND]


def test_a_run_that_is_due_later_takes_its_turn_then() -> None:
    later = turn_later(a_run(fair="a", due_at=NOW + SECOND))
    assert (later.start_by, awaits_turn(later)) == (NOW + SECOND + GRACE, True)
    assert without_turn(replace(later, state=State.RUNNING)).start_by is None
    assert not awaits_turn(placed([later], [], {}, {})[0])
    limited = turn_later(a_run(fair="a", start_by=NOW + 9))
    assert limited.start_by == NOW + 9
    assert not awaits_turn(limited)
    assert without_turn(limited) is limited
    assert turn_later(a_run()).start_by is None


def test_what_is_shown_is_when_the_run_fell_due_and_not_its_turn() -> None:
    run = a_run(fair="a", due_at=NOW - 70 * SECOND)
    assert run.due_since == run.due_at_first > run.due_at
    again = replace(
        run, history=(Event(NOW + 9, State.PENDING, "", EventKind.FAILED), Event(NOW + 20, State.RUNNING, ""))
    )
    assert again.due_since == NOW + 9
    assert replace(again, due_at=NOW + SECOND).due_since == NOW + SECOND
    assert replace(run, fair=None).due_since == run.due_at
