"""`--after`: from flags to a trigger."""

from __future__ import annotations

from typing import Any

import click
import pytest

from horarium.cli.job_define import after_of
from horarium.triggers import after, parse_trigger


def test_flags_say_what_the_function_says() -> None:
    flags: dict[str, Any] = {"after": "a, b", "within": "15m", "outcome": "finished", "deadline": 60.0}
    read = parse_trigger(after_of(flags))
    assert read == after("a", "b", within={"seconds": 900}, outcome="finished", deadline=60)
    day = parse_trigger(after_of({"after": "a", "timezone": "Europe/Berlin"}))
    assert day == after("a", timezone="Europe/Berlin")
    assert after_of({"cron": "0 3 * * *"}) is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"after": "a", "cron": "0 3 * * *"}, "--cron belongs to another trigger"),
        ({"after": "a", "calendar": "x"}, "--calendar belongs to another trigger"),
        ({"within": "day"}, "--within belongs to --after"),
        ({"after": "a", "within": "fortnight"}, "'fortnight' is none of hour"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(click.UsageError, match=said):
        after_of(flags)
