"""The recurrence suite: cases as data, asked of any program, a line for a line.

The program reads cases as JSON lines on its standard input (`id`, `kind`, `rule`, `zone`, `after`, `count`, and `gap`
where it matters), and writes for each `{"id", "fires": [...]}` with instants in RFC 3339, or `{"id", "error"}` for a
rule that it refuses. The lines may come in any order.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from horarium.errors import InvalidSetting

SUITES = ("rrule", "cron", "dst", "disputed")
ASKED = ("id", "kind", "rule", "zone", "after", "count", "gap")
ANSWER_SECONDS = 600.0
"""How long a program may take for all cases."""
CASES = Path("conformance") / "recurrence"
HERE = Path(__file__)


class Case(Struct, frozen=True, kw_only=True):
    """`expected`: the first `count` fire times after `after`; fewer, where the rule has ended. `refused`: it is to be
    an error instead."""

    id: str
    kind: str
    rule: str
    zone: str
    after: str
    count: int
    expected: list[str] = []
    refused: bool = False
    gap: str | None = None
    level: str | None = None


class Answer(Struct, frozen=True):
    """One line of the program."""

    id: str
    fires: list[str] | None = None
    error: str | None = None


class Miss(Struct, frozen=True):
    """A case that the program answered otherwise."""

    id: str
    rule: str
    zone: str
    after: str
    expected: list[str] | None
    found: list[str] | str


class Score(Struct, frozen=True):
    """How many cases of a suite, or of a level of it, were answered as expected."""

    name: str
    right: int
    cases: int
    missed: list[Miss]


def folder(given: str | None) -> Path:
    """Where the cases are: as given, below this directory, or in the clone that we run from."""
    places = [Path(given)] if given is not None else [CASES, HERE.parents[4] / CASES]
    for place in places:
        if (place / "rrule.jsonl").exists():
            return place
    raise InvalidSetting(
        f"--cases: no rrule.jsonl in {places[0]}; give the folder conformance/recurrence of a clone", field="cases"
    )


def score(command: Sequence[str], place: Path, suites: Sequence[str] = SUITES) -> list[Score]:
    """Ask the program all cases of these suites at once. A kind (`rrule`, `cron`) of which it answers none does not
    count. Raises InvalidSetting for a program that can't be started, that fails, or that says nothing."""
    found = {suite: read(place / f"{suite}.jsonl") for suite in suites}
    answers = _ask(command, [case for cases in found.values() for case in cases])
    scores = []
    kinds = {case.kind for cases in found.values() for case in cases if case.id in answers}
    for suite, all_cases in found.items():
        cases = [case for case in all_cases if case.kind in kinds]
        for name in dict.fromkeys(f"{suite} {case.level}" if case.level else suite for case in cases):
            mine = [case for case in cases if name == (f"{suite} {case.level}" if case.level else suite)]
            missed = [miss for case in mine if (miss := judged(case, answers.get(case.id))) is not None]
            scores.append(Score(name, len(mine) - len(missed), len(mine), missed))
    return scores


def read(path: Path) -> list[Case]:
    return [msgspec.json.decode(line, type=Case) for line in path.read_bytes().splitlines()]


def judged(case: Case, answer: Answer | None) -> Miss | None:
    """None: as expected."""
    if answer is None:
        found: list[str] | str = "no answer"
    elif answer.error is not None or answer.fires is None:
        found = answer.error or "neither fires nor an error"
    else:
        found = answer.fires
    is_right = isinstance(found, str) and answer is not None if case.refused else _same(case.expected, found)
    if is_right:
        return None
    expected = None if case.refused else case.expected
    return Miss(case.id, case.rule, case.zone, case.after, expected, found)


def _same(expected: list[str], found: list[str] | str) -> bool:
    if isinstance(found, str) or len(found) != len(expected):
        return False
    try:
        return [_instant(text) for text in found] == [_instant(text) for text in expected]
    except ValueError:
        return False


def _instant(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text} has no offset")
    return moment.astimezone(UTC)


def _ask(command: Sequence[str], cases: list[Case]) -> dict[str, Answer]:
    lines = [msgspec.json.encode({name: value for name in ASKED if (value := getattr(case, name))}) for case in cases]
    try:
        done = subprocess.run(command, input=b"\n".join(lines) + b"\n", stdout=subprocess.PIPE, timeout=ANSWER_SECONDS)
    except OSError as error:
        message = f"{command[0]!r} can't be started: {error.strerror}; give a program after --"
        raise InvalidSetting(message, field="command") from None
    except subprocess.TimeoutExpired:
        raise InvalidSetting(f"{command[0]!r} took longer than {ANSWER_SECONDS:g} s", field="command") from None
    answers: dict[str, Answer] = {}
    for line in done.stdout.splitlines():
        try:
            answer = msgspec.json.decode(line, type=Answer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        answers[answer.id] = answer
    if not answers or done.returncode != 0:
        raise InvalidSetting(
            f"{command[0]!r} ended with status {done.returncode} after {len(answers)} answers; it reads a case a "
            'line, and writes {"id": ..., "fires": [...]} for each',
            field="command",
        )
    return answers


def summary(scores: Sequence[Score]) -> dict[str, Any]:
    """For `--json`."""
    return {"right": sum(each.right for each in scores), "cases": sum(each.cases for each in scores), "suites": scores}
