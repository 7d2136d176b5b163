"""A claimed run without a server: when its lease is looked at again, and what its end is called."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec import UNSET

from horarium.client import ClaimedRun, Client, Failure, Worker
from horarium.client.claimed import failed
from tests.client.test_shell_commands import claimed

LEASE, PACE = 30.0, 10.0


def beaten(run: ClaimedRun, now: float, seconds: float) -> float:
    """When the run is looked at next, once a beat at `now` was answered with a lease of `seconds` since the claim."""
    first = claimed({"command": ["x"]}, 1).view.lease.expires_at  # type: ignore[union-attr]
    run.beat_at = now + PACE
    run.renewed(first + timedelta(seconds=seconds - LEASE), now)
    return run.beat_at


def test_a_lease_is_looked_at_each_third_of_it_and_just_when_it_can_not_be_renewed_any_more() -> None:
    """The server extends it up to the run's time limit, here 43 s, and no further. By the heartbeat after that another
    attempt may have begun elsewhere."""
    run = claimed({"command": ["x"]}, 1)
    assert (run.lease_ends, run.beat_at) == (LEASE, PACE)
    assert [beaten(run, now, seconds) for now, seconds in ((10, 40), (20, 43), (30, 43), (40, 43))] == [20, 30, 40, 43]
    assert run.lease_ends == 43


def test_a_lease_that_seems_to_be_over_is_not_asked_about_without_a_pause() -> None:
    run = claimed({"command": ["x"]}, 1)
    assert beaten(run, 35, 31) == 36


@pytest.mark.parametrize(
    ("asked", "outcome", "text"),
    [
        ([], "failed", "ValueError: no (at "),
        (["cancel"], "cancelled", "stopped when asked to: no"),
        (["give_up"], "failed", "its worker stopped: no"),
        (["cancel", "give_up"], "cancelled", "stopped when asked to: no"),
        (["give_up", "cancel"], "cancelled", "stopped when asked to: no"),
    ],
)
def test_only_a_cancel_that_was_asked_for_is_told_as_one(asked: list[str], outcome: str, text: str) -> None:
    run = claimed({"command": ["x"]}, 1)
    for how in asked:
        getattr(run, how)()
    try:
        raise ValueError("no")
    except ValueError as error:
        report = failed(run, error)
    assert run.cancel_requested.is_set() == bool(asked)
    assert (report.outcome, report.retryable) == (outcome, True)
    said = report.reason if outcome == "cancelled" else report.error
    assert isinstance(said, str)
    assert said.startswith(text)


@pytest.mark.parametrize("retryable", [True, False])
def test_a_failure_is_told_with_exactly_its_text_and_result(retryable: bool) -> None:
    report = failed(claimed({"command": ["x"]}, 1), Failure("no paper", retryable=retryable, result={"tray": 2}))
    assert (report.outcome, report.error, report.retryable) == ("failed", "no paper", retryable)
    assert report.result == {"tray": 2}


@pytest.mark.parametrize(
    ("asked", "looks", "outcome", "text"),
    [
        ("cancel", True, "cancelled", "stopped when asked to: it returned"),
        ("cancel", False, "completed", None),
        ("give_up", True, "failed", "its worker stopped: it returned"),
        ("give_up", False, "completed", None),
    ],
)
def test_who_returns_after_he_has_seen_the_request_has_stopped(
    asked: str, looks: bool, outcome: str, text: str | None
) -> None:
    def perform(run: ClaimedRun) -> None:
        getattr(run, asked)()
        assert not looks or (run.cancel_requested.wait(0) and run.cancel_requested.is_set())

    with Client("http://127.0.0.1:1") as client:
        report = Worker(client, ["queue"], perform)._attempt(claimed({"command": ["x"]}, 1))
    said = report.reason if outcome == "cancelled" else report.error
    assert (report.outcome, None if said is UNSET else said) == (outcome, text)
