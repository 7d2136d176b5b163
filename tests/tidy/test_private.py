"""Nothing private of another package is used: a release of it may rename that without a word."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cache

import pytest

from tests.tidy.source import OURS, Module

pytestmark = pytest.mark.slow

PROTOCOLS = "uvicorn.protocols"
OF_TUPLES = frozenset({"_replace", "_fields", "_make", "_asdict"})
"""Documented, underscore or not."""
KNOWN = {
    # The event loop of the parent in a forked child: asyncio has no way to leave it without touching the parent's.
    "library/home.py": {"_csock", "_internal_fds", "_make_self_pipe", "_ssock"},
    # Answers and messages that leave in one write: the client sends each by itself, for three times the CPU.
    "buses/nats.py": {"_conn", "_send_command"},
    "buses/nats_publisher.py": {"_flush_pending", "_send_command"},
    # Where another thread is at work: documented, for all its name.
    "delivery/blocking.py": {"_current_frames"},
    # The timers of an event loop whose time stands still, and goes on by days.
    "testing/virtual.py": {"_cancelled", "_scheduled", "_timer_cancelled_count"},
    # Types that a connection would ask the server for, one statement each.
    "stores/postgres/connect.py": {"_protocol"},
    # Idle connections that are dropped without an await, so that no call takes one of them meanwhile.
    "stores/redis/server.py": {"_available_connections"},
}
"""What there is. It may become less."""


def private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


@dataclass
class Names:
    """What the modules of the package say, read in one pass."""

    imported: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Of each module: the modules that it imports, and the names that it takes from each."""
    defined: set[str] = field(default_factory=set)
    """Private names that a module of ours gives to something."""
    used: dict[str, set[str]] = field(default_factory=dict)
    """Private attributes that each module asks something for."""

    def read(self, module: Module) -> None:
        imported = self.imported[module.name.removeprefix("src/horarium/")] = {}
        used = self.used[module.name.removeprefix("src/horarium/")] = set()
        for node in ast.walk(module.tree):
            match node:
                case ast.ImportFrom(module=str(source)):
                    imported.setdefault(source, []).extend(alias.name for alias in node.names)
                case ast.Import():
                    imported.update({alias.name: [] for alias in node.names})
                case ast.Attribute(value=ast.Name("self" | "cls"), ctx=ast.Store()):
                    self.defined.add(node.attr)
                case ast.Attribute(attr=attr) if private(attr):
                    used.add(attr)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                    self.defined.add(name)
                case ast.Constant(value=str(text)) if private(text):
                    self.defined.add(text)  # of __slots__


@cache
def names() -> Names:
    found = Names()
    for module in OURS:
        found.read(module)
    return found


def test_no_private_name_is_imported() -> None:
    found = {
        f"{module}: {source} {taken}"
        for module, imported in names().imported.items()
        for source, taken in imported.items()
        if source.partition(".")[0] != "horarium" and any(map(private, [*source.split("."), *taken]))
    }
    assert found == set()


def test_no_further_private_attribute_is_used() -> None:
    known = names().defined | OF_TUPLES
    assert {module: rest for module, used in names().used.items() if (rest := used - known)} == KNOWN


def test_one_module_knows_the_protocol_of_the_http_server() -> None:
    found = {module for module, imported in names().imported.items() if any(s.startswith(PROTOCOLS) for s in imported)}
    assert found == {"server/connections.py"}


def test_packages_that_others_bring_are_not_imported() -> None:
    roots = {source.partition(".")[0] for imported in names().imported.values() for source in imported}
    assert roots.isdisjoint({"anyio", "aiohttp", "attrs", "h11", "httpx", "litestar", "multidict", "yaml"})
