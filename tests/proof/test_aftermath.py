"""What follows from ends, and what the audit says, while servers are killed (`tests.proof.aftermath`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.aftermath import ONCE_PER_SECOND, settle

pytestmark = pytest.mark.slow

SECONDS = 15
FAILING_MIN = 500
LATE_SECONDS_MAX = 2.0


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis-always", "mongo"])
def test_what_follows_is_written_once_and_every_change_is_told(kind: str, tmp_path: Path) -> None:
    account = settle(kind, tmp_path, SECONDS, seed=7)
    print(f"{kind}: {account}")
    account.must_hold()
    assert account.failed >= (4 + ONCE_PER_SECOND) * SECONDS
    assert account.entries > 20


def test_a_message_comes_within_two_seconds_of_the_failure(tmp_path: Path) -> None:
    """With nothing killed. Five jobs fail every second, and five single runs, of which a channel is told that has the
    usual settings: it waits for more of the same for a second."""
    account = settle("sqlite", tmp_path, FAILING_MIN // 5, seed=8, kill=False)
    print(f"quiet: {account}")
    account.must_hold()
    for channel in ("hook", "usual"):
        assert len(account.late_seconds[channel]) >= FAILING_MIN
        assert account.late(channel, 0.99) < LATE_SECONDS_MAX
