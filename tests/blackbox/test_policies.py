"""Policies, end to end: jobs of a second, workers that are too slow, counts that must come out exactly."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import ceil
from typing import Any

import pytest

from tests.blackbox.outside import Server, SlowWorkers, instant, now, passed
from tests.waiting import eventually

pytestmark = pytest.mark.slow

ALL = {"policy": "all"}
"""So that a planner that is late on a busy machine leaves no fire time out."""
HOLD_SECONDS = 2.3
FIRES = 4

# Fire times 1 to 4 s after the anchor, each run held for 2.3 s.
EXPECTED = {
    "allow": {1: "completed", 2: "completed", 3: "completed", 4: "completed"},
    "skip": {1: "completed", 2: "skipped", 3: "skipped", 4: "completed"},
    "buffer_one": {1: "completed", 2: "completed", 3: "skipped", 4: "completed"},
    "buffer_all": {1: "completed", 2: "completed", 3: "completed", 4: "completed"},
    "cancel_other": {1: "cancelled", 2: "cancelled", 3: "cancelled", 4: "completed"},
    "terminate_other": {1: "cancelled", 2: "cancelled", 3: "cancelled", 4: "completed"},
}


def text(moment: datetime) -> str:
    return moment.isoformat()


def by_slot(runs: list[dict[str, Any]], anchor: datetime, seconds: float = 1) -> dict[int, dict[str, Any]]:
    """Each fire time's run, by its number since the anchor; every one accounted for once."""
    found: dict[int, dict[str, Any]] = {}
    for run in runs:
        first = round((instant(run["fire_at"]) - anchor).total_seconds() / seconds)
        for number in range(first, first + run["fires"]):
            assert number not in found, f"slot {number} twice: {run}"
            found[number] = run
    return found


@pytest.mark.proof
def test_each_overlap_policy_is_arithmetically_exact(server: Server) -> None:
    anchor = (now() + timedelta(seconds=1)).replace(microsecond=0)
    rule = {"type": "interval", "every_seconds": 1, "anchor": text(anchor)}
    for policy in EXPECTED:
        name = f"overlap.{policy}"
        window = {"starts_at": text(anchor + timedelta(seconds=1)), "ends_at": text(anchor + timedelta(seconds=4.5))}
        server.add(name, rule, overlap=policy, **window)
    workers = [SlowWorkers(server, f"overlap.{policy}", HOLD_SECONDS) for policy in EXPECTED]
    try:
        for policy, expected in EXPECTED.items():

            def done(policy: str = policy) -> Any:
                runs = server.runs(f"overlap.{policy}")
                ended = sum(run["fires"] for run in runs if run["finished_at"] is not None)
                return ended >= FIRES and runs

            slots = by_slot(eventually(done), anchor)
            assert {number: run["state"] for number, run in slots.items()} == expected, policy
            dispositions = {run["disposition"] for run in slots.values() if run["state"] == "skipped"}
            assert dispositions <= {"skipped_overlap"}
    finally:
        for worker in workers:
            worker.stop()


def test_run_now_obeys_the_overlap_policy(server: Server, name: str) -> None:
    server.add(name, 3600, overlap="skip")
    first = server("POST", f"/jobs/{name}/trigger")
    assert first["state"] == "pending"
    second = server("POST", f"/jobs/{name}/trigger")
    assert (second["state"], second["disposition"]) == ("skipped", "skipped_overlap")


def test_after_a_crash_each_catch_up_policy_accounts_for_every_fire_time(store: str) -> None:
    crashed = Server(store)
    anchor = now().replace(microsecond=0)
    rule = {"type": "interval", "every_seconds": 1, "anchor": text(anchor)}
    policies: dict[str, dict[str, Any]] = {
        "none": {"policy": "none"},
        "latest": {"policy": "latest"},
        "all": {"policy": "all"},
        "window": {"policy": "all", "window_seconds": 3},
    }
    for name, policy in policies.items():
        crashed.add(name, rule, catch_up=policy)
    eventually(lambda: len(crashed.runs("all")) >= 2)
    crashed.kill()
    killed = now()
    passed(killed + timedelta(seconds=7.5))
    started = now()
    again = Server(store)
    try:
        last = round((started - anchor).total_seconds()) + 2
        slots = {name: _slots_with(last, again, name, anchor) for name in policies}
    finally:
        again.stop()
    for name, found in slots.items():
        assert set(range(min(found), last + 1)) <= set(found), f"{name}: not every slot is accounted for"
    # Slots planned before the crash (up to a second ahead), and slots so fresh that they are on time, are not missed.
    away = range(
        ceil((killed - anchor).total_seconds()) + 1, int((started - timedelta(seconds=3) - anchor).total_seconds())
    )
    assert len(away) >= 2
    ran = {name: [n for n in away if found[n]["state"] != "skipped"] for name, found in slots.items()}
    assert ran["none"] == []
    assert ran["latest"] == []
    assert ran["all"] == list(away)
    assert {slots["none"][n]["disposition"] for n in away} == {"missed"}
    old = [n for n in away if anchor + timedelta(seconds=n) < started - timedelta(seconds=5)]
    assert {slots["window"][n]["disposition"] for n in old} == {"missed"}


