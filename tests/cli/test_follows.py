"""`--on`: what follows from the runs of a job, as flags say it."""

from __future__ import annotations

import click
import pytest

from horarium.cli.follows import follows_of


def test_flags_say_what_follows() -> None:
    texts = ["failed=notify:ops,after=3", "late=notify:ops,seconds=5m", "completed=trigger:report,payload=result"]
    assert follows_of(texts) == {
        "failed": [{"notify": "ops", "after": 3}],
        "late": [{"notify": "ops", "seconds": 300}],
        "completed": [{"trigger": "report", "payload": "result"}],
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("late=notify:ops", "late after how long? Such as late=notify:ops,seconds=5m"),
        ("later=notify:ops", "'later' is no event; give one of completed, failed"),
        ("failed=ops", "says no action; give one such as failed=notify:ops, late=notify:ops,seconds=5m"),
        ("failed=notify:ops,soon=1", "is none of after=3, seconds=5m and payload=result"),
    ],
)
def test_a_flag_that_says_too_little_is_told_how(text: str, said: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        follows_of([text])
    assert said in refused.value.message
