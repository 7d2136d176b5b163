"""The recurrence suite: as large as it says, answered by our engine, and fair to others."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from horarium.errors import InvalidSetting
from horarium.testing.conformance.rules import Answer, Case, folder, judged, read, score
from tests.blackbox.outside import horarium

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "conformance" / "recurrence"
ADAPTERS = ROOT / "conformance" / "adapters"
pytestmark = pytest.mark.slow


def program(name: str) -> list[str]:
    return [sys.executable, str(ADAPTERS / f"{name}.py")]


def raw(suite: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (SUITE / f"{suite}.jsonl").read_text().splitlines()]


def test_the_suite_is_as_large_as_it_says_and_each_case_has_its_origin() -> None:
    sizes = {suite: len(raw(suite)) for suite in ("rrule", "cron", "dst", "disputed")}
    assert sizes["rrule"] >= 3_000
    assert sizes["cron"] >= 300
    assert sizes["dst"] >= 200
    assert sizes["disputed"] >= 60
    for suite in sizes:
        for case in raw(suite):
            assert "source" in case or len(case["derived"]) >= 2, case  # type: ignore[arg-type]
    assert {case["level"] for case in raw("cron")} == {f"OCPS 1.{n}" for n in range(5)}
    assert all("reason" in case and "others" in case for case in raw("disputed"))
    ids = Counter(case["id"] for suite in sizes for case in raw(suite))
    assert max(ids.values()) == 1


def test_our_engine_answers_every_case_as_expected() -> None:
    done = horarium("conformance", "rules", "--json", "--", *program("ours"))
    told = json.loads(done.stdout)
    assert (done.returncode, told["right"]) == (0, told["cases"])
    assert told["cases"] > 3_500


def test_our_engine_sides_with_rfc_5545_where_engines_disagree_and_not_with_ocps_on_stars() -> None:
    scores = {each.name: each for each in score(program("ours"), SUITE, ["disputed"])}
    assert scores["disputed"].right == scores["disputed"].cases
    assert scores["disputed OCPS 1.1"].right == 0


def test_a_library_is_judged_by_the_kinds_that_it_answers() -> None:
    done = horarium("conformance", "rules", "--suite", "cron", "--show", "1", "--", *program("cronsim_patterns"))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert "  150 of   150  cron OCPS 1.0" in lines
    assert any(line.startswith("        found    Bad day-of-week") for line in lines)


def test_a_program_that_answers_nothing_or_is_not_there_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="ended with status 0 after 0 answers"):
        score(["true"], SUITE, ["dst"])
    with pytest.raises(InvalidSetting, match="can't be started"):
        score(["/no/such/program"], SUITE, ["dst"])
    with pytest.raises(InvalidSetting, match=r"no rrule\.jsonl"):
        folder(str(tmp_path))
    assert folder(str(SUITE)) == SUITE


def test_an_answer_is_compared_as_instants() -> None:
    case = Case(id="a", kind="cron", rule="0 0 * * *", zone="UTC", after="", count=2, expected=["2026-01-01T00:00:00Z"])
    assert judged(case, Answer("a", ["2026-01-01T01:00:00+01:00"])) is None
    for wrong in (["2026-01-01T00:00:01Z"], ["2026-01-01T00:00:00"], ["tomorrow"], [], ["2026-01-01T00:00:00Z"] * 2):
        assert judged(case, Answer("a", wrong)) is not None
    assert judged(case, None) is not None
    refused = Case(id="a", kind="cron", rule="60 * * * *", zone="UTC", after="", count=1, refused=True)
    assert judged(refused, Answer("a", error="no such minute")) is None
    assert judged(refused, Answer("a", [])) is not None
    assert judged(refused, None) is not None
    assert len(read(SUITE / "dst.jsonl")) >= 200
