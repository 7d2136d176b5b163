"""Lines of runs on their way to the server, and the cost of a program that prints without end."""

from __future__ import annotations

from typing import Any, cast

import pytest

from horarium.client import Client, lines
from horarium.client.lines import Feed, Lines
from horarium.client.watching import Line
from horarium.errors import Outage
from horarium.model.logs import LOG_BYTES_MAX, LogLine
from horarium.rules.backlog import FIRST_BYTES
from horarium.rules.logbook import LINE_BYTES, left_out_by
from horarium.testing import ManualClock

CHUNK = b"y\n" * 32_768
CHUNKS = 100


class Run:
    """The run that says something."""

    id, token = "R", 1


class Paper:
    """The call of a client that sends lines. `away`: the server does not answer."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.away = False

    def log(self, run_id: str, token: int, lines: list[Line], **options: Any) -> None:
        if self.away:
            raise Outage("no answer")
        self.lines += lines


def sent(paper: Paper) -> Lines:
    return Lines(cast(Client, paper), ManualClock(0))


def flood(to: Lines, chunks: int = CHUNKS) -> None:
    feed = Feed(lambda text: to.add(Run(), "stdout", text))
    for _ in range(chunks):
        feed.add(CHUNK)
    feed.close()


def test_of_a_flood_of_short_lines_no_more_is_taken_apart_than_a_log_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    paper, taken = Paper(), list[str]()

    def as_text(text: str) -> str:
        taken.append(text)
        return text

    monkeypatch.setattr(lines, "as_text", as_text)
    to = sent(paper)
    to.add(Run(), "stdout", "the first\n")
    flood(to)
    to.add(Run(), "stdout", "the last")
    assert not taken
    to.sent(Run())
    assert len(taken) < 100_000
    assert sum(len(line.text) + len(line.stream) + LINE_BYTES for line in paper.lines) <= LOG_BYTES_MAX + 100
    assert [paper.lines[0].text, paper.lines[-1].text] == ["the first", "the last"]
    (gap,) = [index for index, line in enumerate(paper.lines) if line.stream == "horarium"]
    assert gap >= FIRST_BYTES // (LINE_BYTES + len("stdout") + 1) - 1
    left_out = CHUNKS * 32_768 + 2 - (len(paper.lines) - 1)
    assert paper.lines[gap].text == f"[{left_out:,} lines left out]"


def test_a_flood_in_an_outage_is_counted_once() -> None:
    paper = Paper()
    to = sent(paper)
    flood(to)
    paper.away = True
    assert not to._send(("R", 1))
    flood(to)
    paper.away = False
    to.sent(Run())
    gaps = [line for line in paper.lines if line.stream == "horarium"]
    left_out = sum(left_out_by(LogLine(0, line.stream, line.text)) for line in gaps)
    assert left_out + len(paper.lines) - len(gaps) == 2 * CHUNKS * 32_768


def test_blank_lines_are_lines_and_returns_are_none() -> None:
    paper = Paper()
    to = sent(paper)
    feed = Feed(lambda text: to.add(Run(), "stdout", text))
    for chunk in (b"a\r\n\n\n", b"b\r", b"\n", b"c"):
        feed.add(chunk)
    feed.close()
    to.sent(Run())
    assert [line.text for line in paper.lines] == ["a", "", "", "b", "c"]
