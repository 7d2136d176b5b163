"""When notifications are told: soon, together, and then not again for a while."""

from __future__ import annotations

from typing import Any

import pytest

from horarium.clock import SECOND, Instant, to_text
from horarium.model.channels import MEMBERS_MAX, Channel, Letter, Told
from horarium.rules.grouping import WAITS_MAX, Item, group
from horarium.testing.values import NOW

OPS = Channel(group_seconds=1, quiet_seconds=60)


def item(seconds: float, number: int = 0, event: str = "failed") -> Item:
    at = NOW + int(seconds * SECOND)
    return Item(
        f"{event}-{number}",
        at,
        Told(event=event, job="nightly", run_id=str(number), fire_at=None, at=to_text(at), message="no paper"),
    )


def told(
    items: list[Item], seconds: float, told_at: dict[str, Instant] | None = None, channel: Channel = OPS, **more: Any
) -> Letter | Instant:
    return group(items[0], items[1:], told_at or {}, channel, "ops", NOW + int(seconds * SECOND), **more)


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


@pytest.mark.parametrize("left", [1, 2])
def test_a_letter_has_members_up_to_the_most(left: int) -> None:
    """`left`: for how many of two successes there is room. (The first failure is no member: it carries the others.)"""
    failed = [item(0, number) for number in range(1 + MEMBERS_MAX - left)]
    letter = told([*failed, item(0, 1, "succeeded"), item(0, 2, "succeeded")], 9)
    assert isinstance(letter, Letter)
    assert sorted(event.count for event in letter.events) == [left, len(failed)]


@pytest.mark.parametrize(("seconds", "ready"), [(30, False), (61, True)])
def test_after_a_message_its_kind_is_quiet(seconds: float, ready: bool) -> None:
    later = [item(5, number) for number in range(9)]
    found = told(later, seconds, {later[0].kind: NOW + SECOND})
    assert isinstance(found, Letter) == ready
    if isinstance(found, Letter):
        assert [event.count for event in found.events] == [9]
    else:
        assert found == NOW + 61 * SECOND


@pytest.mark.parametrize(
    ("event", "minutes"),
    [("failed", 60), ("attempt_failed", 60), ("late", 60), ("missed", 60), ("completed", 1), ("approval_wanted", 1)],
)
def test_troubles_are_quiet_for_an_hour_and_what_is_none_for_a_minute(event: str, minutes: int) -> None:
    second = item(30, event=event)
    found = told([second], 31, {second.kind: NOW}, Channel())
    assert found == NOW + minutes * 60 * SECOND


@pytest.mark.parametrize(("event", "at_once"), [("failed", True), ("not_started", True), ("attempt_failed", False)])
def test_a_failure_after_a_success_is_told_at_once(event: str, at_once: bool) -> None:
    second = item(30, event=event)
    noted = {second.kind: NOW}
    found = told([second], 31, noted, Channel(), succeeded={"nightly": NOW + 20 * SECOND})
    assert isinstance(found, Letter) == at_once
    if isinstance(found, Letter):
        assert found.events[0].message == "no paper"
    assert told([second], 31, noted, Channel(), succeeded={"nightly": NOW - SECOND}) == NOW + 3600 * SECOND
    assert told([second], 31, noted, Channel(), succeeded={"hourly": NOW + 20 * SECOND}) == NOW + 3600 * SECOND


def test_a_failure_that_waited_while_the_job_worked_again_says_so() -> None:
    waited = [item(30), item(90, 1)]
    letter = told(waited, 3600, {waited[0].kind: NOW}, Channel(), succeeded={"nightly": NOW + 100 * SECOND})
    assert isinstance(letter, Letter)
    assert letter.events[0].message == "no paper (2 times); it has worked since"