def _slots_with(last: int, server: Server, name: str, anchor: datetime) -> dict[int, dict[str, Any]]:
    """The job's runs by slot, once there is one for the last slot."""

    def found() -> dict[int, dict[str, Any]] | None:
        slots = by_slot(server.runs(name), anchor)
        return slots if last in slots else None

    slots: dict[int, dict[str, Any]] = eventually(found)
    return slots


def test_fires_max_ends_a_job(server: Server, name: str) -> None:
    server.add(name, 1, fires_max=2, catch_up=ALL)
    eventually(lambda: server("GET", f"/jobs/{name}")["next_fire_at"] is None)
    assert len(server.runs(name)) == 2
    assert server("GET", f"/jobs/{name}")["fires_count"] == 2


def test_a_job_fires_only_within_its_window(server: Server, name: str) -> None:
    anchor = now().replace(microsecond=0) + timedelta(hours=1)
    starts, ends = anchor + timedelta(seconds=6), anchor + timedelta(seconds=8)
    rule = {"type": "interval", "every_seconds": 1, "anchor": text(anchor)}
    job = server.add(name, rule, starts_at=text(starts), ends_at=text(ends))
    assert instant(job["next_fire_at"]) == starts
    fires = server("GET", f"/jobs/{name}/fires?count=9")["fires"]
    assert [instant(fire) for fire in fires] == [starts, starts + timedelta(seconds=1)]


def test_a_job_whose_window_ends_while_it_fires_ends_with_it(server: Server, name: str) -> None:
    server.add(name, 1, catch_up=ALL)
    first = instant(eventually(lambda: server.runs(name))[0]["fire_at"])
    ends = now() + timedelta(seconds=3)
    ended = instant(server("PATCH", f"/jobs/{name}", {"ends_at": text(ends)})["updated_at"])
    eventually(lambda: server("GET", f"/jobs/{name}")["next_fire_at"] is None)
    fired = [instant(run["fire_at"]) for run in server.runs(name)]
    assert fired == [first + timedelta(seconds=number) for number in range(len(fired))]
    # A busy machine may come too late with it: what was planned by then, a second ahead, has fired.
    assert fired[-1] < max(ends, ended + timedelta(seconds=2))
    assert ends <= fired[-1] + timedelta(seconds=1)


def test_jitter_stays_in_its_bounds_and_is_reproducible(server: Server, name: str) -> None:
    server.add(name, 1, jitter_seconds=0.5, fires_max=3, catch_up=ALL)
    eventually(lambda: len(server.runs(name)) == 3)
    runs = server.runs(name)
    delays = [(instant(run["due_at"]) - instant(run["fire_at"])).total_seconds() for run in runs]
    assert all(0 <= delay <= 0.5 for delay in delays)
    assert len(set(delays)) > 1
    assert delays == [(instant(run["due_at"]) - instant(run["fire_at"])).total_seconds() for run in server.runs(name)]


def test_fire_times_during_a_pause_are_accounted_for(server: Server, name: str) -> None:
    server.add(name, 1)
    eventually(lambda: server.runs(name))
    paused = server("POST", f"/jobs/{name}/pause", {"reason": "holiday"})
    assert paused["enabled"] is False
    assert (paused["pause_reason"], paused["next_fire_at"]) == ("holiday", None)
    passed(instant(paused["paused_at"]) + timedelta(seconds=2.5))
    resumed = server("POST", f"/jobs/{name}/resume")
    assert resumed["enabled"] is True
    skipped = eventually(lambda: [run for run in server.runs(name) if run["disposition"] == "skipped_paused"])
    away = instant(resumed["updated_at"]) - instant(paused["paused_at"])
    assert 2 <= sum(run["fires"] for run in skipped) <= away.total_seconds() + 1
    anchor = instant(server("GET", f"/jobs/{name}")["created_at"])
    after = instant(resumed["updated_at"]) - anchor
    last = int(after.total_seconds()) + 2
    slots = eventually(lambda: last in (found := by_slot(server.runs(name), anchor)) and found)
    assert set(range(1, last + 1)) <= set(slots)


