"""What is printed: nothing that could steer a terminal, and tables of one line a row."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import msgspec
import pytest
from click import unstyle

from horarium.cli.output import Column, cell, json_text, one_line, print_table, printable
from horarium.policies import CatchUp, CatchUpPolicy

HOSTILE = "\x1b[2Jhello\x1b]52;c;cHduZWQ=\x07\r\nfake\x9b31m\u202egnp"


def test_control_characters_never_reach_a_terminal() -> None:
    for text in (printable(HOSTILE), one_line(HOSTILE), cell(HOSTILE), cell({"a": HOSTILE}), json_text([HOSTILE])):
        assert not [c for c in text.replace("\n", "") if not c.isprintable()]
    assert "\n" not in one_line(HOSTILE)


def test_json_still_holds_what_it_held() -> None:
    assert msgspec.json.decode(json_text([HOSTILE])) == [HOSTILE]


class Screen(StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def screen(monkeypatch: pytest.MonkeyPatch, columns: int, zone: str = "UTC") -> Iterator[Screen]:
    shown = Screen()
    monkeypatch.setattr("sys.stdout", shown)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TZ", zone)
    import time

    time.tzset()
    try:
        yield shown
    finally:
        monkeypatch.undo()
        os.environ.pop("TZ", None)
        time.tzset()


COLUMNS = (Column("id", whole=True, id=True), Column("next_fire_at", when=True, title="next"), Column("rule"))


def rows(count: int = 2) -> list[dict[str, Any]]:
    soon = datetime.now(UTC) + timedelta(minutes=3, seconds=20)
    ids = (f"01a200a8-7633-7236-a711-d1a2885b7{i:03}" for i in range(count))
    return [{"id": id, "next_fire_at": soon, "rule": "every weekday " * 20} for id in ids]


def test_a_row_is_one_line_however_long_its_values_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(monkeypatch, 100) as shown:
        print_table(COLUMNS, rows(), "none")
        lines = unstyle(shown.getvalue()).splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 100
    assert lines[0].split() == ["ID", "NEXT", "UTC", "RULE"]
    assert "in 3 min" in lines[1]


def test_a_row_is_one_line_in_a_pipe_too(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [{"id": "a", "next_fire_at": None, "rule": "first\nsecond"}], "none")
    assert capsys.readouterr().out.splitlines()[1:] == ["a                 first second"]


def test_elsewhere_than_in_utc_local_time_is_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(monkeypatch, 100, "Asia/Kolkata") as shown:
        print_table(COLUMNS, rows(), "none")
        head = unstyle(shown.getvalue()).splitlines()[0]
    assert head.split() == ["ID", "NEXT", "LOCAL", "UTC", "RULE"]


def test_ids_are_as_long_as_tells_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(monkeypatch, 100) as shown:
        print_table(COLUMNS, rows(1), "none")
        assert unstyle(shown.getvalue()).splitlines()[1].split()[0] == "01a200a8-7633"
    with screen(monkeypatch, 140) as shown:
        print_table(COLUMNS, rows(2), "none")
        assert unstyle(shown.getvalue()).splitlines()[2].split()[0] == "01a200a8-7633-7236-a711-d1a2885b7001"


def test_a_wide_column_needs_a_wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = (Column("name"), Column("worker", wide=True))
    for width, there in ((100, False), (120, True)):
        with screen(monkeypatch, width) as shown:
            print_table(columns, [{"name": "a", "worker": "w1"}], "none")
            assert ("WORKER" in unstyle(shown.getvalue())) is there


def test_a_policy_is_a_cell_without_what_it_does_not_have() -> None:
    assert cell(CatchUp()) == '{"policy":"latest","window_seconds":null}'
    asks = CatchUp(CatchUpPolicy.ASK, within_seconds=60)
    assert cell(asks) == '{"policy":"ask","window_seconds":null,"then":"latest","within_seconds":60}'
