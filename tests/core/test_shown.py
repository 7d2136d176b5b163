"""The text of a job that was shown is kept for as long as the very same job is shown, within a number of bytes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from horarium.model import Job
from horarium.wire import views
from horarium.wire.definitions import job_from, read_definition
from horarium.wire.views import job_text

NOW = 1_800_000_000_000_000


def a_job(number: int, **changes: Any) -> Job:
    fields = {
        "name": f"job-{number}",
        "trigger": {"type": "interval", "every_seconds": 60},
        "target": {"type": "queue", "queue": "q", "payload": {"n": number}},
    }
    made = read_definition({**fields, **changes})
    return job_from(made, id=f"id-{number}", now=NOW, check_target=lambda target: None)


def test_each_value_of_a_job_is_shown_as_it_is() -> None:
    # Equal to Python, and other JSON: an equal value is not the same one.
    first, second = a_job(1, labels={"a": "b"}), a_job(1, title="another")
    whole, broken = (
        replace(first, target=msgspec.structs.replace(first.target, payload=value)) for value in ({"n": 1}, {"n": 1.0})
    )
    assert whole == broken
    for _ in range(2):
        for job in (first, second, whole, broken):
            assert bytes(job_text(job)) == msgspec.json.encode(views.job_view(job))


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [a_job(number) for number in range(20)]
    room = 5 * 2 * len(bytes(job_text(jobs[10])))
    monkeypatch.setattr(views, "_shown", {})
    monkeypatch.setattr(views, "_shown_bytes", 0)
    monkeypatch.setattr(views, "SHOWN_BYTES_MAX", room)
    for job in jobs:
        job_text(job)
        assert views._shown_bytes == sum(2 * len(bytes(text)) for _, text, _ in views._shown.values()) <= room
    assert 3 <= len(views._shown) <= 6
    assert (jobs[-1].id, jobs[-1].version) in views._shown
    large = a_job(50, target={"type": "queue", "queue": "q", "payload": "x" * room})
    assert len(bytes(job_text(large))) > room
    assert (large.id, large.version) not in views._shown


def test_a_kept_text_is_given_again() -> None:
    job = a_job(60)
    assert job_text(job) is job_text(job)
