"""What was asked for lately is remembered, and no more than there is room for."""

from __future__ import annotations

import pytest

from horarium.stores import lately
from horarium.stores.lately import Lately


def test_what_is_asked_for_stays_and_what_is_not_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lately, "ASKED_MAX", 10)
    known: Lately[int, str] = Lately(1_000)
    known.learn({1: "in use", 2: "of a deleted job"})
    for _ in range(30):
        assert known.unknown([1, None]) == set()
        assert known[1] == "in use"
    assert known.size == 1
    assert known.unknown([1, 2]) == {2}


def test_what_was_found_is_at_hand_though_much_is_learned_beside_it() -> None:
    known: Lately[int, str] = Lately(10)
    known.learn(dict.fromkeys(range(10), "young"))
    assert known.unknown([1, 2, 50]) == {50}
    assert len(known) == 2, "the half was full"
    known.learn(dict.fromkeys(range(50, 70), "new"))
    assert [known[one] for one in (1, 2, 50)] == ["young", "young", "new"]
    assert known.recall(2) == "young"
    assert known.recall(3) is None
    found, unknown = known.split([1, 50, 99, None])
    for number in range(100, 200):
        assert known.unknown([number]) == {number}
        known.learn({number: "other"})
    assert (found, unknown) == ({1: "young", 50: "new"}, {99})
    with pytest.raises(KeyError):
        known[1]


@pytest.mark.parametrize("weight", [1, 25])
def test_there_is_never_more_than_two_halves(weight: int) -> None:
    known: Lately[int, int] = Lately(100)
    most = 0
    for number in range(2_000):
        known.unknown([number, number - 1, number % 7])
        known.learn({number: number}, weight)
        most = max(most, known.size * weight)
    assert 100 <= most <= 2 * (100 + 3 * weight)


def test_what_moves_to_the_young_half_weighs_there_too() -> None:
    known: Lately[int, int] = Lately(1_000)
    for turn in range(50):
        for number in range(turn * 5, turn * 5 + 5):
            known.learn({number: number}, 100)
        for number in range(turn * 5):
            known.unknown([number])
        assert known.size * 100 <= 2 * (1_000 + 500)


def test_one_name_at_a_time_is_bounded_too() -> None:
    known: Lately[str, int] = Lately(10)
    for number in range(100):
        assert known.recall(f"name-{number}") is None
        known.learn({f"name-{number}": number})
    assert known.size <= 20
    assert known.recall("name-99") == 99
