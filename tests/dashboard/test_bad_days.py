"""The verdict on bad days: exact at any size, one line for one cause, and never well while something fails."""

from __future__ import annotations

import re
from html import unescape

import msgspec
import pytest
from msgspec.structs import replace

from horarium.api import questions
from horarium.clock import DAY, HOUR, MINUTE, to_text
from horarium.dashboard.formats import day_text
from horarium.model import Health, LastRun, Run, State, uuid7
from horarium.model.channels import UNTOLD, Letter, Told, Untold
from horarium.model.holds import Hold, HoldScope, Probing
from horarium.model.records import Record, RecordChange
from horarium.operations.settling.holding import PREFIX as HOLD
from horarium.ports import RunFilter
from horarium.rules.following import notify_run
from horarium.testing.values import NOW
from tests.access.test_everything_is_audited import untold
from tests.api.conftest import Api
from tests.dashboard.test_pages import a_failed_run
from tests.dashboard.visitor import Visitor

pytestmark = pytest.mark.slow


async def fail(api: Api, names: list[str], streak: int = 3, error: str = "no") -> None:
    """As if the last runs of these jobs had failed."""
    now = api.clock.now()
    jobs = [job for job in await api.store.get_jobs(names) if job is not None]
    await api.store.add_health(
        {
            job.id: Health(LastRun(uuid7(now, b"last" * 3), State.FAILED, now, error), None, streak, now - MINUTE)
            for job in jobs
        }
    )


async def test_what_is_wrong_comes_first(api: Api, visitor: Visitor) -> None:
    await visitor.open("/")
    assert "All is well" not in visitor.text, "there is nothing of which that could be said"
    await api.add_job("aaa")
    await visitor.open("/calendar")
    api.clock.advance(2)
    await visitor.open("/")
    assert "All is well" in visitor.text
    await api.add_job("nightly")
    await a_failed_run(api, "nightly", "ValueError: no price")
    api.clock.advance(2)
    await visitor.open("/")
    assert "One thing needs attention" in visitor.text, visitor.text
    assert "nightly failed once" in visitor.text
    assert "ValueError: no price" in visitor.text
    await visitor.open("/jobs")
    assert visitor.text.index("nightly") < visitor.text.index("aaa")
    api.clock.advance(7 * 86_400)
    await visitor.open("/")
    assert "nightly failed once" in visitor.text, "until it succeeds, however long ago it failed"


async def test_runs_that_wait_make_their_job_late_and_their_queue_unserved(api: Api, visitor: Visitor) -> None:
    await api.add_job("poll")
    await api.post("/jobs/poll/trigger")
    api.clock.advance(300)
    await visitor.open("/")
    assert "Queue work has no worker: 1 run waits, of 1 late job The oldest since" in visitor.text, visitor.text
    assert "/jobs/poll" in visitor.page, "the jobs that it keeps are named"
    assert "poll is late by" not in visitor.text, "one cause is one line"
    await visitor.open("/jobs?show=late")
    assert "Late by 5 m" in visitor.text
    await visitor.open("/queues")
    assert "By no worker" in visitor.text


async def test_sixty_failing_jobs_are_sixty(api: Api, visitor: Visitor) -> None:
    names = [f"job-{number:03}" for number in range(62)]
    for name in names:
        await api.add_job(name)
    for number, name in enumerate(names[:60]):
        await fail(api, [name], error=f"KeyError: '{chr(65 + number)}'")
    await visitor.open("/")
    assert "60 things need attention" in visitor.text
    assert "60 jobs fail. 2 of 62 jobs are well" in visitor.text
    assert "40 more jobs fail" in visitor.text
    await visitor.open("/jobs?show=failing")
    assert "Failing 60" in visitor.text
    assert visitor.text.count("Failing, 3 in a row") == 60


