"""Key templates: resolved from what is known of a run when it is made, and an error that names what is missing."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from horarium.errors import InvalidJob, InvalidRequest
from horarium.model import Cause, Disposition, HandlerTarget, QueueTarget, State
from horarium.policies import Concurrency, Rate
from horarium.rules.editing import plan_now
from horarium.rules.keys import Source, check_template, keyed, resolve
from horarium.rules.overridden import Owed
from horarium.rules.planning import owed_run, planned_run
from horarium.testing.values import NOW, a_job

TARGET = QueueTarget("images", {"customer": "acme", "a": {"b": [7, True]}, "empty": "", "none": None})
JOB = a_job(name="resize", target=TARGET, labels={"team.x": "blue"}, rate=(Rate(1, 1.0, key="api:{payload.customer}"),))


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("plain text", "plain text"),
        ("{job}/{queue}", "resize/images"),
        ("{label.team.x}", "blue"),
        ("api:{payload.customer}:{payload.a.b.0}", "api:acme:7"),
        ("{args.a.b.1}", "true"),
        ("{unknown}", "{unknown}"),
    ],
)
def test_a_key_is_made_of_what_the_run_is(template: str, key: str) -> None:
    made = keyed(owed_run(JOB, NOW, NOW, Cause.SCHEDULE), replace(JOB, rate=(Rate(1, 1.0, key=template),)))
    assert made.rates[0].key == key


@pytest.mark.parametrize("part", ["payload.nobody", "payload.a", "payload.empty", "payload.none", "label.other"])
def test_what_is_missing_is_named(part: str) -> None:
    source = Source("resize", "pull/images", {}, TARGET, None)
    with pytest.raises(InvalidRequest, match=rf"rate\[0\]\.key: {{{part}}} of the key"):
        resolve(f"x{{{part}}}", source, "rate[0].key")


@pytest.mark.parametrize("template", ["{playload.x}", "{payload}", "{label}", "{payload.}", "a{b", "}"])
def test_a_key_that_can_never_be_made_is_refused_with_the_job(template: str) -> None:
    with pytest.raises(InvalidJob, match="key"):
        check_template(template, "rate[0].key")


def test_the_payload_of_the_run_counts_before_that_of_its_job() -> None:
    run = owed_run(JOB, NOW, NOW, Cause.MANUAL, json.dumps({"customer": "zeta"}).encode())
    assert run.rates[0].key == "api:zeta"
    _, now = plan_now(JOB, [], NOW, b'{"customer":"eta"}')
    assert now.rates[0].key == "api:eta"


def test_a_planned_run_without_its_key_is_missed_and_says_why_and_one_asked_for_is_refused() -> None:
    job = a_job(target=HandlerTarget("h"), concurrency=Concurrency("{args.tenant}", 2))
    run = planned_run(job, Owed(NOW, Cause.SCHEDULE), NOW)
    assert (run.state, run.disposition) == (State.SKIPPED, Disposition.MISSED)
    assert run.error == "concurrency.key: {args.tenant} of the key '{args.tenant}' is missing in this run"
    with pytest.raises(InvalidRequest):
        owed_run(job, NOW, NOW, Cause.MANUAL)
    assert owed_run(job, NOW, NOW, Cause.MANUAL, b'{"tenant":5}').concurrency_key == "5"
