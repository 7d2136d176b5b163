"""One server and one receiver for all tests that do not ask for their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest

from tests.blackbox.outside import Receiver, Server, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Far from UTC on purpose: the machine's own zone must change nothing."""
    store = f"sqlite:///{tmp_path_factory.mktemp('blackbox')}/horarium.db"
    with serving(store, "--allow-private-targets", env={"TZ": "Asia/Kathmandu"}) as server:
        yield server


@pytest.fixture(scope="session")
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of the test's own, for a job, a queue, a path."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-") + "-" + token_hex(3)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/own.db"