async def test_jobs_that_fail_with_one_error_are_one_line_which_is_acknowledged(api: Api, visitor: Visitor) -> None:
    names = [f"job-{number:03}" for number in range(43)]
    for name in names:
        await api.add_job(name)
    for number, name in enumerate(names[:41]):
        await fail(api, [name], number + 1, f"HTTP 503 of request {number}")
    await fail(api, names[41:42], error="HTTP 404")
    await visitor.open("/")
    assert "Two causes need attention" in visitor.text
    assert "42 jobs fail. 1 of 43 jobs is well" in visitor.text
    assert "41 jobs fail with one error: 861 runs since" in visitor.text
    assert "HTTP 503 of request 40 . Last 0 s ago job-040 job-039 job-038 and 38 more" in visitor.text
    assert "job-041 failed 3 in a row" in visitor.text
    error = re.search(r'href="(/failures\?span=day&amp;open=[0-9a-f]+)"', visitor.page)
    assert error is not None
    form = {"cause": "failing/job-007", "length": "1d"}
    assert (await visitor.open("/acknowledge?cause=failing/job-007")).status == 200
    assert "Acknowledge that 41 jobs fail with one error" in visitor.text
    assert (await visitor.post("/acknowledge", **form, reason="the bank is down")).status == 303
    await visitor.open("/")
    assert "One cause needs attention" in visitor.text
    assert "Acknowledged: 1, not counted above 41 jobs fail with one error" in visitor.text
    assert "42 jobs fail. 1 of 43 jobs is well" in visitor.text, "the count is true"
    await fail(api, names[42:], error="HTTP 503 of request 1")
    api.clock.advance(2)
    await visitor.open("/")
    assert "Two causes need attention" in visitor.text, "it is one job worse"
    assert "job-042 failed 3 in a row" in visitor.text
    assert (await visitor.post("/acknowledge/undo", cause="failing/job-040")).status == 303
    await visitor.open("/")
    assert "42 jobs fail with one error" in visitor.text


