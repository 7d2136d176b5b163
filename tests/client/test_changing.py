"""Runs as they change, against a whole server. What happens between two looks is done in the wait for the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from horarium.client import Client
from horarium.client.changing import watch_run, watch_runs
from horarium.errors import NotFound

HOURLY = {"type": "interval", "every_seconds": 3600}
Step = Callable[[], object]


class Over(Exception):
    """The last step was done, and a look had followed it."""


def stepwise(*steps: Step) -> Callable[[float], None]:
    """Each wait does the next step; the one after the last ends the watch."""
    left = iter(steps)

    def wait(seconds: float) -> None:
        step = next(left, None)
        if step is None:
            raise Over
        step()

    return wait


def define(client: Client, name: str, **fields: object) -> None:
    client.put_job({"name": name, "trigger": HOURLY, "target": {"type": "queue", "queue": name}, **fields})


def seen(client: Client, *steps: Step, **filters: Any) -> list[tuple[str | None, str, int]]:
    told: list[tuple[str | None, str, int]] = []
    runs = watch_runs(client, wait=stepwise(*steps), **filters)
    with pytest.raises(Over):
        told.extend((run.job, run.state, run.attempt) for run in runs)
    return told


def finish(client: Client, queue: str) -> None:
    (run,) = client.claim([queue], 1, "w", 10)
    assert run.lease
    client.complete(run.id, run.lease.token)


def test_runs_are_shown_as_they_change(client: Client) -> None:
    define(client, "shown")
    client.trigger_job("shown")
    finish(client, "shown")  # over before the first look: not shown
    client.trigger_job("shown")
    told = seen(
        client,
        lambda: client.claim(["shown"], 1, "w", 10),
        lambda: client.trigger_job("shown"),
        lambda: finish(client, "shown"),
        lambda: None,
        job="shown",
    )
    assert told == [
        ("shown", "pending", 0),
        ("shown", "running", 1),
        ("shown", "pending", 0),
        ("shown", "completed", 1),
    ]


def test_only_what_is_looked_for(client: Client) -> None:
    define(client, "one")
    define(client, "other")
    steps = [lambda name=name: client.trigger_job(name) for name in ("one", "other")]
    ends = [lambda name=name: finish(client, name) for name in ("one", "other")]
    assert seen(client, *steps, *ends, queue="pull/other", states=["completed"]) == [("other", "completed", 1)]


def test_a_run_that_is_deleted_meanwhile_is_forgotten(client: Client) -> None:
    define(client, "deleted")
    client.trigger_job("deleted")
    told = seen(client, lambda: client.delete_job("deleted"), lambda: None, job="deleted")
    assert told[0] == ("deleted", "pending", 0)
    assert {state for _, state, _ in told[1:]} <= {"cancelled"}


def test_one_run_is_shown_until_it_is_over(client: Client) -> None:
    define(client, "single", retry={"attempts_max": 1})
    run = client.trigger_job("single")

    def fail() -> None:
        (claimed,) = client.claim(["single"], 1, "w", 10)
        assert claimed.lease
        client.fail(claimed.id, claimed.lease.token, "no paper")

    told = [(each.state, each.error) for each in watch_run(client, run.id, wait=stepwise(lambda: None, fail))]
    assert told[0] == ("pending", None)
    assert told[-1] == ("failed", "no paper")
    with pytest.raises(NotFound):
        next(watch_run(client, "00000000-0000-7000-8000-000000000000"))
