"""What the work of a world says, and whether its logs hold it: of each run its own lines alone, those of one attempt in
the order in which they were said, each once, within the bounds; and none is missing that is not said to be left out.

A line carries the run, the token and its number in its text, so that the log itself is judged. What a node has not
written when it dies is lost; of an attempt that ended by its own word, nothing is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from horarium.clock import Instant
from horarium.model import Run, fraction
from horarium.model.logs import LOG_BYTES_MAX, LogLine
from horarium.operations.runs.logs import Logs, _book, _lines, _name, _text_name
from horarium.operations.runs.pings import STREAM
from horarium.rules.logbook import CUT
from horarium.stores.memory.space import Beside
from horarium.testing.simulate.trace import Trace

LOUD, LOUD_LINES, LOUD_CHARS = 0.1, 45, 7_900
"""How many attempts say more than a log may hold."""
LINES_MAX = 12
OVERHEAD = 1.1
"""Streams and instants are kept beside texts."""
_LEFT_OUT = re.compile(r"\[([\d,]+) lines left out\]")
_SAID = re.compile(r"(\S+) (\d+) (\d+) \.*", re.ASCII)


Named = tuple[str, Instant]
"""A run, and when it was made: one that was pruned may be made again under its id."""


class Node(Protocol):
    """What takes lines."""

    dead: bool


class Attempt(Struct):
    """What one attempt said: how many lines, and how many of them must be kept. `nodes`: where they were said."""

    lines: int = 0
    sure: int = 0
    nodes: list[Node] = []

    @property
    def kept_min(self) -> int:
        """How many must be in the log, or be said to be left out: all, where those who took them are alive."""
        return self.lines if self.nodes and not any(node.dead for node in self.nodes) else self.sure


class Said:
    """The books."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._attempts: dict[Named, dict[int, Attempt]] = defaultdict(dict)

    # ---- said lines

    def next_lines(self, run: Run, node: Node | None = None) -> list[str]:
        """What an attempt says next; to this node, which writes it when it comes to it."""
        run_id, token = run.id, run.token
        attempt = self._attempts[_named(run)].setdefault(token, Attempt())
        if node is not None:
            attempt.nodes.append(node)
        dice = fraction(run_id, token, attempt.lines, "lines")
        loud = dice < LOUD
        count = LOUD_LINES if loud else 1 + int(dice * LINES_MAX)
        first, attempt.lines = attempt.lines, attempt.lines + count
        padding = "." * (LOUD_CHARS if loud else 1)
        return [f"{run_id} {token} {number} {padding}" for number in range(first, first + count)]

    def is_sure(self, run: Run) -> None:
        """All that this attempt has said by now is kept: it was acknowledged."""
        attempt = self._attempts[_named(run)][run.token]
        attempt.sure = attempt.lines

    def completed(self, run: Run, lines: Sequence[LogLine]) -> None:
        """A run completed by the word of a node that nothing had happened to: then its log has all that it said."""
        attempt = self._attempts[_named(run)].get(run.token)
        if attempt is None or not attempt.nodes or any(line.stream == CUT for line in lines):
            return
        there = {(said[2], said[3]) for line in lines if (said := _SAID.fullmatch(line.text))}
        for number in range(attempt.lines):
            if (str(run.token), str(number)) not in there:
                self._trace.fail(f"run {run.id} is completed, and line {number} that it said is not in its log")
                return

    # ---- kept lines

    async def check(self, logs: Logs, runs: dict[str, Run]) -> int:
        """Read every log, and compare. How many lines were read."""
        read = 0
        for (run_id, created_at), attempts in list(self._attempts.items()):
            if run_id in runs and runs[run_id].created_at == created_at:
                lines = await _all_lines(logs, run_id)
                read += len(lines)
                self._judge(run_id, attempts, lines)
        return read

    def _judge(self, run_id: str, attempts: dict[int, Attempt], lines: list[LogLine]) -> None:
        kept: dict[int, list[int]] = defaultdict(list)
        left_out = 0
        for line in lines:
            if line.stream == CUT and (cut := _LEFT_OUT.fullmatch(line.text)):
                left_out += int(cut[1].replace(",", ""))
            elif said := _SAID.fullmatch(line.text):
                if said[1] != run_id:
                    self._trace.fail(f"the log of run {run_id} holds a line of run {said[1]}")
                kept[int(said[2])].append(int(said[3]))
            elif line.stream != STREAM:  # a ping's words are a person's
                self._trace.fail(f"the log of run {run_id} holds a line that was never said: {line.text[:80]!r}")
        for token, numbers in kept.items():
            if numbers != sorted(set(numbers)):
                self._trace.fail(f"run {run_id}, token {token}: lines are out of order, or there twice: {numbers}")
        size = sum(len(line.text) for line in lines)
        if size > LOG_BYTES_MAX * OVERHEAD:
            self._trace.fail(f"the log of run {run_id} has {size} bytes")
        said_in_all = sum(attempt.lines for attempt in attempts.values())
        missing = sum(len(set(range(attempt.kept_min)) - set(kept[token])) for token, attempt in attempts.items())
        if missing > left_out and not self._trace.clock_stepped:  # a step may make a log look too old to be kept
            self._trace.fail(
                f"run {run_id}: {missing} lines are missing, and the log says that {left_out} are left out"
            )
        if len(attempts) == 1 and left_out + sum(map(len, kept.values())) > said_in_all:
            self._trace.fail(f"run {run_id} said {said_in_all} lines; {left_out} of them are said to be left out")


def _named(run: Run) -> Named:
    return run.id, run.created_at


def kept_lines(run: Run, beside: Beside) -> list[LogLine]:
    """The log of the run as it is stored at this instant."""
    stored = beside.records.get(_name(run.created_at, run.id))
    if stored is None:
        return []
    book = _book(stored)
    texts = [beside.records.get(_text_name(book, chunk)) for chunk in book.chunks]
    lines = [line for text in texts for line in _lines(text)]
    whole = len(lines) + len(book.tail) == book.lines
    return [*lines, *book.tail] if whole else [LogLine(0, CUT, "cut")]


async def _all_lines(logs: Logs, run_id: str) -> list[LogLine]:
    lines: list[LogLine] = []
    after = 0
    while True:
        page = await logs.read(run_id, after, 200)
        lines += page.lines
        if page.next_line is None or not page.lines:
            return lines
        after = page.next_line