def test_put_of_unchanged_content_never_moves_the_next_fire(server: Server, name: str) -> None:
    first_at = (now() + timedelta(minutes=30)).replace(microsecond=0)
    job = {
        "name": name,
        "trigger": {"type": "interval", "every_seconds": 3600, "anchor": text(first_at)},
        "target": {"type": "queue", "queue": name},
    }
    first = server("PUT", f"/jobs/{name}", job, 201)
    assert instant(first["next_fire_at"]) == first_at
    for _ in range(5):
        again = server("PUT", f"/jobs/{name}", job, 200)
        assert (again["next_fire_at"], again["updated_at"]) == (first["next_fire_at"], first["updated_at"])
    server("POST", f"/jobs/{name}/trigger")
    (run,) = server.claim(name)
    for same in (job, server("GET", f"/jobs/{name}")):
        again = server("PUT", f"/jobs/{name}", same, 200)
        assert (again["next_fire_at"], again["updated_at"]) == (first["next_fire_at"], first["updated_at"])
    assert server.run(run["id"])["state"] == "running"


@pytest.mark.proof
def test_a_changed_rule_near_its_slot_follows_the_new_rule(server: Server, name: str) -> None:
    """PATCH in the last second before a slot, when the run of the old rule is planned already."""
    slot = (now() + timedelta(seconds=2)).replace(microsecond=0)
    far = slot + timedelta(hours=1)
    server.add(name, {"type": "once", "at": text(slot)})
    passed(slot - timedelta(seconds=0.5))
    server("PATCH", f"/jobs/{name}", {"trigger": {"type": "once", "at": text(far)}})
    passed(slot + timedelta(seconds=1))
    assert server.claim(name, wait=0) == []
    assert instant(server("GET", f"/jobs/{name}")["next_fire_at"]) == far
    assert [run["state"] for run in server.runs(name)] in ([], ["skipped"])


def test_a_higher_priority_goes_first(server: Server, name: str) -> None:
    target = {"type": "queue", "queue": name}
    for priority in (0, 5, -5):
        server.add(f"{name}{priority}", 3600, target, priority=priority)
        server("POST", f"/jobs/{name}{priority}/trigger")
    assert [run["priority"] for run in server.claim(name, limit=10)] == [5, 0, -5]


def test_no_more_runs_share_a_key_than_its_maximum(server: Server, name: str) -> None:
    server.add(name, 3600, concurrency={"key": name, "max": 2})
    for _ in range(5):
        server("POST", f"/jobs/{name}/trigger")
    held = server.claim(name, limit=10, worker="a") + server.claim(name, wait=0, limit=10, worker="b")
    assert len(held) == 2
    done = held.pop()
    server("POST", f"/runs/{done['id']}/complete", {"token": done["lease"]["token"]})
    assert len(server.claim(name, limit=10, worker="c")) == 1


def test_a_run_that_nobody_takes_in_time_fails(server: Server, name: str) -> None:
    server.add(name, 3600, timeouts={"start_seconds": 1})
    run = server("POST", f"/jobs/{name}/trigger")
    assert server.becomes(run["id"], "failed")["disposition"] == "not_started"


def test_an_attempt_that_takes_too_long_is_ended(server: Server, name: str) -> None:
    server.add(name, 3600, timeouts={"execution_seconds": 1.5}, retry={"attempts_max": 1})
    server("POST", f"/jobs/{name}/trigger")
    run_id, token = server.claim_one(name)
    server.ask("POST", f"/api/v1/runs/{run_id}/heartbeat", {"token": token})
    assert "1.5 s" in server.becomes(run_id, "failed")["error"]
    assert server.refused("POST", f"/runs/{run_id}/complete", {"token": token})["code"] == "lease_lost"


def test_silence_costs_the_attempt_and_the_run_goes_to_another(server: Server, name: str) -> None:
    server.add(name, 3600, timeouts={"heartbeat_seconds": 9}, retry={"attempts_max": 2, "backoff_seconds": 0})
    server("POST", f"/jobs/{name}/trigger")
    first, old = server.claim_one(name)
    (again,) = eventually(lambda: server.claim(name, wait=30, worker="other"))
    assert (again["id"], again["attempt"]) == (first, 2)
    assert again["lease"]["token"] > old
    for path, body in (("heartbeat", {}), ("complete", {"result": 1}), ("fail", {"error": "x"})):
        refused = server.refused("POST", f"/runs/{first}/{path}", {"token": old, **body})
        assert (refused["status"], refused["code"]) == (409, "lease_lost")
    done = server("POST", f"/runs/{first}/complete", {"token": again["lease"]["token"], "result": "new"})
    assert (done["state"], done["result"]) == ("completed", "new")
    assert {event["state"] for event in done["history"]} >= {"pending", "running", "completed"}


def test_a_pending_run_is_cancelled_at_once(server: Server, name: str) -> None:
    server.add(name, 3600)
    run = server("POST", f"/jobs/{name}/trigger")
    assert server("POST", f"/runs/{run['id']}/cancel")["state"] == "cancelled"
    assert server.claim(name, wait=0) == []


