"""Fire times of two rules beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horarium.clock import MINUTE
from horarium.rules.differing import FieldChange, FireChanges, fields_compared, fires_compared

MINUTES = st.lists(st.integers(0, 300), max_size=30)


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ([0, 1_440], [780, 2_220], FireChanges([], [], [(0, 780), (1_440, 2_220)])),
        ([53, 58, 63, 68, 73], [45, 52, 59, 66, 73], FireChanges([45], [68], [(53, 52), (58, 59), (63, 66)])),
        ([1_440, 2_880], [60, 1_500, 2_940], FireChanges([60], [], [(1_440, 1_500), (2_880, 2_940)])),
        ([10, 20, 30], [20], FireChanges([], [10, 30], [])),
        ([10], [811], FireChanges([811], [10], [])),
        ([], [1, 2], FireChanges([1, 2], [], [])),
    ],
    ids=["later each day", "another interval", "an hour later, but for the first", "fewer", "too far", "first ones"],
)
def test_what_was_moved_added_and_removed(before: list[int], after: list[int], wanted: FireChanges) -> None:
    assert fires_compared(before, after, 800) == wanted


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ({"labels": {}}, {"labels": {"a": "1"}}, [("labels.a", None, "1")]),
        ({"labels": {"a": "1"}}, {"labels": {}}, [("labels.a", "1", None)]),
        ({"labels": {}}, {}, [("labels", {}, None)]),
        ({}, {"retry": {"seconds": [1, 2]}, "b": 0}, [("b", None, 0), ("retry.seconds", None, [1, 2])]),
        ({"a": 1, "ab": {"c": 1}}, {"a": {}, "ab": {"c": 2}}, [("a", 1, {}), ("ab.c", 1, 2)]),
        ({"a": 1}, {"a": 1}, []),
    ],
)
def test_fields_that_differ(before: Any, after: Any, wanted: list[Any]) -> None:
    assert fields_compared(before, after) == [FieldChange(*each) for each in wanted]


@given(MINUTES, MINUTES)
def test_each_is_told_once_and_none_is_moved_past_another(before: list[int], after: list[int]) -> None:
    near = 20 * MINUTE
    old, new = ([each * MINUTE for each in fires] for fires in (before, after))
    added, removed, moved = fires_compared(old, new, near)
    both = set(old) & set(new)
    assert sorted([*removed, *(one for one, _ in moved)]) == sorted(set(old) - both)
    assert sorted([*added, *(other for _, other in moved)]) == sorted(set(new) - both)
    for one, other in moved:
        first, last = sorted((one, other))
        assert last - first <= near
        assert _between(set(old) - both, first, last) == _between(set(new) - both, first, last) == []


def _between(fires: set[Any], first: int, last: int) -> Sequence[int]:
    return [fire for fire in fires if first < fire < last]
