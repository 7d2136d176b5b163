"""Pages without a server, and one who visits them."""

from __future__ import annotations

import pytest

from tests.api.conftest import Api
from tests.dashboard.visitor import Visitor


@pytest.fixture
def api() -> Api:
    return Api(pages=True)


@pytest.fixture
def visitor(api: Api) -> Visitor:
    return Visitor(api)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a busy machine waits for its forecast, as long as that takes."""
    for name in ("PATIENCE_SECONDS", "IN_VIEW_SECONDS"):
        monkeypatch.setattr(f"horarium.dashboard.foresight.{name}", 60.0)