async def test_a_count_that_met_its_bound_says_at_least(
    api: Api, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horarium.operations.looking.attending.FAILING_MAX", 5)
    names = [f"job-{number}" for number in range(8)]
    for name in names:
        await api.add_job(name)
    await fail(api, names)
    await visitor.open("/")
    assert "At least 1 cause needs attention" in visitor.text
    assert "At least 5 jobs fail with one error" in visitor.text
    assert "At least 5 of 8 jobs are not well" in visitor.text
    await visitor.open("/jobs")
    assert "Failing 5+" in visitor.text


async def test_a_long_streak_says_its_length_and_its_beginning(api: Api, visitor: Visitor) -> None:
    await api.add_job("busy")
    await fail(api, ["busy"], streak=230)
    await visitor.open("/")
    assert "failed 230 in a row, since" in visitor.text
    assert "Retry 230" not in visitor.text, "more runs than were read"


async def test_a_channel_that_could_not_be_told_comes_first(api: Api, visitor: Visitor) -> None:
    now = api.clock.now()
    await api.add_job("ill")
    await fail(api, ["ill"])
    for name, at, error in (("pager", now - 2 * MINUTE, "connection refused"), ("old", now - 2 * DAY, "no such host")):
        untold = Untold("019a", at, at, error)
        await api.store.put_records([RecordChange(Record(name=UNTOLD + name, body=msgspec.json.encode(untold)))])
    await visitor.open("/")
    assert "Alerts to pager can’t be delivered since" in visitor.text
    assert visitor.text.index("Alerts to pager") < visitor.text.index("ill failed 3 in a row")
    assert "Alerts to old" not in visitor.text, "nothing was told on it for a day"
    assert "No other channel is there" in visitor.text
    for name in ("pager", "mail"):
        body = {"type": "webhook", "url": f"https://{name}.example.com"}
        assert (await api.send("PUT", f"/channels/{name}", body)).status == 201
    api.clock.advance(2)
    await visitor.open("/")
    assert "No failure is known of mail " in visitor.text, "by which they may be sent meanwhile"
    assert "Send by another channel" in visitor.text
    await visitor.open("/channels")
    assert "pager takes no message since" in visitor.text
    assert "0 events kept for it. connection refused" in visitor.text
    assert "Send 0" not in visitor.text


async def test_what_a_channel_did_not_take_is_sent_by_another_in_one_message(api: Api, visitor: Visitor) -> None:
    await untold(api.store, "pager", other="mail")
    late = Told("failed", "hourly", None, None, to_text(NOW + MINUTE), "hourly failed")
    await api.store.add_runs([notify_run("pager", late, "later", NOW + MINUTE)])
    await visitor.open("/channels")
    assert "2 events kept for it. connection refused" in visitor.text
    assert "Send 2 events" in visitor.text
    for by, status in (("pager", 422), ("nobody", 422), ("mail", 303), ("mail", 303)):
        assert (await visitor.post("/channels/pager/send-by", by=by)).status == status
        await visitor.open("/channels")
    runs = (await api.store.list_runs(RunFilter(queue="notify"), None, 10)).items
    (sent,) = (run for run in runs if run.progress is not None)
    letter = msgspec.json.decode(sent.progress or b"", type=Letter)
    told = [(event.job, event.count) for event in letter.events]
    assert (letter.id, letter.channel, told) == (sent.id, "mail", [("nightly", 1), ("hourly", 1)])
    assert (len(runs), sent.concurrency_key, letter.members) == (3, "notify/mail", ())
    again = await api.post("/channels/pager/send-by", {"by": "mail"})
    assert (again.status, again.json["id"]) == (202, sent.id), "the same events, by the same channel"
    assert (await api.post("/channels/mail/send-by", {"by": "pager"})).status == 422, "there is no such channel"
    many = [notify_run("pager", replace(late, job=f"job-{number}"), f"{number}", NOW) for number in range(60)]
    await api.store.add_runs(many)
    assert (await api.post("/channels/pager/send-by", {"by": "mail"})).status == 202
    runs = (await api.store.list_runs(RunFilter(queue="notify"), None, 100)).items
    letters = [msgspec.json.decode(run.progress, type=Letter) for run in runs if run.progress is not None]
    assert sorted(len(letter.events) for letter in letters) == [2, 12, 50], "all of them, in two messages"


async def test_a_queue_with_more_runs_than_are_looked_at_is_not_well(
    api: Api, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horarium.operations.looking.attending.PAGE_MAX", 2)
    await api.add_job("job")
    target = {"type": "queue", "queue": "mails"}
    await api.post("/runs/batch", {"runs": [{"target": target}] * 13})
    api.clock.advance(60)
    assert len((await api.post("/runs/claim", {"queues": ["mails"], "worker": "w"})).json["runs"]) == 1
    await visitor.open("/")
    assert "All is well" not in visitor.text
    assert "More runs wait than can be looked at 12 runs wait; whether jobs are late is not known" in visitor.text


async def test_the_last_line_of_a_traceback_is_quoted(api: Api, visitor: Visitor) -> None:
    await api.add_job("job")
    await api.post("/jobs/job/trigger")
    (run,) = await api.claim()
    error = 'File "/srv/app/module_0.py", line 0, in f\n    raise ValueError("no price")\nValueError: no price\n'
    await api.post(f"/runs/{run['id']}/fail", {"token": run["lease"]["token"], "error": error, "retryable": False})
    await visitor.open("/")
    assert "ValueError: no price . Last" in visitor.text


async def test_a_hold_on_everything_is_said_once_with_what_becomes_of_what_comes(api: Api, visitor: Visitor) -> None:
    for name, rule, fields in (
        ("hourly", "every hour on the hour", {}),
        ("dropped", "every day at 1pm", {"catch_up": {"policy": "none"}}),
        ("after", "every day at 11pm", {}),
    ):
        await api.add_job(name, trigger={"type": "phrase", "text": rule}, **fields)
    until = to_text(api.clock.now() + 6 * HOUR)
    await api.post("/holds", {"scope": {"all": True}, "until": until, "reason": "new disks"})
    await visitor.open("/")
    assert "Nothing else needs attention" in visitor.text, visitor.text
    assert "On hold" not in visitor.text
    assert visitor.text.count("new disks") == 1
    end = day_text(api.clock.now() + 6 * HOUR, "UTC")[-5:]
    assert f"Nothing begins until {end} ." in visitor.text
    assert f"hourly held, {end}" in visitor.text
    assert "dropped too late by then" in visitor.text
    assert "after in" in visitor.text
    assert f"At {end} it catches up." in visitor.text
    assert "; held since" in visitor.page, "its band in the chart"
    await visitor.open("/jobs")
    assert "new disks" in visitor.text


async def test_a_host_that_is_down_is_a_cause_and_no_banner_beside_it(api: Api, visitor: Visitor) -> None:
    await api.add_job("job")
    probing, now = Probing(api.clock.now() + MINUTE, 60.0), api.clock.now()
    hold = Hold(
        id="breaker-api:443", scope=HoldScope(host="api:443"), begins_at=now, reason="20 requests failed",
        created_at=now, probing=probing,
    )  # fmt: skip
    await api.store.put_records([RecordChange(Record(name=HOLD + hold.id, body=msgspec.json.encode(hold)))])
    await api.operations.reconciler.holding.look()
    await visitor.open("/")
    assert "One thing needs attention" in visitor.text, visitor.text
    assert "api:443 is down since" in visitor.text
    assert "calls are held, one probe a minute 20 requests failed" in visitor.text
    assert "Nothing of host api:443 begins" not in visitor.text
    await visitor.open("/jobs")
    assert "Nothing of host api:443 begins" in visitor.text


async def test_what_failed_in_a_row_is_retried_from_the_first_page(api: Api, visitor: Visitor) -> None:
    await api.add_job("job")
    await a_failed_run(api)
    api.clock.advance(60)
    await api.post("/jobs/job/trigger")
    (run,) = await api.claim()
    await api.post(f"/runs/{run['id']}/complete", {"token": run["lease"]["token"]})
    for _ in range(2):
        api.clock.advance(60)
        await a_failed_run(api)
    await visitor.open("/")
    retry = re.search(r'href="(/bulk-runs[^"]+)" aria-label="Retry 2: job"', visitor.page)
    assert retry is not None, visitor.text
    await visitor.open(unescape(retry[1]))
    assert "Retry 2 runs?" in visitor.text, "the one before the success is left"


async def test_three_hundred_queues_without_workers_are_eleven_lines(api: Api, visitor: Visitor) -> None:
    await api.add_job("job")
    now = api.clock.now()
    await api.store.add_runs(
        [
            Run(id=uuid7(now, number.to_bytes(10, "big")), queue=f"pull/q{number:03}", job=None, job_id=None,
                fire_at=now, due_at=now, created_at=now)
            for number in range(300)
        ]
    )  # fmt: skip
    api.clock.advance(120)
    await visitor.open("/")
    assert "300 things need attention" in visitor.text
    assert "290 more queues have no worker" in visitor.text
    assert visitor.page.count('Open queue"') + visitor.page.count("Open queue<") == 10, (
        "ten lines, each with a button of that name"
    )


async def test_a_run_is_found_by_its_id_wherever_it_is_typed(api: Api, visitor: Visitor) -> None:
    await api.add_job("job")
    run = await a_failed_run(api)
    for path in (f"/runs?job={run}", f"/jobs?q={run.upper()}"):
        reply = await visitor.open(path)
        assert (reply.status, reply.headers["location"]) == (303, f"/runs/{run}")
    assert (await visitor.open(f"/runs?job={run[:-1]}0")).status == 200, "an id of no run is a filter without a match"


async def test_a_job_is_found_by_its_title_and_by_a_label(api: Api, visitor: Visitor) -> None:
    await api.add_job("qx-17", title="Send the invoices", labels={"team": "billing"})
    await api.add_job("other")
    for part in ("invoices", "BILLING"):
        await visitor.open(f"/jobs?q={part}")
        assert "qx-17" in visitor.text, part
        assert "Choose other" not in visitor.page, part
    await visitor.open("/jobs/qx-17")
    assert "Send the invoices" in visitor.text


async def test_the_error_stands_in_the_row_and_under_the_title(api: Api, visitor: Visitor) -> None:
    await api.add_job("job")
    for _ in range(2):
        await a_failed_run(api, error="Traceback (most recent call last):\n  File x\nValueError: no price for XDR")
    await visitor.open("/runs?state=failed")
    assert visitor.text.count("ValueError: no price for XDR") == 2
    await visitor.open("/jobs/job")
    assert "Failed 2 times in a row, the first" in visitor.text
    await visitor.open("/runs?error=xdr")
    assert visitor.text.count("ValueError: no price for XDR") == 2, "capitals do not matter"


async def test_the_reason_of_a_cancelled_run_is_not_the_error_of_the_failures_before_it(
    api: Api, visitor: Visitor
) -> None:
    await api.add_job("bank")
    await a_failed_run(api, "bank", "HTTP 500")
    api.clock.advance(2)
    failed = await a_failed_run(api, "bank", "HTTP 503")
    for _ in range(12):
        api.clock.advance(2)
        run = (await api.post("/jobs/bank/trigger")).json["id"]
        await api.post(f"/runs/{run}/cancel", {"reason": "by mistake"})
    await visitor.open("/jobs/bank")
    assert re.search(rf'href="/runs/{failed}">Failed 2 times in a row[^<]+</a>: HTTP 503<', visitor.page)
    await visitor.open("/")
    assert "HTTP 503 . Last" in visitor.text, visitor.text
    assert "by mistake" not in visitor.text
    (fault,) = (await api.get("/attention")).json["items"]
    assert fault["text"] == "job bank failed, 2 in a row: HTTP 503"


async def test_the_page_of_a_job_says_which_of_its_fire_times_a_hold_lies_over(api: Api, visitor: Visitor) -> None:
    await api.add_job("hourly", trigger={"type": "phrase", "text": "every hour on the hour"})
    await a_failed_run(api, "hourly")
    await visitor.open("/jobs/hourly")
    assert "on hold" not in visitor.text
    until = to_text(api.clock.now() + 150 * MINUTE)
    assert (await api.post("/holds", {"scope": {"all": True}, "reason": "new disks", "until": until})).status == 201
    api.clock.advance(2)
    await visitor.open("/jobs/hourly")
    assert re.search(r"Next in [^,]+, on hold until [0-9:]+: new disks", visitor.text), visitor.text
    strip = visitor.page.partition("data-strip")[2].partition("</ol>")[0]
    assert strip.count(": new disks.") == 4, "two, in the tip and to those who hear"
    assert "Will run in" in strip, "those after it run"
    await visitor.open("/jobs")
    assert "; held: 2 of the next 4" in visitor.page, "the strip of a list says it too"
    await visitor.open("/")
    assert visitor.page.count('href="#m-held" x=') == 2, "and that of a job that fails"
    await visitor.open("/calendar?span=day&often=1")
    said = re.findall(r"hourly (\d\d:00) , (Held|Will run)", visitor.text)
    assert [word for _, word in said[:3]] == ["Held", "Held", "Will run"], visitor.text
    assert visitor.page.count('class="future held ') == 2, "a band over the hours that are held"


async def test_a_page_that_is_refused_for_its_cost_is_a_page(
    api: Api, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "CALLERS_AT_ONCE", 0)
    monkeypatch.setattr(questions, "QUESTION_SECONDS", 0.01)
    reply = await visitor.open("/forecast")
    assert (reply.status, reply.headers["content-type"]) == (503, "text/html; charset=utf-8")
    assert reply.headers["retry-after"] == "1", "so a page in view tells this from a store that does not answer"
    assert "This page takes too long" in visitor.text
    assert "refresh" not in visitor.page, "asking again by itself would cost as much again"
