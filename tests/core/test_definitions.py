"""Definitions: what is refused, what is kept, and what unchanged content does."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from horarium.clock import DAY, SECOND, to_text
from horarium.errors import InvalidJob, InvalidTrigger
from horarium.model import NO_HEALTH, PAYLOAD_BYTES_MAX, HttpTarget, Job
from horarium.wire.definitions import (
    JobDefinition,
    definition_of,
    job_from,
    kept_definition,
    read_definition,
    with_definition,
)
from horarium.wire.masking import SECRET_SHOWN
from horarium.wire.patches import merge_patch, patch_definition
from horarium.wire.views import HealthView, JobView, healthy_text, job_view

NOW = 1_767_571_200 * SECOND
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def fields(**changes: Any) -> dict[str, Any]:
    return {
        "name": "job",
        "trigger": {"type": "interval", "every_seconds": 60},
        "target": {"type": "http", "url": "http://example.org", "signing_secret": SECRET},
        **changes,
    }


def a_job(**changes: Any) -> Job:
    return job_from(read_definition(fields(**changes)), id="id", now=NOW, check_target=lambda target: None)


def again(job: Job, given: dict[str, Any], now: int = NOW + DAY) -> Job:
    return with_definition(job, read_definition(given), now=now, check_target=lambda target: None)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "with space"}, "name"),
        ({"priority": 1_001}, "priority"),
        ({"priority": "5"}, "priority"),
        ({"jitter_seconds": -1}, "jitter_seconds"),
        ({"fires_max": 0}, "fires_max"),
        ({"retry": {"attempts_max": 0}}, "retry.attempts_max"),
        ({"retry": {"attempts": 3}}, "retry.attempts"),
        ({"overlap": "maybe"}, "overlap"),
        ({"unknown": 1}, "unknown"),
        ({"starts_at": "2026-01-01T00:00:00"}, "starts_at"),
        ({"labels": {str(index): "" for index in range(65)}}, "labels"),
        ({"concurrency": {"key": "k", "max": 0}}, "concurrency.max"),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(changes: dict[str, Any], field: str | None) -> None:
    with pytest.raises(InvalidJob) as caught:
        read_definition(fields(**changes))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"trigger": {"type": "once", "at": to_text(NOW)}}, InvalidTrigger),
        ({"ends_at": to_text(NOW + SECOND)}, InvalidTrigger),
        ({"starts_at": to_text(NOW + DAY), "ends_at": to_text(NOW + DAY)}, InvalidJob),
        ({"starts_at": "1969-12-31T00:00:00Z"}, InvalidJob),
        ({"target": {"type": "queue", "queue": "q", "payload": "x" * PAYLOAD_BYTES_MAX}}, InvalidJob),
    ],
)
def test_a_job_that_can_never_be_right_is_refused(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        a_job(**changes)


def test_a_job_defined_paused_fires_nothing_until_resumed() -> None:
    job = a_job(enabled=False)
    assert (job.next_fire_at, job.paused_at) == (None, NOW)


def test_a_job_defined_paused_may_have_a_rule_that_fires_no_more() -> None:
    job = a_job(enabled=False, trigger={"type": "once", "at": to_text(NOW)})
    assert (job.next_fire_at, job.paused_at) == (None, NOW)


def test_unchanged_content_gives_the_same_job_whenever_it_is_sent() -> None:
    job = a_job()
    assert again(job, fields()) == job
    assert again(job, msgspec.to_builtins(definition_of(job))) == job


def test_content_without_enabled_leaves_a_paused_job_paused() -> None:
    job = replace(a_job(), enabled=False, paused_at=NOW)
    assert again(job, fields()) == job


@pytest.mark.parametrize(
    ("sent", "kept"), [(SECRET_SHOWN, SECRET), (None, None), ("whsec_bmV3IHNlY3JldCBmb3IgdGVzdHM=", "new")]
)
def test_a_masked_secret_keeps_the_stored_one(sent: str | None, kept: str | None) -> None:
    target = {"type": "http", "url": "http://example.org", "signing_secret": sent}
    stored = again(a_job(), fields(target=target)).target
    assert isinstance(stored, HttpTarget)
    assert stored.signing_secret == (sent if kept == "new" else kept)


@pytest.mark.parametrize("name", ["Authorization", "Cookie", "X-Api-Key", "x-auth-token"])
def test_a_masked_header_keeps_the_stored_one(name: str) -> None:
    def target(text: str) -> dict[str, Any]:
        return {"type": "http", "url": "http://example.org", "headers": {name: text, "X-Plain": "seen"}}

    job = again(a_job(), fields(target=target("Bearer stored")))
    shown = job_view(job).target
    assert isinstance(shown, HttpTarget)
    assert shown.headers == {name: SECRET_SHOWN, "X-Plain": "seen"}
    assert again(job, fields(target=target(SECRET_SHOWN))) == job
    changed = again(job, fields(target=target("Bearer new"))).target
    assert isinstance(changed, HttpTarget)
    assert changed.headers[name] == "Bearer new"
    with pytest.raises(InvalidJob, match="masked"):
        again(a_job(), fields(target=target(SECRET_SHOWN)))


def test_no_view_shows_a_secret() -> None:
    assert SECRET not in msgspec.json.encode([job_view(a_job()), definition_of(a_job())]).decode()


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": 1}, {"a": None}, {}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"a": [1]}, {"a": [2]}, {"a": [2]}),
        ({"a": 1}, {"b": {"c": None}}, {"a": 1, "b": {}}),
        ({}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}),
    ],
)
def test_a_merge_patch_is_that_of_rfc_7396(target: Any, patch: Any, result: Any) -> None:
    assert merge_patch(target, patch) == result


def test_a_patch_to_another_type_leaves_nothing_of_the_old_one() -> None:
    patched = patch_definition(fields(), {"target": {"type": "queue", "queue": "q"}})
    assert patched["target"] == {"type": "queue", "queue": "q"}


def test_a_patch_within_a_type_keeps_the_rest_of_it() -> None:
    patched = patch_definition(fields(), {"target": {"method": "PUT"}})
    assert patched["target"] == {**fields()["target"], "method": "PUT"}


EVERY_FIELD: dict[str, Any] = {
    "enabled": False,
    "labels": {"a": "b"},
    "catch_up": {"policy": "none"},
    "overlap": "skip",
    "retry": {"attempts_max": 7},
    "timeouts": {"execution_seconds": 9.0},
    "priority": 5,
    "concurrency": {"key": "k", "max": 2},
    "rate": [{"key": "api", "max": 5, "per_seconds": 60.0, "burst": 2}],
    "fair": "{payload.tenant}",
    "jitter_seconds": 1.5,
    "starts_at": to_text(NOW + DAY),
    "ends_at": to_text(NOW + 2 * DAY),
    "fires_max": 11,
    "retention": {"runs_max": 3},
    "title": "Nightly",
    "buffer_max": 4,
    "approval": {"roles": ["admin"], "within_seconds": 60.0, "then": "run", "four_eyes": True},
    "on": {"failed": [{"notify": "ops"}]},
}


def test_every_field_that_its_owner_wrote_is_kept_and_shown() -> None:
    given = fields(**EVERY_FIELD)
    assert set(given) == set(JobDefinition.__struct_fields__), "a new field belongs here, too"
    job = a_job(**EVERY_FIELD)
    kept, shown = (json.loads(msgspec.json.encode(each(job))) for each in (kept_definition, job_view))
    assert kept == given
    spelt = {"catch_up", "retry", "timeouts", "retention", "target", "on"}
    assert {name: shown[name] for name in given if name not in spelt} == {
        name: value for name, value in given.items() if name not in spelt
    }
    assert all(given[name].items() <= shown[name].items() for name in spelt - {"target", "on"})
    health = set(HealthView.__struct_fields__)
    assert set(JobView.__struct_fields__) - set(shown) == {
        "ping_url",
        "overrides",
        "overrides_dropped",
        "missed",
        *health,
    }
    healthy = healthy_text(job, NO_HEALTH)
    assert json.loads(healthy) == {**shown, **dict.fromkeys(health), "failures_in_a_row": 0}
    assert json.loads(healthy) == json.loads(msgspec.json.encode(job_view(job, NO_HEALTH)))


@pytest.mark.parametrize("name", ["catch_up", "retry", "timeouts", "retention"])
def test_a_default_policy_is_left_out_of_what_is_kept_whichever_object_it_is(name: str) -> None:
    job = a_job()
    again = replace(job, **{name: replace(getattr(job, name))})
    assert getattr(again, name) is not getattr(job, name)
    assert msgspec.json.encode(kept_definition(again)) == msgspec.json.encode(kept_definition(job))
    assert msgspec.json.encode(job_view(again)) == msgspec.json.encode(job_view(job))
    assert name not in json.loads(msgspec.json.encode(kept_definition(job)))
