"""When notifications are told: soon, together, and then not again for a while."""

from __future__ import annotations

import pytest

from horarium.clock import SECOND, Instant
from horarium.model.channels import Channel, Letter, Told
from horarium.rules.grouping import WAITS_MAX, Item, group
from horarium.testing.values import NOW

OPS = Channel(group_seconds=1, quiet_seconds=60)


def item(seconds: float, number: int = 0, event: str = "failed") -> Item:
    at = NOW + int(seconds * SECOND)
    return Item(
        f"{event}-{number}",
        at,
        Told(event=event, job="nightly", run_id=str(number), fire_at=None, at="", message="no paper"),
    )


def told(items: list[Item], seconds: float, told_at: dict[str, Instant] | None = None) -> Letter | Instant:
    return group(items[0], items[1:], told_at or {}, OPS, "ops", NOW + int(seconds * SECOND))


def test_one_failure_is_told_a_moment_later() -> None:
    assert told([item(0)], 0.5) == NOW + SECOND
    letter = told([item(0)], 1)
    assert isinstance(letter, Letter)
    assert [event.count for event in letter.events] == [1]


def test_a_failure_is_not_held_back_for_as_long_as_more_come() -> None:
    items = [item(number * 0.9, number) for number in range(20)]
    seen = [each for each in items if each.at <= NOW + WAITS_MAX * SECOND]
    assert told(seen[:3], 2) == items[2].at + SECOND
    letter = told(seen, WAITS_MAX)
    assert isinstance(letter, Letter)
    assert [event.count for event in letter.events] == [len(seen)]


@pytest.mark.parametrize(("seconds", "ready"), [(30, False), (61, True)])
def test_after_a_message_its_kind_is_quiet(seconds: float, ready: bool) -> None:
    later = [item(5, number) for number in range(9)]
    found = told(later, seconds, {later[0].kind: NOW + SECOND})
    assert isinstance(found, Letter) == ready
    if isinstance(found, Letter):
        assert [event.count for event in found.events] == [9]
    else:
        assert found == NOW + 61 * SECOND
