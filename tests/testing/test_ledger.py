"""The judge of `tests/proof`: which second deliveries it excuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proof.harness import Fault
from tests.proof.ledger import Ledger
from tests.proof.receiver import Arrival, Reported

SECOND = 1_000_000


def arrival(at: int, attempt: int, token: str) -> Arrival:
    began = at * SECOND
    return Arrival(began, "r", attempt, 0, "j", token, 200, began + 100, serial=attempt)


def run_of(history: list[dict[str, str]], result: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "r", "job": "j", "cause": "schedule", "state": "completed", "history": history, "result": result,
        "fire_at": "1970-01-01T00:00:00Z", "last_fire_at": None, "created_at": "1970-01-01T00:00:00Z",
    }  # fmt: skip


def violations(owners: tuple[str, str], *faults: Fault, tokens: tuple[str, str] = ("1", "2"), **how: Any) -> list[str]:
    """Of a run that the first of these performed at second 10, and the second at 60."""
    arrivals = [arrival(10, 1, tokens[0]), arrival(60, 2, tokens[1])]
    history = [{"message": f"attempt {number} claimed by {owner}"} for number, owner in enumerate(owners, 1)]
    run = run_of(history, {"body": "2"})
    return Ledger({"j": [0]}, [run], arrivals, faults=faults, **how).judge().violations()


@pytest.mark.parametrize("kind", ["held", "cut", "silent", "stalled"])
def test_a_store_that_stands_still_is_no_reason_to_perform_again_what_one_has_performed(kind: str) -> None:
    fault = Fault(kind, None, 10 * SECOND, 50 * SECOND)
    (said,) = violations(("n1", "n1"), fault)
    assert f"{kind} is no reason" in said
    assert violations(("n1", "n2"), fault) == [], "another node could not know"


@pytest.mark.parametrize("kind", ["kill", "pause", "terminate"])
def test_who_was_struck_itself_may_have_forgotten(kind: str) -> None:
    assert violations(("n1", "n1"), Fault(kind, "n1", 10 * SECOND, 50 * SECOND)) == []


def test_a_node_that_is_paused_within_a_write_stops_all_that_share_its_file() -> None:
    fault = Fault("pause", "n2", 10 * SECOND, 50 * SECOND)
    assert len(violations(("n1", "n2"), fault)) == 1
    assert violations(("n1", "n2"), fault, one_file=True) == []
    assert len(violations(("n1", "n1"), fault, one_file=True)) == 1


def test_who_is_struck_while_an_outage_keeps_its_outcome_from_the_store_may_have_forgotten() -> None:
    outage = Fault("immediate", None, 11 * SECOND, 20 * SECOND)
    assert violations(("n1", "n1"), outage, Fault("kill", "n1", 21 * SECOND, 21 * SECOND)) == []
    assert len(violations(("n1", "n1"), outage, Fault("kill", "n1", 30 * SECOND, 30 * SECOND))) == 1, "much later"
    assert len(violations(("n1", "n1"), Fault("kill", "n1", 21 * SECOND, 21 * SECOND))) == 1, "without an outage"


@pytest.mark.parametrize("kind", ["pause", "starved"])
def test_who_wakes_up_with_an_outcome_in_its_hands_has_not_forgotten_it(kind: str) -> None:
    outage = Fault("immediate", None, 11 * SECOND, 20 * SECOND)
    still = Fault(kind, "n1", 21 * SECOND, 26 * SECOND)
    (said,) = violations(("n1", "n1"), outage, still)
    assert "again by it" in said
    assert violations(("n1", "n2"), outage, still) == [], "another node could not know"
    assert violations(("n1", "n1"), outage, still, tokens=("1", "3")) == [], "another claim was made between"
    assert violations(("n1", "n1"), Fault(kind, "n1", 10 * SECOND + 200, 26 * SECOND)) == [], (
        "before it read the answer"
    )


def test_an_end_that_the_store_took_and_forgot_is_performed_again() -> None:
    """What was promised within two seconds before a loss of power was not on the disk; the claim, a moment earlier,
    was."""
    loss = Fault("power loss", None, 12 * SECOND + 50, 12 * SECOND + 60)
    assert violations(("n1", "n1"), loss) == []
    late = Fault("power loss", None, 12 * SECOND + 150, 12 * SECOND + 160)
    assert len(violations(("n1", "n1"), Fault("cut", None, 11 * SECOND, 12 * SECOND), late)) == 1


def completed_twice(tokens: tuple[int, int], *faults: Fault) -> list[str]:
    """Of a run that was given out at seconds 10 and 15 under these tokens, and reported at 16 and 17: both were told
    that it is completed."""
    given = [Arrival(at * SECOND, "r", 1, 0, "j", str(token)) for at, token in zip((10, 15), tokens, strict=True)]
    reports = [Reported("r", token, 200, at * SECOND, at * SECOND) for at, token in zip((16, 17), tokens, strict=True)]
    run = run_of([], {"token": tokens[1]})
    return Ledger({"j": [0]}, [run], given, reports, faults).judge().violations()


def test_a_token_that_the_store_forgot_and_gave_out_again_is_one_to_it() -> None:
    """The store lost its power after it gave the run out and before either report."""
    loss = Fault("power loss", None, 11 * SECOND, 12 * SECOND)
    assert completed_twice((1, 1), loss) == []
    assert len([said for said in completed_twice((1, 2), loss) if "dup_done" in said]) == 1, "two tokens"
    for fault in ("killed", 10), ("power loss", 13), ("power loss", 5):
        struck = Fault(fault[0], None, fault[1] * SECOND, fault[1] * SECOND)
        assert len([said for said in completed_twice((1, 1), struck) if "dup_done" in said]) == 1, fault


def test_a_token_that_only_one_was_given_is_reported_once() -> None:
    """The store lost its power, but the run was not given out a second time."""
    loss = Fault("power loss", None, 11 * SECOND, 12 * SECOND)
    given = [Arrival(10 * SECOND, "r", 1, 0, "j", "1")]
    reports = [Reported("r", 1, 200, at * SECOND, at * SECOND) for at in (16, 17)]
    verdict = Ledger({"j": [0]}, [run_of([], {"token": 1})], given, reports, [loss]).judge()
    assert len(verdict.dup_done) == 1
