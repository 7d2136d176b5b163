"""The circuit breaker: a host that does not answer is held, one probe at a time is let through, an answer lifts it."""

from __future__ import annotations

from typing import Any

import pytest

from horarium.clock import SECOND
from horarium.model import Deferred, Failed, HttpTarget, Job, Outcome, Run, State, Succeeded
from horarium.model.channels import WebhookChannel
from horarium.policies import Overlap
from horarium.ports import RunFilter
from horarium.rules.breaking import answers
from horarium.services.alerts.breaker import Breaker, Limits
from tests.services.conftest import START, Setting

DEAD, WELL = "dead.example.com", "well.example.com"
NO_ANSWER = Failed("no connection")
SOME = Run(id="r", queue="http", fire_at=0, due_at=0, created_at=0)


class Hosts:
    """Jobs of two hosts, and nodes that make requests."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.jobs: dict[str, Job] = {}

    async def set_up(self) -> None:
        for host in (DEAD, WELL):
            target = HttpTarget(url=f"https://{host}/x")
            self.jobs[host] = await self.setting.add_job(host, every=86_400, target=target, overlap=Overlap.ALLOW)

    def node(self, name: str, failures: int = 20) -> Breaker:
        operations = self.setting.operations_on(self.setting.store)
        limits = Limits(failures, 60.0)
        return Breaker(
            operations.context,
            operations.holds,
            operations.reconciler.holding,
            operations.channels,
            name,
            limits,
        )

    def heard(self, node: Breaker, host: str, outcome: Outcome, run: Run = SOME) -> None:
        self.setting.clock.advance(0.01)
        node.heard(run, self.jobs[host], outcome)

    async def asked(self, node: Breaker, host: str, outcome: Outcome, count: int = 1, run: Run = SOME) -> None:
        for _ in range(count):
            self.heard(node, host, outcome, run)
        await node._holding.look(0)
        await node.step(self.setting.now)
        assert await node.step(self.setting.now) is None, "nothing is left to do"

    async def held(self) -> list[str]:
        return [hold.scope.host or "" for hold in await self.setting.operations.holds.in_force()]

    async def add(self, host: str, count: int) -> list[str]:
        runs = [
            Run(
                id=f"{host}-{number}", queue="http", job=host, job_id=host, fire_at=START + number,
                due_at=self.setting.now, created_at=START,
            )
            for number in range(count)
        ]  # fmt: skip
        assert all(await self.setting.store.add_runs(runs))
        return [run.id for run in runs]

    async def claimed(self) -> list[str]:
        now = self.setting.now
        found = await self.setting.operations.claiming.claim(["http"], 100, "w", now, now)
        return sorted(run.id for run in found.runs)


@pytest.fixture
async def hosts(setting: Setting) -> Hosts:
    made = Hosts(setting)
    await made.set_up()
    return made


@pytest.mark.parametrize(
    ("outcome", "answered"),
    [
        (Succeeded(), True),
        (None, True),
        (Failed("answered 404 Not Found", result=b'{"status":404}'), True),
        (Failed("answered 503 Service Unavailable", result=b'{"status":503}'), False),
        (NO_ANSWER, False),
        (Failed("this address is refused", retryable=False), None),
        (Deferred(0), None),
    ],
)
def test_a_host_fails_where_it_does_not_answer(outcome: Outcome | None, answered: bool | None) -> None:
    assert answers(outcome) is answered


async def test_a_streak_goes_on_after_a_success_of_another_node_in_the_middle_of_it(hosts: Hosts) -> None:
    one, other = hosts.node("a", 4), hosts.node("b", 4)
    await hosts.asked(one, DEAD, NO_ANSWER, 2)
    await hosts.asked(other, DEAD, NO_ANSWER)
    await hosts.asked(other, DEAD, Succeeded())
    for failed in range(4):
        assert await hosts.held() == [], f"{failed} failures since"
        await hosts.asked(one, DEAD, NO_ANSWER)
    assert await hosts.held() == [f"{DEAD}:443"]


async def test_so_many_failures_in_a_row_hold_the_host_and_no_other(hosts: Hosts) -> None:
    node = hosts.node("a")
    await hosts.asked(node, DEAD, NO_ANSWER, 19)
    assert await hosts.held() == []
    await hosts.asked(node, DEAD, NO_ANSWER)
    assert await hosts.held() == [f"{DEAD}:443"]
    (hold,) = await hosts.setting.operations.holds.in_force()
    assert hold.reason == f"20 requests to {DEAD}:443 failed in a row: no connection"
    await hosts.add(DEAD, 3)
    assert await hosts.add(WELL, 3) == await hosts.claimed()
    runs = (await hosts.setting.store.list_runs(RunFilter(job=DEAD), None, 9)).items
    assert {(run.state, run.attempt) for run in runs} == {(State.PENDING, 0)}


async def test_an_answer_in_between_begins_the_count_again(hosts: Hosts) -> None:
    node = hosts.node("a")
    for _ in range(3):
        await hosts.asked(node, DEAD, NO_ANSWER, 19)
        await hosts.asked(node, DEAD, Succeeded())
    assert await hosts.held() == []


async def test_nodes_count_together(hosts: Hosts) -> None:
    for name in ("a", "b", "c"):
        await hosts.asked(hosts.node(name), DEAD, NO_ANSWER, 7)
    assert await hosts.held() == [f"{DEAD}:443"]


async def test_an_answer_on_one_node_ends_the_count_of_all(hosts: Hosts) -> None:
    first, second = hosts.node("a"), hosts.node("b")
    await hosts.asked(first, DEAD, NO_ANSWER, 15)
    await hosts.asked(second, DEAD, NO_ANSWER)
    await hosts.asked(second, DEAD, Succeeded())
    await hosts.asked(second, DEAD, NO_ANSWER, 10)
    assert await hosts.held() == []


async def test_a_host_that_answers_while_its_hold_is_written_is_not_held(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = hosts.node("a", failures=3)
    write = node._holds.write

    async def slow(*given: Any) -> Any:
        monkeypatch.undo()
        written = await write(*given)
        node.heard(Run(id="r", queue="http", fire_at=0, due_at=0, created_at=0), hosts.jobs[DEAD], Succeeded())
        return written

    monkeypatch.setattr(node._holds, "write", slow)
    await hosts.asked(node, DEAD, NO_ANSWER, 3)
    assert await hosts.held() == []


async def test_zero_turns_it_off(hosts: Hosts) -> None:
    await hosts.asked(hosts.node("a", failures=0), DEAD, NO_ANSWER, 100)
    assert await hosts.held() == []


async def test_one_run_at_a_time_is_let_through_and_an_answer_lifts_it(hosts: Hosts) -> None:
    setting, node = hosts.setting, hosts.node("a")
    await setting.operations.channels.put("ops", WebhookChannel(url="https://example.org/", system=True))
    await hosts.asked(node, DEAD, NO_ANSWER, 20)
    await hosts.add(DEAD, 5)
    assert await hosts.claimed() == []
    setting.clock.advance(61)
    (probe,) = await hosts.claimed()
    assert await hosts.claimed() == [], "one at a time"
    setting.clock.advance(61)
    (another,) = await hosts.claimed()
    assert another != probe
    await hosts.asked(node, DEAD, NO_ANSWER)
    assert await hosts.held() == [f"{DEAD}:443"]
    await hosts.asked(node, DEAD, Succeeded())
    assert await hosts.held() == []
    setting.clock.advance(2)
    told = (await setting.store.list_runs(RunFilter(queue="notify"), None, 9)).items
    assert len(told) == 2
    setting.clock.advance(5 * 60)
    assert len(await hosts.claimed()) == 3, "what waited for it goes on, also if nobody carries the change"


async def calls(hosts: Hosts, failures: int, minutes: int = 20) -> dict[str, int]:
    """How often each host is called while a run of each comes every two seconds. The one that is well is never late."""
    setting, node, found = hosts.setting, hosts.node("a", failures), dict.fromkeys((DEAD, WELL), 0)
    for number in range(minutes * 30):
        for host in (DEAD, WELL):
            await setting.add_run(f"{host}-{number}", "http", job=host, job_id=host, due_at=setting.now)
        claimed = await hosts.claimed()
        assert f"{WELL}-{number}" in claimed, "not later than beside a host that answers"
        for run in claimed:
            found[run.rpartition("-")[0]] += 1
        await hosts.asked(node, DEAD, NO_ANSWER, sum(run.startswith(DEAD) for run in claimed))
        setting.clock.advance(2)
    for number in range(minutes * 30):
        one = await setting.run(f"{DEAD}-{number}")
        assert one.attempt == (1 if one.state is State.RUNNING else 0), "no attempt is lost to what was not called"
    return found


async def test_a_dead_host_is_called_less_than_a_tenth_as_often_and_no_attempt_is_lost(hosts: Hosts) -> None:
    found = await calls(hosts, failures=20)
    assert found[WELL] == 600
    assert 20 < found[DEAD] <= 45, "each of the 600 without a breaker; 20 until it opened, and one a minute"


async def test_without_a_breaker_a_dead_host_is_called_by_each_run(hosts: Hosts) -> None:
    assert await calls(hosts, failures=0, minutes=2) == {DEAD: 60, WELL: 60}


async def test_of_those_that_wait_a_few_are_looked_at_with_each_probe(hosts: Hosts) -> None:
    setting, node = hosts.setting, hosts.node("a")
    await hosts.asked(node, DEAD, NO_ANSWER, 20)
    await hosts.add(DEAD, 90)
    assert await hosts.claimed() == []
    probes = []
    for _ in range(60):
        setting.clock.advance(61)
        waiting = (await setting.store.list_runs(RunFilter(job=DEAD), None, 100)).items
        assert len([run for run in waiting if run.state is State.PENDING and run.due_at <= setting.now]) <= 15
        probes += await hosts.claimed()
        await hosts.asked(node, DEAD, NO_ANSWER)
    assert len(set(probes)) == len(probes) == 60, "none is left out"


async def test_a_probe_that_fails_is_no_free_pass_for_its_next_attempt(hosts: Hosts) -> None:
    node = hosts.node("a")
    await hosts.asked(node, DEAD, NO_ANSWER, 20)
    (id,) = await hosts.add(DEAD, 1)
    hosts.setting.clock.advance(61)
    claimed = await hosts.setting.operations.claiming.claim(["http"], 1, "w", hosts.setting.now, hosts.setting.now)
    await hosts.setting.operations.settling.release(claimed.runs, claimed.jobs, "failed")
    assert await hosts.claimed() == []
    (run,) = await hosts.setting.store.get_runs([id])
    assert run is not None
    assert (run.attempt, run.due_at > hosts.setting.now + 30 * SECOND) == (0, True)


async def test_a_probe_that_fails_at_once_lets_the_next_one_come_in_time(setting: Setting) -> None:
    hosts = Hosts(setting)
    await setting.add_job(DEAD, every=86_400, target=HttpTarget(url=f"https://{DEAD}/x", timeout_seconds=600))
    (job,) = await setting.store.get_jobs([DEAD])
    assert job is not None
    hosts.jobs[DEAD], node = job, hosts.node("a")
    await hosts.asked(node, DEAD, NO_ANSWER, 20)
    await hosts.add(DEAD, 3)
    setting.clock.advance(61)
    (first,) = await hosts.claimed()
    await hosts.asked(node, DEAD, NO_ANSWER)
    setting.clock.advance(61)
    assert await hosts.claimed() == [], "a request from before has failed, and the probe perhaps is still to be asked"
    await hosts.asked(node, DEAD, NO_ANSWER, run=await setting.run(first))
    setting.clock.advance(61)
    (second,) = await hosts.claimed()
    assert first != second


async def test_beside_an_open_breaker_others_are_claimed_ahead_as_ever(hosts: Hosts) -> None:
    setting, node = hosts.setting, hosts.node("a")
    await hosts.asked(node, DEAD, NO_ANSWER, 20)
    for host in (DEAD, WELL):
        await setting.add_run(host, "http", job=host, job_id=host, due_at=setting.now + SECOND)
    claiming, now = setting.operations.claiming, setting.now
    found = [(await claiming.claim(["http"], 9, "w", now, now + 2 * SECOND)).runs for _ in range(9)]
    assert [[run.id for run in runs] for runs in found] == [[WELL], *[[]] * 8]
    waiting = await setting.run(DEAD)
    assert (waiting.token, waiting.attempt) == (1, 0), "it is claimed once, and put back until the next probe"


async def test_a_probe_that_is_claimed_ahead_is_one_at_the_instant_at_which_it_is_due(hosts: Hosts) -> None:
    setting, node = hosts.setting, hosts.node("a")
    await hosts.asked(node, DEAD, NO_ANSWER, 20)
    await hosts.add(DEAD, 2)
    assert await hosts.claimed() == []
    setting.clock.advance(59.5)
    claiming, now = setting.operations.claiming, setting.now
    found = [(await claiming.claim(["http"], 9, "w", now, now + SECOND)).runs for _ in range(9)]
    assert [len(runs) for runs in found] == [1, *[0] * 8]
    setting.clock.advance(2)
    assert await hosts.claimed() == [], "the next one comes after the next minute"


async def test_a_run_does_not_wait_for_a_host_that_its_job_has_left(hosts: Hosts) -> None:
    setting, node = hosts.setting, hosts.node("a")
    await hosts.asked(node, DEAD, NO_ANSWER, 20)
    ids = await hosts.add(DEAD, 3)
    assert await hosts.claimed() == []
    await setting.operations.jobs.patch_job(DEAD, {"target": {"url": f"https://{WELL}/x"}})
    assert await hosts.claimed() == ids
