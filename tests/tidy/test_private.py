"""Nothing private of another package is used: a release of it may rename that without a word."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

import pytest

from tests.tidy.source import OURS, Module

pytestmark = pytest.mark.slow

PROTOCOLS = "uvicorn.protocols"
OF_TUPLES = frozenset({"_replace", "_fields", "_make", "_asdict"})
"""Documented, underscore or not."""
KNOWN = {
    # The event loop of the parent in a forked child: asyncio has no way to leave it without touching the parent's.
    "library/forks.py": {"_csock", "_internal_fds", "_make_self_pipe", "_ssock"},
    # Answers and messages that leave in one write: the client sends each by itself, for three times the CPU.
    "buses/nats.py": {"_conn", "_send_command"},
    "buses/nats_publisher.py": {"_flush_pending", "_send_command"},
    # Types that a connection would ask the server for, one statement each.
    "stores/postgres/connect.py": {"_protocol"},
    # Idle connections that are dropped without an await, so that no call takes one of them meanwhile.
    "stores/redis/server.py": {"_available_connections"},
}
"""What there is. It may become less."""


def private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def imports(module: Module) -> Iterator[tuple[str, list[str]]]:
    """Modules that are imported, and the names that are taken from each."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)


def defined() -> set[str]:
    """Private names that a module of ours gives to something."""
    found = set()
    for module in OURS:
        found |= {node.name for node in module.defined}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found |= {node.attr} if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") else set()
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)  # of a class
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)  # of __slots__
    return found


def test_no_private_name_is_imported() -> None:
    found = {
        f"{module.name}: {source} {names}"
        for module in OURS
        for source, names in imports(module)
        if source.partition(".")[0] != "horarium" and any(map(private, [*source.split("."), *names]))
    }
    assert found == set()


def test_no_further_private_attribute_is_used() -> None:
    ours, found = defined(), dict[str, set[str]]()
    for module in OURS:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and private(node.attr) and node.attr not in ours | OF_TUPLES:
                found.setdefault(module.name.removeprefix("src/horarium/"), set()).add(node.attr)
    assert found == KNOWN


def test_one_module_knows_the_protocol_of_the_http_server() -> None:
    found = {module.name for module in OURS for source, _ in imports(module) if source.startswith(PROTOCOLS)}
    assert found == {"src/horarium/server/connections.py"}


def test_what_is_imported_is_declared() -> None:
    """Of the server's packages: none is there by luck, as a part of another."""
    gone = {"litestar", "aiohttp", "httpx", "yaml", "multidict"}
    roots = {source.partition(".")[0] for module in OURS for source, _ in imports(module)}
    assert roots.isdisjoint(gone)
    assert {"starlette", "uvicorn", "httptools"} <= roots - set(sys.stdlib_module_names)
