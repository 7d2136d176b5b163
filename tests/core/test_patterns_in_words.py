"""Every pattern that a text of people must match is said in words, with an example where that helps."""

from __future__ import annotations

import importlib
import pkgutil
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import horarium
from horarium.api.calendars import DaysQuery
from horarium.model.secrets import SecretRef
from horarium.triggers.words import PATTERNS_IN_WORDS
from horarium.wire.faults import find_faults

SAID_OTHERWISE = ("horarium.server.config", "horarium.api.triggers_schema")
"""Settings have words of their own; triggers are described by these types, and read by others."""


def _patterns(hint: Any) -> Iterator[str]:
    parts: tuple[Any, ...] = (*typing.get_args(hint), *getattr(hint, "__metadata__", ()))
    for each in parts:
        if isinstance(each, msgspec.Meta):
            if each.pattern is not None:
                yield each.pattern
        else:
            yield from _patterns(each)


def _below(kind: type) -> Iterator[type]:
    kinds: list[type] = kind.__subclasses__()
    for each in kinds:
        yield each
        yield from _below(each)


def test_every_pattern_has_words() -> None:
    for package in ("api", "model", "wire", "access"):
        root = importlib.import_module(f"horarium.{package}")
        for module in pkgutil.iter_modules(root.__path__):
            importlib.import_module(f"{horarium.__name__}.{package}.{module.name}")
    found = {
        pattern: f"{struct.__module__}.{struct.__qualname__}.{name}"
        for struct in _below(msgspec.Struct)
        if struct.__module__.startswith("horarium.") and not struct.__module__.startswith(SAID_OTHERWISE)
        if "<locals>" not in struct.__qualname__
        for name, hint in _hints(struct)
        for pattern in _patterns(hint)
    }
    assert len(found) > 15
    assert {pattern: where for pattern, where in found.items() if pattern not in PATTERNS_IN_WORDS} == {}


def _hints(struct: type) -> list[tuple[str, Any]]:
    try:
        return list(typing.get_type_hints(struct, include_extras=True).items())
    except (NameError, TypeError):  # one that is for type checkers alone
        return []


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (DaysQuery, {"since": "tomorrow"}, "since: expected a day, such as 2027-12-24"),
        (
            SecretRef,
            {"secret": "env;PG"},
            "secret: expected where the secret is, such as env:PGPASSWORD or file:pgpassword",
        ),
    ],
)
def test_a_fault_says_the_form_with_an_example(kind: Any, value: dict[str, str], words: str) -> None:
    (fault,) = find_faults(value, kind)
    assert f"{fault.field}: {fault.message}" == words
