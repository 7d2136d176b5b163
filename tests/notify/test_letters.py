"""What a message says of the run that it is about: enough to act on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from horarium.clock import SECOND
from horarium.delivery.letters import check_template, linked, request_of, text_of
from horarium.errors import InvalidRequest
from horarium.model import Disposition, Run, State
from horarium.model.channels import Letter, Told
from horarium.rules.following import OUTPUT_CHARS_MAX, _facts_of
from horarium.testing.values import NOW, a_run


def ended(**changes: Any) -> Run:
    given = {
        "state": State.FAILED,
        "attempt": 3,
        "worker": "db1-4711",
        "started_at": NOW,
        "finished_at": NOW + 4 * SECOND,
    }
    return a_run(1, **{**given, **changes})


def test_a_failed_program_is_told_with_its_exit_code_its_output_and_its_host() -> None:
    result = {"exit_code": 1, "seconds": 4.0, "stdout": "begun\n", "stderr": "no such table: orders\n"}
    assert _facts_of(ended(result=msgspec.json.encode(result)), NOW) == {
        "attempt": 3, "worker": "db1-4711", "seconds": 4.0, "exit_code": 1, "output": "no such table: orders",
    }  # fmt: skip


@pytest.mark.parametrize("result", [None, b"[1]", b'"text"', b'{"stderr": 3}', b'{"rows": 7}'])
def test_a_result_of_no_program_is_not_told(result: bytes | None) -> None:
    assert _facts_of(ended(result=result), NOW) == {"attempt": 3, "worker": "db1-4711", "seconds": 4.0}


def test_long_output_is_cut_at_its_beginning() -> None:
    output = "x" * 5_000 + "the end"
    told = _facts_of(ended(result=msgspec.json.encode({"exit_code": 2, "stdout": output})), NOW)["output"]
    assert (len(told), told[-7:]) == (OUTPUT_CHARS_MAX, "the end")


def test_a_run_that_no_worker_began_has_no_worker_to_tell_of() -> None:
    assert _facts_of(ended(disposition=Disposition.NOT_STARTED), NOW) == {}
    assert _facts_of(a_run(1), NOW) == {}


def test_people_and_programs_read_the_same() -> None:
    told = Told("failed", "dump", "019a", None, "2026-11-22T03:00:05Z", "dump failed: exit code 1",
                attempt=3, worker="db1", seconds=4.2, exit_code=1, output="one\ntwo")  # fmt: skip
    letter = linked(Letter("id", "ops", NOW, (told,)), "https://jobs.example.com/")
    text = text_of(letter)
    for line in (
        "attempt: 3",
        "worker: db1",
        "exit code: 1",
        "after: 4.2 s",
        "see: https://jobs.example.com/runs/019a",
    ):
        assert f"    {line}\n" in text
    assert text.endswith("    output:\n        one\n        two\n")
    (event,) = msgspec.json.decode(request_of(letter, "/", NOW, None).body or b"")["data"]["events"]
    assert event["url"] == "https://jobs.example.com/runs/019a"
    assert {name: event[name] for name in ("attempt", "worker", "seconds", "exit_code", "output")} == {
        "attempt": 3, "worker": "db1", "seconds": 4.2, "exit_code": 1, "output": "one\ntwo",
    }  # fmt: skip


def test_an_event_of_no_run_is_as_it_was() -> None:
    letter = Letter("id", "ops", NOW, (Told("test", None, None, None, "2026-11-22T03:00:05Z", "a test"),))
    assert linked(letter, "https://jobs.example.com").events == letter.events
    (event,) = msgspec.json.decode(request_of(letter, "/", NOW, None).body or b"")["data"]["events"]
    assert set(event) == {"event", "job", "run_id", "fire_at", "at", "message", "count"}


def test_a_channel_words_its_messages_by_a_template() -> None:
    told = Told("failed", 'du"mp', "019a", None, "2026-11-22T03:00:05Z", "dump failed: {{job}}", count=2, seconds=4.2)
    letter = linked(
        Letter("id", "ops", NOW, (told, Told("late", "b", None, None, "", "b is late"))), "https://j.example"
    )
    wanted = 'ops 2 du"mp after 4.2: dump failed: {{job}} https://j.example/runs/019a  {{other}}'
    template = "{{channel}} {{ count }} {{job}} after {{seconds}}: {{message}} {{url}} {{worker}} {{other}}"
    assert text_of(letter, template) == wanted, "a value is not looked at again, a fact that is not there is empty"
    body = request_of(letter, "/", NOW, None, {"text": template, "n": [1, "{{event}}"], "{{job}}": None}).body
    assert msgspec.json.decode(body or b"") == {"text": wanted, "n": [1, "failed"], "{{job}}": None}
    assert text_of(letter, "{{subject}}|{{text}}") == f"dump failed: {{{{job}}}} (and 1 more)|{text_of(letter)}"


def test_a_placeholder_that_is_none_is_refused() -> None:
    check_template({"text": ["{{text}}", "{{ url }}", "{{ }} { {x} } {{1 + 1}} {{{{job}}}} {{"], "a": {"b": {}}})
    for name in ("jobs", "Message", "run-id", "job | upper", "exit code", "count1"):
        with pytest.raises(InvalidRequest) as refused:
            check_template({"text": ["{{text}} {{" + name + "}}"]})
        assert refused.value.message.startswith(f"template: there is no {{{{{name}}}}}; known: channel, subject, text")
    with pytest.raises(InvalidRequest, match=r"\{\{  job  \}\} has too many spaces: one on each side at most"):
        check_template("{{  job  }}")
