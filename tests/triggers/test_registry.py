"""The registry: JSON to trigger, with errors that say where and what is near."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horarium.errors import InvalidTrigger
from horarium.triggers import Trigger, parse_trigger, registry
from tests.searching import tries

CRON = {"type": "cron", "expression": "0 3 * * *"}


@pytest.mark.parametrize(
    ("spec", "field", "said"),
    [
        (None, "trigger", "expected an object"),
        ("0 3 * * *", "trigger", "expected an object"),
        ([], "trigger", "expected an object"),
        ({}, "trigger.type", "expected one of cron"),
        ({"type": 5}, "trigger.type", "not 5"),
        ({"type": "crom"}, "trigger.type", "did you mean 'cron'"),
        ({"type": "x" * 100_000}, "trigger.type", "is not known"),
        ({"type": "cron"}, "trigger.expression", "is missing"),
        ({"type": "cron", "expresion": "0 3 * * *"}, "trigger.expression", "did you mean 'expression'"),
        ({**CRON, "expression": 5}, "trigger.expression", "not 5"),
        ({**CRON, "timezon": "UTC"}, "trigger.timezon", "did you mean 'timezone'"),
        ({**CRON, "timezone": "Europe/Berln"}, "trigger.timezone", "Europe/Berlin"),
        ({**CRON, "timezone": 1}, "trigger.timezone", "not 1"),
        ({**CRON, "day_match": "both"}, "trigger.day_match", "'any' or 'all'"),
        ({**CRON, "gap": "shif"}, "trigger.gap", "did you mean 'shift'"),
        ({**CRON, "repeat": []}, "trigger.repeat", "a list"),
        ({**CRON, "seed": "s" * 201}, "trigger.seed", "at most 200"),
        ({"type": "interval", "every": 5}, "trigger.every_seconds", "'every' is not a field"),
        ({"type": "interval", "every_seconds": 60, "anchor": "now"}, "trigger.anchor", "with an offset"),
        ({"type": "phrase", "text": ["every day"]}, "trigger.text", "a list"),
        ({"type": "any_of", "triggers": []}, "trigger.triggers", "a list of triggers"),
        ({"type": "any_of", "triggers": [CRON, {"type": "once"}]}, "trigger.triggers[1].at", "is missing"),
        ({"type": "between", "trigger": CRON}, "trigger.from", "from, until or both"),
        ({"type": "except", "trigger": CRON, "except": [{"dates": ["x"]}]}, "trigger.except[0].dates[0]", "2026-12-25"),
        ({"type": "except", "trigger": CRON, "except": [{"date": ["x"]}]}, "trigger.except[0].date", "'dates'"),
    ],
)
def test_errors_name_the_field_and_what_is_near(spec: object, field: str, said: str) -> None:
    with pytest.raises(InvalidTrigger) as caught:
        parse_trigger(spec)
    assert caught.value.field == field
    assert said in str(caught.value)
    assert len(str(caught.value)) < 500


def test_the_place_of_the_trigger_can_be_named() -> None:
    with pytest.raises(InvalidTrigger) as caught:
        parse_trigger({**CRON, "expression": "61 * * * *"}, field="jobs[3].trigger")
    assert caught.value.field == "jobs[3].trigger.expression"
    assert caught.value.position == 0


def test_null_counts_as_absent() -> None:
    assert parse_trigger({**CRON, "timezone": None}) == parse_trigger(CRON)


def test_nesting_is_bounded_however_deep_the_json_goes() -> None:
    spec: dict[str, Any] = CRON
    for _ in range(10_000):
        spec = {"type": "any_of", "triggers": [spec]}
    with pytest.raises(InvalidTrigger, match="nest deeper than 8"):
        parse_trigger(spec)


def test_a_package_adds_a_type_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lunar_triggers.py").write_text(
        "from horarium.triggers import Once\n"
        "class FullMoon(Once):\n"
        "    type = 'full_moon'\n"
        "    @classmethod\n"
        "    def from_spec(cls, spec):\n"
        "        return cls(spec.instant('near'))\n"
    )
    info = tmp_path / "lunar-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lunar\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\nfull_moon = lunar_triggers:FullMoon\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._load_foreign.cache_clear()
    trigger = parse_trigger({"type": "full_moon", "near": "2026-12-24T00:00:00Z"})
    assert type(trigger).__name__ == "FullMoon"
    assert isinstance(trigger, Trigger)
    nested = parse_trigger({"type": "any_of", "triggers": [{"type": "full_moon", "near": "2026-12-24T00:00:00Z"}]})
    assert nested.spec()["triggers"][0]["at"] == "2026-12-24T00:00:00Z"
    assert "lunar_triggers" in sys.modules
    assert EntryPoint("full_moon", "lunar_triggers:FullMoon", registry.GROUP).load() is type(trigger)
    registry._load_foreign.cache_clear()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
FIELDS = [
    "expression",
    "timezone",
    "day_match",
    "gap",
    "repeat",
    "seed",
    "every_seconds",
    "anchor",
    "at",
    "text",
    "triggers",
    "trigger",
    "except",
    "from",
    "until",
    "dates",
    "weekdays",
    "for_seconds",
    "rule",
]
NAMES = st.sampled_from(["cron", "interval", "once", "phrase", "any_of", "except", "between", "what"])


@tries(300)
@given(NAMES, st.dictionaries(st.sampled_from(FIELDS), JSON | st.just(CRON) | st.just([CRON])))
def test_no_json_gives_anything_but_a_trigger_or_invalid_trigger(name: str, fields: dict[str, Any]) -> None:
    trigger = refused = None
    try:
        trigger = parse_trigger({**fields, "type": name})
    except InvalidTrigger as error:
        refused = error
    if trigger is not None:
        assert parse_trigger(trigger.spec()) == trigger
        assert trigger.words()
    if refused is not None:
        assert (refused.field or "").startswith("trigger")
        assert len(str(refused)) < 1000
