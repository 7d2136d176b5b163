"""The line of an error that says it, and errors of one kind."""

from __future__ import annotations

import pytest

from horarium.rules.error_lines import error_line, error_sort, first_line

TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 3, in work\n    pay(7)\nValueError: no account 7\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, ""),
        ("", ""),
        (" \n ", ""),
        ("exit code 1", "exit code 1"),
        ("\n refused\nby the bank", "refused"),
        (TRACEBACK, "ValueError: no account 7"),
        (TRACEBACK.partition("\n")[2] + "\n \n", "ValueError: no account 7"),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
    ],
)
def test_the_line_that_says_an_error(text: str | None, line: str) -> None:
    assert error_line(text) == line


def test_a_long_line_is_cut() -> None:
    assert first_line("x" * 160) == "x" * 160
    assert first_line("x" * 161) == "x" * 159 + "\u2026"
    assert error_line(TRACEBACK, 10) == "ValueErro\u2026"


def test_errors_of_one_kind_differ_in_numbers_and_ids() -> None:
    one, other = "no account 7 for 0x7f3a at 01890a5d-ac96-774b", "no account 12 for 0xAB at 11890a5d-bc96-774b"
    assert error_sort(one) == error_sort(other) == error_sort(f"{TRACEBACK.rpartition('ValueError')[0]}{one}")
    assert error_sort(one) != error_sort("no invoice 7 for 0x7f3a at 01890a5d-ac96-774b")
