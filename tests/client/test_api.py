"""The client against a whole server: every call, typed both ways."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from horarium import errors
from horarium.client import Client, Report
from horarium.wire.definitions import read_definition
from tests.servers.live import live_server

EVERY_HOUR = {"type": "interval", "every_seconds": 3600}


def job(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "trigger": EVERY_HOUR, "target": {"type": "queue", "queue": name, "payload": 1}, **fields}


def test_a_job_is_made_read_changed_and_ended(client: Client) -> None:
    made = client.create_job(job("life", labels={"team": "a"}))
    assert (made.name, made.labels, made.enabled) == ("life", {"team": "a"}, True)
    assert made.next_fire_at is not None
    with pytest.raises(errors.AlreadyExists):
        client.create_job(job("life"))
    assert client.get_job("life") == made
    assert client.patch_job("life", {"priority": 3}).priority == 3
    assert client.pause_job("life", "wait").pause_reason == "wait"
    assert client.resume_job("life").enabled
    client.delete_job("life")
    with pytest.raises(errors.NotFound):
        client.get_job("life")


def test_putting_the_same_twice_changes_nothing(client: Client) -> None:
    first, created = client.put_job(job("put"))
    again, created_again = client.put_job(job("put"))
    assert (created, created_again) == (True, False)
    assert again == first


def test_jobs_are_imported_as_they_come(client: Client) -> None:
    given = (job(f"import-{number}") for number in range(3))
    assert [(done.name, done.outcome) for done in client.import_jobs(given, dry_run=True)] == [
        ("import-0", "created"), ("import-1", "created"), ("import-2", "created")
    ]  # fmt: skip
    client.put_job(job("import-1"))
    assert [done.outcome for done in client.import_jobs([read_definition(job("import-1"))])] == ["unchanged"]
    odd: list[Any] = [job("import-0"), {"name": "x", "y": object()}, job("import-1"), job("import-2", trigger={})]
    done = list(client.import_jobs(odd))
    assert [each.outcome for each in done] == ["created", "failed", "unchanged", "failed"]
    assert isinstance(done[1].error, errors.InvalidRequest)
    assert isinstance(done[3].error, errors.InvalidTrigger)
    assert list(client.import_jobs([])) == []


def test_a_job_that_is_refused_names_its_field(client: Client) -> None:
    with pytest.raises(errors.InvalidJob) as caught:
        client.create_job(job("x", priority="high"))
    assert caught.value.field == "priority"
    with pytest.raises(errors.InvalidTrigger):
        client.create_job(job("x", trigger={"type": "cron", "expression": "61 * * * *"}))
    with pytest.raises(errors.InvalidRequest, match="name: a job needs one"):
        client.put_job({"trigger": EVERY_HOUR})


def test_lists_go_on_over_pages(client: Client) -> None:
    names = [f"page-{number:03}" for number in range(205)]
    for name in names:
        client.create_job(job(name, labels={"list": "long"}))
    assert [found.name for found in client.list_jobs(labels={"list": "long"})] == names
    assert [found.name for found in client.list_jobs(prefix="page-", limit=3)] == names[:3]
    assert len(list(client.list_jobs(prefix="page-", limit=203))) == 203
    assert list(client.list_jobs(labels={"list": "long"}, enabled=False)) == []


def test_fires_preview_and_backfill(client: Client) -> None:
    client.create_job(job("fires"))
    found = client.fires("fires", 3)
    assert found.fires[1] - found.fires[0] == timedelta(hours=1)
    assert found.words.startswith("every hour")
    start = datetime(2026, 1, 1, tzinfo=UTC)
    daily = client.preview({"type": "cron", "expression": "0 3 * * *"}, start, 2)
    assert daily.fires == [start + timedelta(hours=3), start + timedelta(hours=27)]
    assert client.backfill_job("fires", start, start + timedelta(hours=1)) == []


def test_a_run_is_triggered_claimed_kept_alive_and_completed(client: Client) -> None:
    client.create_job(job("work"))
    asked = client.trigger_job("work", {"n": 1}, unique_key="once")
    assert client.trigger_job("work", {"n": 1}, unique_key="once").id == asked.id
    (claimed,) = client.claim(["work"], 5, "me")
    assert (claimed.id, claimed.payload, claimed.attempt) == (asked.id, {"n": 1}, 1)
    token = claimed.lease.token  # type: ignore[union-attr]
    assert not client.heartbeat(asked.id, token, {"percent": 50}).cancel_requested
    assert client.get_run(asked.id).progress == {"percent": 50}
    assert client.complete(asked.id, token, {"sum": 2}).state == "completed"
    assert client.get_run(asked.id).result == {"sum": 2}
    with pytest.raises(errors.LeaseLost):
        client.fail(asked.id, token, "too late")
    assert client.claim(["work"], 1, "me") == []


def test_a_batch_is_settled_each_for_itself(client: Client) -> None:
    client.create_job(job("batch", retry={"attempts_max": 1}))
    for _ in range(3):
        client.trigger_job("batch")
    runs = client.claim(["batch"], 3, "me")
    tokens = [run.lease.token for run in runs]  # type: ignore[union-attr]
    states = client.settle(
        [
            Report(id=runs[0].id, token=tokens[0], outcome="completed", result=1),
            Report(id=runs[1].id, token=tokens[1], outcome="failed", error="no"),
            Report(id=runs[2].id, token=tokens[2] + 1, outcome="completed"),
        ]
    )
    assert states[:2] == ["completed", "failed"]
    assert isinstance(states[2], errors.LeaseLost)


def test_runs_are_cancelled_retried_and_listed(client: Client) -> None:
    client.create_job(job("again"))
    run = client.trigger_job("again")
    assert client.cancel_run(run.id, "not now").state == "cancelled"
    again = client.retry_run(run.id)
    assert [found.id for found in client.list_runs(job="again", states=["pending"])] == [again.id]
    assert len(list(client.list_runs(job="again", states=["pending", "cancelled"]))) == 2
    assert list(client.list_runs(job="again", until=run.fire_at - timedelta(hours=1))) == []
    assert len(list(client.list_runs(queue="again", since=run.fire_at - timedelta(hours=1), limit=1))) == 1
    with pytest.raises(errors.NotFound):
        client.get_run("00000000-0000-7000-8000-000000000000")


def test_nodes_and_counts(client: Client) -> None:
    assert len(client.nodes()) == 1
    before = client.stats()["jobs"]
    for _ in range(2):
        client.put_job(job("counted"))
        assert client.stats()["jobs"] == before + 1


def test_without_the_key_nothing_is_answered() -> None:
    with live_server(api_keys=["right"]) as server:
        with Client(server.url) as client, pytest.raises(errors.CallerError) as caught:
            client.stats()
        assert caught.value.code == "unauthorized"
        with Client(server.url, "right") as client:
            assert client.stats()["jobs"] == 0
