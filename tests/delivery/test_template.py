"""Placeholders are text, nothing more."""

from time import process_time

import pytest

from horarium.delivery.template import DEPTH_MAX, NAMES, render, render_text

VALUES = {
    "run.id": "0190",
    "run.fire_at": "2026-01-01T00:00:00Z",
    "run.due_at": "2026-01-01T00:00:01Z",
    "run.attempt": "2",
    "run.token": "7",
    "job.name": "nightly",
    "report.url": "http://me/api/v1/runs/0190",
    "report.key": "hrk_x",
}


def test_every_known_name_is_replaced() -> None:
    assert {name: render_text(f"<{{{{{name}}}}}>", VALUES) for name in NAMES} == {
        n: f"<{v}>" for n, v in VALUES.items()
    }


@pytest.mark.parametrize(
    "text", ["{{7*7}}", "{{run}}", "{{run.tokens}}", "{{job.name|upper}}", "{{{run.ID}}}", "{%x%}"]
)
def test_what_is_not_a_known_name_stays(text: str) -> None:
    assert render_text(text, VALUES) == text


def test_one_space_inside_the_braces_is_taken() -> None:
    assert render_text("{{ run.id }}", VALUES) == "0190"


def test_a_replaced_value_is_not_looked_at_again() -> None:
    assert render_text("{{job.name}}", {**VALUES, "job.name": "{{run.id}}"}) == "{{run.id}}"


def test_strings_are_replaced_at_any_depth_and_keys_are_not() -> None:
    given = {"{{run.id}}": ["{{run.id}}", {"a": "x{{run.attempt}}", "b": 1, "c": None, "d": True}]}
    assert render(given, VALUES) == {"{{run.id}}": ["0190", {"a": "x2", "b": 1, "c": None, "d": True}]}


def test_nesting_beyond_the_limit_is_left_as_it_is() -> None:
    value: object = "{{run.id}}"
    for _ in range(2_000):
        value = [value]
    deep = render(value, VALUES)
    for _ in range(DEPTH_MAX + 1):
        deep = deep[0]
    assert deep is not None


@pytest.mark.parametrize("text", ["{{" * 200_000, "{{ run." * 100_000, "{{run.id}" * 50_000])
def test_time_is_linear_in_hostile_text(text: str) -> None:
    begun = process_time()
    render_text(text, VALUES)
    assert process_time() - begun < 1
