"""A whole number may be written with a fraction of zero."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from horarium.wire.definitions import JobDefinition
from horarium.wire.numbers import whole_numbers


class Part(Struct, tag="part", tag_field="type"):
    count: Annotated[int, Meta(ge=0)]


class Other(Struct, tag="other", tag_field="type"):
    count: float


class Whole(Struct):
    parts: list[Part | Other]
    most: int | None = None
    ratio: float = 0.0
    payload: Any = None


def test_whole_numbers_are_told_by_the_types() -> None:
    value = {
        "parts": [{"type": "part", "count": 2.0}, {"type": "other", "count": 3.0}, {"type": "none", "count": 4.0}, 5.0],
        "most": 75.0,
        "ratio": 1.0,
        "payload": {"most": 6.0},
        "unknown": 7.0,
    }
    told = whole_numbers(value, Whole)
    assert [type(part["count"]) for part in told["parts"][:3]] == [int, float, float]
    assert (type(told["most"]), type(told["ratio"]), type(told["payload"]["most"])) == (int, float, float)
    assert told == value


@pytest.mark.parametrize("number", [75.5, float("inf"), float("nan"), -0.5])
def test_other_numbers_stay_what_they_are(number: float) -> None:
    assert whole_numbers({"most": number}, Whole)["most"] is number


@pytest.mark.parametrize("value", [None, "75.0", True, [], {}, 75])
def test_what_is_no_number_stays_what_it_is(value: object) -> None:
    assert whole_numbers({"most": value}, Whole) == {"most": value}


def test_a_jobs_numbers() -> None:
    told = whole_numbers({"retry": {"attempts_max": 3.0, "backoff_seconds": 2.0}, "priority": 1.0}, JobDefinition)
    assert type(told["retry"]["attempts_max"]) is type(told["priority"]) is int
    assert type(told["retry"]["backoff_seconds"]) is float
