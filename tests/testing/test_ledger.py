"""The judge of `tests/proof`: which second deliveries it excuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proof.harness import Fault
from tests.proof.ledger import Ledger
from tests.proof.receiver import Arrival

SECOND = 1_000_000


def arrival(at: int, attempt: int) -> Arrival:
    began = at * SECOND
    return Arrival(began, "r", attempt, 0, "j", str(attempt), 200, began + 100, serial=attempt)


def violations(owners: tuple[str, str], *faults: Fault, **how: Any) -> list[str]:
    """Of a run that the first of these performed at second 10, and the second at 60."""
    history = [{"message": f"attempt {number} claimed by {owner}"} for number, owner in enumerate(owners, 1)]
    run = {
        "id": "r", "job": "j", "cause": "schedule", "state": "completed", "history": history, "result": {"body": "2"},
        "fire_at": "1970-01-01T00:00:00Z", "last_fire_at": None, "created_at": "1970-01-01T00:00:00Z",
    }  # fmt: skip
    return Ledger({"j": [0]}, [run], [arrival(10, 1), arrival(60, 2)], faults=faults, **how).judge().violations()


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


def test_an_end_that_the_store_took_and_forgot_is_performed_again() -> None:
    """What was promised within two seconds before a loss of power was not on the disk; the claim, a moment earlier,
    was."""
    loss = Fault("power loss", None, 12 * SECOND + 50, 12 * SECOND + 60)
    assert violations(("n1", "n1"), loss) == []
    late = Fault("power loss", None, 12 * SECOND + 150, 12 * SECOND + 160)
    assert len(violations(("n1", "n1"), Fault("cut", None, 11 * SECOND, 12 * SECOND), late)) == 1
