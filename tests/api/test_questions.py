"""Questions whose cost depends on how much is stored: bounded, fair, and over once nobody waits for the answer."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from horarium.api import questions
from horarium.api.problems import ClientGone, Overloaded
from horarium.api.questions import AT_ONCE, CALLER_AT_ONCE, CALLER_WAITING_MAX, CALLERS_AT_ONCE, WAITING_MAX, Questions
from horarium.clock import SECOND, to_datetime
from horarium.model import State
from horarium.model.calendars import Calendar
from horarium.operations.bounds import listing
from horarium.operations.calendars import CalendarOperations
from horarium.operations.looking import upcoming
from horarium.services.metrics.ends import ends_of
from horarium.testing.values import NOW, a_job, a_run

from .conftest import Api


async def never() -> Any:
    return await asyncio.Event().wait()


class Asked:
    """Questions that are answered when the test says so."""

    def __init__(self) -> None:
        self.questions = Questions()
        self.under_way: list[str] = []
        self.ended: list[str] = []
        self.answers = asyncio.Event()

    def ask(self, caller: str, receive: Any = never, alone: str | None = None) -> asyncio.Task[str]:
        async def question() -> str:
            self.under_way.append(caller)
            try:
                await self.answers.wait()
                return caller
            finally:
                self.under_way.remove(caller)
                self.ended.append(caller)

        return asyncio.ensure_future(self.questions.ask(caller, receive, question, alone))


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_few_are_answered_at_a_time_and_no_caller_has_them_all() -> None:
    asked = Asked()
    greedy = [asked.ask("greedy") for _ in range(50)]
    await settled()
    assert asked.under_way == ["greedy"] * CALLER_AT_ONCE
    others = [asked.ask(f"other {number}") for number in range(5)]
    await settled()
    assert len(asked.under_way) == CALLER_AT_ONCE + 5
    asked.answers.set()
    await asyncio.gather(*greedy, *others)
    # The five others waited for a few questions each, and not for the fifty that came before them.
    assert {each for each in asked.ended[:15] if each != "greedy"} == {f"other {number}" for number in range(5)}


async def test_who_has_none_under_way_does_not_wait_for_the_long_ones_of_others() -> None:
    asked = Asked()
    greedy = [asked.ask(f"greedy {number % 4}") for number in range(40)]
    await settled()
    assert len(asked.under_way) == max(AT_ONCE, 4)
    other = asked.ask("other")
    await settled()
    assert "other" in asked.under_way
    many = [asked.ask(f"caller {number}") for number in range(3 * CALLERS_AT_ONCE)]
    await settled()
    assert len(asked.under_way) == CALLERS_AT_ONCE
    asked.answers.set()
    await asyncio.gather(*greedy, other, *many)


async def test_of_a_kind_that_takes_much_memory_one_is_answered_at_a_time() -> None:
    asked = Asked()
    many = [asked.ask(f"planner {number}", alone="plans") for number in range(3)]
    many.append(asked.ask("reader", alone="feeds"))
    await settled()
    assert asked.under_way == ["planner 0", "reader"]
    many.pop(1).cancel()
    asked.answers.set()
    await asyncio.gather(*many)
    assert asked.ended == ["planner 0", "reader", "planner 2"]


async def test_questions_that_wait_for_one_of_their_kind_take_no_place_from_others() -> None:
    asked = Asked()
    many = [asked.ask(f"planner {number}", alone="plans") for number in range(2 * CALLERS_AT_ONCE)]
    many += [asked.ask("reader", alone="plans") for _ in range(CALLER_AT_ONCE)]
    many.append(asked.ask("reader"))
    await settled()
    assert asked.under_way == ["planner 0", "reader"]
    asked.answers.set()
    await asyncio.gather(*many)
    assert len(asked.ended) == len(many)


async def test_a_caller_whose_question_waits_for_one_of_its_kind_has_the_next_one_answered() -> None:
    asked = Asked()
    many = [asked.ask("planner", alone="plans") for _ in range(CALLER_AT_ONCE + 1)]
    many += [asked.ask("planner") for _ in range(CALLER_AT_ONCE)]
    await settled()
    assert asked.under_way == ["planner"] * CALLER_AT_ONCE
    asked.answers.set()
    await asyncio.gather(*many)
    assert len(asked.ended) == len(many)


async def test_more_than_may_wait_are_refused_and_the_others_answered() -> None:
    asked = Asked()
    tasks = [asked.ask("one") for _ in range(CALLER_AT_ONCE + CALLER_WAITING_MAX + 1)]
    await settled()
    with pytest.raises(Overloaded):
        await tasks.pop()
    many = [asked.ask(f"caller {number}") for number in range(WAITING_MAX + AT_ONCE)]
    await settled()
    refused = [task for task in many if task.done()]
    assert refused
    asked.answers.set()
    answers = await asyncio.gather(*tasks, *many, return_exceptions=True)
    assert sum(isinstance(answer, Overloaded) for answer in answers) == len(refused)


async def test_a_question_ends_when_its_client_hangs_up_and_its_place_goes_to_the_next() -> None:
    asked, gone = Asked(), asyncio.Event()

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    left = [asked.ask("left", receive) for _ in range(CALLER_AT_ONCE + 3)]
    await settled()
    stayed = asked.ask("left")
    gone.set()
    for each in left:
        with pytest.raises(ClientGone):
            await each
    await settled()
    assert asked.under_way == ["left"]
    asked.answers.set()
    assert await stayed == "left"


async def test_a_question_that_takes_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "QUESTION_SECONDS", 0.01)
    asked = Asked()
    with pytest.raises(Overloaded, match="not answered within"):
        await asked.ask("one")
    assert asked.ended == ["one"]


async def test_an_answer_that_is_refused_says_when_to_ask_again(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "CALLERS_AT_ONCE", 0)
    monkeypatch.setattr(questions, "QUESTION_SECONDS", 0.01)
    reply = await api.get("/jobs")
    assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "overloaded", "1")
    assert (await api.get("/jobs/none")).status == 404  # what costs little is answered


async def test_a_client_that_hangs_up_ends_its_preview_of_all_jobs(api: Api) -> None:
    for number in range(900):
        await api.add_job(f"job-{number}", trigger={"type": "interval", "every_seconds": 3_600})
    hang_up = asyncio.Event()
    hang_up.set()
    reply = await api.get("/upcoming?until=2199-01-01T00:00:00Z&limit=1000", hang_up=hang_up)
    assert (reply.status, reply.code) == (503, "overloaded")


async def test_the_widest_preview_is_that_of_a_month_and_says_that_there_is_more(api: Api) -> None:
    spaced = {f"job-{number}": 3_600 * (number + 1) for number in range(60)}
    for name, seconds in spaced.items():
        await api.add_job(name, trigger={"type": "interval", "every_seconds": seconds})
    start, month = to_datetime(NOW), timedelta(days=31)
    since = start.isoformat().replace("+00:00", "Z")
    reply = (await api.get(f"/upcoming?since={since}&until=2199-01-01T00:00:00Z&limit=1000")).json
    expected = sorted(
        (start + timedelta(seconds=seconds * each), name)
        for name, seconds in spaced.items()
        for each in range(1, 31 * 24 + 1)
        if timedelta(seconds=seconds * each) < month
    )[:1000]
    found = [(each["fire_at"], each["job"]) for each in reply["items"]]
    assert found == [(at.strftime("%Y-%m-%dT%H:%M:%SZ"), name) for at, name in expected]
    assert reply["truncated"]


async def test_a_preview_looks_at_a_bounded_number_of_fire_times(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    honest = upcoming._fires

    def counted(*given: Any) -> Any:
        nonlocal looked
        fires = honest(*given)
        looked += len(fires)
        return fires

    monkeypatch.setattr(upcoming, "_fires", counted)
    for number in range(900):
        await api.add_job(f"job-{number:03}", trigger={"type": "interval", "every_seconds": 1})
    reply = (await api.get(f"/upcoming?since={to_datetime(NOW + SECOND):%Y-%m-%dT%H:%M:%SZ}&limit=1000")).json
    assert len(reply["items"]) == 1000
    assert looked < 15_000  # of 900,000 that lie in the span of the first thousand seconds


@pytest.mark.parametrize(
    ("path", "steps"),
    [("//metrics", 500), ("//jobs", 20), ("//timeline", 200), ("/upcoming?limit=1000", 200)],
)
async def test_others_have_their_turn_while_a_long_answer_is_made(
    path: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api(pages=True)
    names = [f"job-{number:03}" for number in range(500)]
    await api.store.add_jobs([a_job(name, next_fire_at=NOW + SECOND, planned_until=NOW) for name in names])
    ended: dict[str, Any] = {
        "state": State.COMPLETED,
        "started_at": NOW - 2 * SECOND,
        "finished_at": NOW - SECOND,
        "attempt": 1,
    }
    runs = [a_run(number, job=name, fire_at=NOW - 2 * SECOND, **ended) for number, name in enumerate(names)]
    await api.store.add_runs(runs)
    api.telemetry.jobs.ended(ends_of(runs))
    await api.send("GET", path)  # what is loaded once
    api.telemetry.jobs.ended(ends_of(runs))
    monkeypatch.setattr(listing, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(listing, "REST_SECONDS", 0.0)
    rounds, over = 0, False

    async def count() -> None:
        nonlocal rounds
        while not over:
            rounds += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    assert (await api.send("GET", path)).status == 200
    over = True
    await counting
    assert rounds >= steps


async def test_those_who_no_longer_wait_take_no_place_of_those_who_do() -> None:
    asked = Asked()
    under_way = [asked.ask("one") for _ in range(CALLER_AT_ONCE)]
    for _ in range(CALLER_WAITING_MAX + 1):
        waiting = asked.ask("one")
        await settled()
        waiting.cancel()
        await asyncio.wait([waiting])
    again = asked.ask("one")
    await settled()
    assert not again.done()
    asked.answers.set()
    assert await asyncio.gather(*under_way, again) == ["one"] * (CALLER_AT_ONCE + 1)
    assert not asked.questions._waiting


async def test_questions_that_wait_for_their_turn_are_asked_with_their_bodies(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = CalendarOperations.put

    async def after_others_came(self: CalendarOperations, name: str, calendar: Calendar) -> tuple[Calendar, bool]:
        await settled()
        return await honest(self, name, calendar)

    monkeypatch.setattr(CalendarOperations, "put", after_others_came)

    async def put(number: int) -> tuple[int, str]:
        reply = await api.send("PUT", f"/calendars/c{number}", {"title": str(number)})
        return reply.status, reply.json.get("title")

    numbers = range(CALLER_AT_ONCE + 5)
    assert await asyncio.gather(*map(put, numbers)) == [(201, str(number)) for number in numbers]
