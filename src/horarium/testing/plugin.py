"""The plugin for pytest: it is there once Horarium is installed, and does nothing until a test asks for it.

`horarium_memory` (a fixture): every scheduler that the program has made is on an empty store in memory during the test.
`horarium_memory = true` (in pytest's configuration): so it is in every test, whether that asks or not, and around them,
for fixtures of a module or of the session.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

OPTION = "horarium_memory"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option in pytest's configuration."""
    parser.addini(OPTION, "Every test finds all schedulers on empty stores in memory.", type="bool", default=False)


@pytest.fixture
def horarium_memory() -> Iterator[None]:
    """Every scheduler that was made before the test is on an empty store in memory until its end."""
    from horarium.testing.swapping import in_memory

    with in_memory():
        yield


@pytest.fixture(autouse=True, scope="session")
def _horarium_memory_of_fixtures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fixtures that outlast a test have none of its stores."""
    with ExitStack() as stack:
        if request.config.getini(OPTION):
            from horarium.testing.swapping import in_memory

            stack.enter_context(in_memory())
        yield


@pytest.fixture(autouse=True)
def _horarium_memory(request: pytest.FixtureRequest) -> None:
    if request.config.getini(OPTION):
        request.getfixturevalue("horarium_memory")