@pytest.mark.parametrize(("report", "ends"), [("fail", "cancelled"), ("complete", "completed")])
def test_a_running_run_is_asked_to_stop(server: Server, name: str, report: str, ends: str) -> None:
    server.add(name, 3600)
    server("POST", f"/jobs/{name}/trigger")
    run_id, token = server.claim_one(name)
    assert server("POST", f"/runs/{run_id}/cancel")["state"] == "cancelling"
    assert server("POST", f"/runs/{run_id}/heartbeat", {"token": token})["cancel_requested"] is True
    body = {"token": token, "error": "stopped"} if report == "fail" else {"token": token}
    assert server("POST", f"/runs/{run_id}/{report}", body)["state"] == ends
    assert server.refused("POST", f"/runs/{run_id}/cancel")["status"] == 409


def test_a_failed_run_can_be_retried_by_hand(server: Server, name: str) -> None:
    server.add(name, 3600)
    server("POST", f"/jobs/{name}/trigger", {"payload": {"n": 7}})
    run_id, token = server.claim_one(name)
    assert (
        server("POST", f"/runs/{run_id}/fail", {"token": token, "error": "no", "retryable": False})["state"] == "failed"
    )
    retried = server("POST", f"/runs/{run_id}/retry")
    (again,) = server.claim(name)
    assert (again["id"], again["payload"]) == (retried["id"], {"n": 7})


def test_attempts_are_bounded_and_spaced(server: Server, name: str) -> None:
    server.add(name, 3600, retry={"attempts_max": 3, "backoff_seconds": 0.4, "backoff_factor": 2})
    server("POST", f"/jobs/{name}/trigger")
    starts: list[datetime] = []
    state = ""
    for _ in range(3):
        (run,) = server.claim(name)
        starts.append(now())
        state = server("POST", f"/runs/{run['id']}/fail", {"token": run["lease"]["token"], "error": "e"})["state"]
    assert state == "failed"
    first, second = ((b - a).total_seconds() for a, b in pairwise(starts))
    assert first >= 0.2
    assert second >= 0.4


def test_backfill_makes_each_past_fire_once(server: Server, name: str) -> None:
    server.add(name, {"type": "cron", "expression": "0 3 * * *"})
    period = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-04T00:00:00Z"}
    made = server("POST", f"/jobs/{name}/backfill", period, 201)["runs"]
    assert [run["fire_at"] for run in made] == [f"2026-01-0{day}T03:00:00Z" for day in (1, 2, 3)]
    again = server("POST", f"/jobs/{name}/backfill", period)["runs"]
    assert [run["id"] for run in again] == [run["id"] for run in made], "asked again, it makes nothing"
    assert len(server.claim(name, limit=10)) == 3


def test_finished_runs_are_pruned_by_count_and_age(store: str) -> None:
    before = Server(store)
    before.add("count", 3600, {"type": "queue", "queue": "q"}, retention={"runs_max": 2})
    before.add("age", 3600, {"type": "queue", "queue": "q"}, retention={"finished_seconds": 0})
    before.add("kept", 3600, {"type": "queue", "queue": "q"})
    for _ in range(4):
        for name in ("count", "age", "kept"):
            before("POST", f"/jobs/{name}/trigger")
    for run in before.claim("q", limit=20):
        before("POST", f"/runs/{run['id']}/complete", {"token": run["lease"]["token"]})
    before.stop()
    after = Server(store)  # which looks at once, not after a pause
    try:
        eventually(lambda: [len(after.runs(name)) for name in ("count", "age", "kept")] == [2, 0, 4])
    finally:
        after.stop()


def test_an_interval_does_not_drift(server: Server, name: str) -> None:
    anchor = datetime(2026, 1, 1, tzinfo=UTC)
    server.add(name, {"type": "interval", "every_seconds": 1, "anchor": text(anchor)}, fires_max=2, catch_up=ALL)
    eventually(lambda: len(server.runs(name)) == 2)
    assert all(instant(run["fire_at"]).microsecond == 0 for run in server.runs(name))


def test_counts_by_state_hold(server: Server, name: str) -> None:
    server.add(name, 3600)
    for _ in range(3):
        server("POST", f"/jobs/{name}/trigger")
    run_id, token = server.claim_one(name)
    server("POST", f"/runs/{run_id}/complete", {"token": token})
    states = Counter(run["state"] for run in server.runs(name))
    assert states == {"completed": 1, "pending": 2}
    assert len(server("GET", f"/runs?job={name}&state=pending")["items"]) == 2
    assert len(server("GET", f"/runs?queue={name}&state=completed&state=pending")["items"]) == 3
