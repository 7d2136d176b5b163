"""Cron of Quartz and EventBridge: translated where it is said to be theirs, warned of where it may be."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horarium.errors import InvalidTrigger
from horarium.triggers import cron
from horarium.triggers.dialects import from_dialect, warnings_of


@pytest.mark.parametrize(
    ("theirs", "dialect", "ours"),
    [
        ("0 0 3 ? * 2-6", "quartz", "0 0 3 ? * 1-5"),
        ("0 0 3 ? * 6L 2027", "quartz", "0 0 3 ? * 5L 2027"),
        ("0 0 3 ? * 2#1", "quartz", "0 0 3 ? * 1#1"),
        ("0 0 3 ? * MON,7", "quartz", "0 0 3 ? * MON,6"),
        ("0 12 ? * 1,3/2 *", "eventbridge", "0 12 ? * 0,2/2"),
        ("cron(0 12 L * ? 2027)", "eventbridge", "0 0 12 L * ? 2027"),
        ("0 12 * * 1", "cron", "0 12 * * 1"),
    ],
)
def test_days_are_counted_as_there(theirs: str, dialect: str, ours: str) -> None:
    assert from_dialect(theirs, dialect) == ours
    assert cron(ours).next_after(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("theirs", "dialect"), [("0 12 * * 1", "quartz"), ("0 12 * * 1", "eventbridge"), ("", "quartz")]
)
def test_another_number_of_fields_is_refused(theirs: str, dialect: str) -> None:
    with pytest.raises(InvalidTrigger, match=f"{dialect} has 6"):
        from_dialect(theirs, dialect)


@given(st.integers(1, 7))
def test_a_number_fires_on_the_day_that_quartz_means(day: int) -> None:
    fire = cron(from_dialect(f"0 0 12 ? * {day}", "quartz")).next_after(datetime(2027, 1, 1, tzinfo=UTC))
    assert fire is not None
    assert (fire.isoweekday() % 7) + 1 == day


@pytest.mark.parametrize(
    ("expression", "warned"),
    [
        ("0 0 3 ? * 2-6", "day 2 of the week is Tuesday here, as in cron; in Quartz and EventBridge it is Monday"),
        ("0 3 ? * 7", "day 7 of the week is Sunday here, as in cron; in Quartz and EventBridge it is Saturday"),
        ("0 3 * * 2-6", None),
        ("0 0 3 ? * MON-FRI", None),
        ("0 0 3 ? * MON#2", None),
        ("0 0 3 1 * ?", None),
        ("0 0 3 ? * */2", None),
        ("@daily", None),
    ],
)
def test_a_number_that_others_read_otherwise_is_warned_of(expression: str, warned: str | None) -> None:
    spec = {"type": "any_of", "triggers": [{"type": "cron", "expression": expression}, {"type": "phrase", "text": "2"}]}
    found = warnings_of(spec)
    assert [text.partition(": write")[0] for text in found] == ([] if warned is None else [warned])


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    assert isinstance(warnings_of({"type": "cron", "expression": text}), list)
