"""Nothing is there that nothing uses, and nothing is written by hand that has a name."""

from __future__ import annotations

import ast
import re
from collections import Counter
from itertools import pairwise

import pytest

from tests.tidy.source import ALL, OURS, PACKAGE, WORD, Function, Module

pytestmark = pytest.mark.slow

FOR_OTHERS = {
    "error_seconds": "how sure a clock is, for what watches it",
    "new_secret": "documented: programs make their signing secrets with it",
    "wait_closed": "uvicorn awaits it of what listens",
    "main_loop": "uvicorn runs it",
    "capture_signals": "overrides uvicorn's",
    "on_response_complete": "overrides uvicorn's",
    "format_commands": "overrides click's",
    "get_command": "overrides click's",
    "format_options": "overrides click's",
    "data_received": "overrides asyncio's",
    "eof_received": "overrides asyncio's",
    "emit": "overrides logging's",
    "generate_span_id": "overrides OpenTelemetry's",
    "generate_trace_id": "overrides OpenTelemetry's",
    "is_trace_id_random": "overrides OpenTelemetry's",
    "collect": "called by prometheus_client",
    "do_GET": "answers of http.server",
    "log_message": "overrides http.server's",
    "redirect_request": "overrides urllib's",
    "_process_events": "overrides asyncio's",
    "_write_to_self": "overrides asyncio's",
    "teardown": "overrides Hypothesis's",
    "HorariumConfig": "found by Django",
    "ready": "called by Django",
    "Command": "found by Django",
    "add_arguments": "called by Django",
    "handle": "called by Django",
    "_worker": "a part of a command, called by its name",
    "_check": "a part of a command, called by its name",
    "_declare": "a part of a command, called by its name",
    "changelist_view": "overrides Django's",
    "has_add_permission": "overrides Django's",
    "has_change_permission": "overrides Django's",
    "has_delete_permission": "overrides Django's",
    "scheduler_of": "documented: a dependency of routes",
    "enqueue_on_commit": "documented: called by views",
    "pytest_addoption": "called by pytest",
    "hour_text": "a filter of the dashboard's templates, as all functions beside it",
    "_horarium_memory": "a fixture of pytest, for every test",
    "_horarium_memory_of_fixtures": "a fixture of pytest, around all tests",
}
"""Names in the package that nothing in the package uses."""
RULES_OF = ("testing/contract/machine.py", "testing/contract/belonging.py")
"""Hypothesis calls what is decorated there."""
FETCHING_ONE = re.compile(r"\.(fetchval|fetchrow)\(")
"""asyncpg prepares such a statement by itself, which a pooler in front of PostgreSQL can't keep."""


def test_every_constant_function_and_class_is_used() -> None:
    words = Counter(WORD.findall("\n".join(_texts())))
    unused = {
        f"{module.name}: {name}"
        for module in OURS
        if not module.name.endswith(RULES_OF)
        for name in _names(module)
        if words[name] < 2 and not name.startswith(("__", "test_")) and name not in FOR_OTHERS
    }
    assert unused == set()


def test_what_is_kept_for_others_is_there() -> None:
    there = {name for module in OURS for name in _names(module)}
    assert set(FOR_OTHERS) <= there


def test_a_constant_of_a_test_is_used() -> None:
    words = Counter(WORD.findall("\n".join(module.text for module in ALL)))
    unused = {
        f"{module.name}: {name}"
        for module in ALL
        if module not in OURS
        for name in module.constants()
        if words[name] < 2 and name not in {"pytestmark", "__all__"}
    }
    assert unused == set()


def test_a_constant_is_described_once() -> None:
    """A second text in a row belongs to a constant that has moved."""
    doubled = {
        f"{module.name}:{second.lineno}"
        for module in OURS
        for first, second in pairwise(module.tree.body)
        if isinstance(first, ast.Expr) and isinstance(second, ast.Expr)
    }
    assert doubled == set()


def test_a_name_is_imported_from_where_it_is() -> None:
    """`ports` alone passes names on: to those who write a store of their own."""
    passed_on = re.compile(r"^from .* import (\w+) as \1$", re.MULTILINE)
    found = {module.name for module in OURS if module.path.name != "__init__.py" and passed_on.search(module.text)}
    assert found == {"src/horarium/ports.py"}


def test_seconds_become_microseconds_in_one_place() -> None:
    by_hand = re.compile(r"\* 1_000_000\b|\* 10\*\*6\b|\* 1e6\b")
    assert {
        module.name for module in OURS if by_hand.search(module.text) and module.path != PACKAGE / "clock.py"
    } == set()


def test_no_statement_is_prepared_behind_our_back() -> None:
    found = {module.name for module in OURS if "stores" in module.name and FETCHING_ONE.search(module.text)}
    assert found == set()


def _texts() -> list[str]:
    return [path.read_text() for path in PACKAGE.rglob("*") if path.suffix in {".py", ".sql", ".lua"}]


def _names(module: Module) -> set[str]:
    return {
        *module.constants(),
        *(node.name for node in module.functions if not _is_called_by_row(node)),
        *(node.name for node in module.classes),
    }


def _is_called_by_row(function: Function) -> bool:
    """True if it is a command of a group, or at a row of a table of routes: its name is used there alone."""
    named = {ast.unparse(decorator).partition("(")[0] for decorator in function.decorator_list} - {"click.command"}
    return any(name.endswith((".command", "Endpoint", "Page")) for name in named)
