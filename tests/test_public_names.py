"""The names that people import."""

from __future__ import annotations

import horarium


def test_every_public_name_can_be_imported() -> None:
    assert all(getattr(horarium, name).__name__ for name in horarium.__all__)
