"""The jobs of a program: by decorator, or declared as a list that is the truth."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from horarium import RunContext, Scheduler, SyncScheduler, at, cron, every, job
from horarium.errors import InvalidJob, InvalidRequest, InvalidTrigger, WrongArguments
from horarium.library.declaring import PROGRAM_LABEL, Declared

NIGHTLY = job("nightly", cron("0 3 * * *"), handler="report", labels={"team": "red"})
HOURLY = job("hourly", every("1h"), queue="q")


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    async with Scheduler("memory://", program="shop") as scheduler:
        yield scheduler


async def names(scheduler: Scheduler) -> list[str]:
    return [job.name for job in (await scheduler.list_jobs()).items]


async def test_what_is_listed_is_made_and_stays_as_it_is(scheduler: Scheduler) -> None:
    assert await scheduler.declare([NIGHTLY, HOURLY]) == Declared(created=("nightly", "hourly"))
    before = await scheduler.list_jobs()
    assert await scheduler.declare([NIGHTLY, HOURLY]) == Declared(unchanged=("nightly", "hourly"))
    assert await scheduler.list_jobs() == before
    assert (await scheduler.get_job("nightly")).labels == {"team": "red", PROGRAM_LABEL: "shop"}
    changed = NIGHTLY._replace(trigger=cron("0 4 * * *"))
    assert (await scheduler.declare([changed, HOURLY])).to_dict() == {
        "created": (), "updated": ("nightly",), "unchanged": ("hourly",), "gone": (), "pruned": False
    }  # fmt: skip


async def test_a_job_that_left_the_program_is_shown_and_pruned_if_asked(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    await scheduler.add_job("by-hand", every("1h"), queue="q")
    await scheduler.declare([NIGHTLY, HOURLY])
    shown = await scheduler.declare([NIGHTLY], prune=True, dry_run=True)
    assert shown == Declared(unchanged=("nightly",), gone=("hourly",))
    assert await names(scheduler) == ["by-hand", "hourly", "nightly"]
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING, "horarium"):
        assert (await scheduler.declare([NIGHTLY])).gone == ("hourly",)
    assert "that the program shop declared earlier and this one no longer has: hourly" in caplog.text
    assert (await scheduler.declare([NIGHTLY], prune=True)) == Declared(
        unchanged=("nightly",), gone=("hourly",), pruned=True
    )
    assert await names(scheduler) == ["by-hand", "nightly"]
    assert "the program shop no longer has are deleted: hourly" in caplog.text
    assert (await scheduler.declare([], prune=True)).gone == ("nightly",)
    assert await names(scheduler) == ["by-hand"]


async def test_a_dry_run_writes_nothing(scheduler: Scheduler) -> None:
    assert await scheduler.declare([NIGHTLY], dry_run=True) == Declared(created=("nightly",))
    assert await names(scheduler) == []


async def test_programs_that_share_a_namespace_leave_one_another_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Scheduler(url, program="billing") as billing, Scheduler(url, program="mail") as mail:
        await billing.declare([NIGHTLY])
        assert (await mail.declare([HOURLY], prune=True)).gone == ()
        assert await names(mail) == ["hourly", "nightly"]
        with pytest.raises(InvalidJob, match="job 'nightly' is declared by the program 'billing'"):
            await mail.declare([NIGHTLY])


async def test_a_job_that_was_added_by_hand_is_taken_over(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    await scheduler.add_job("hourly", every("2h"), queue="q")
    assert await scheduler.declare([HOURLY]) == Declared(updated=("hourly",))
    assert "job hourly is of the program shop now: no program had declared it" in caplog.text


@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_program_without_a_name_deletes_no_jobs(tmp_path: Path, dry_run: bool) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Scheduler(url) as billing, Scheduler(url) as mail:
        await billing.declare([NIGHTLY])
        with pytest.raises(InvalidRequest, match=r"^prune: this program has no name.* program='billing'"):
            await mail.declare([HOURLY], prune=True, dry_run=dry_run)
        assert await names(mail) == ["nightly"]


async def test_programs_without_a_name_that_overwrite_each_other_are_warned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Scheduler(url) as billing, Scheduler(url) as mail:
        await billing.declare([NIGHTLY])
        await mail.declare([NIGHTLY])
        assert caplog.text == ""
        await mail.declare([NIGHTLY._replace(trigger=cron("0 4 * * *"))])
        assert "have changed: nightly; if another program without a name declares them too" in caplog.text


async def test_a_program_that_is_given_a_name_takes_its_jobs_along(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Scheduler(url) as before, Scheduler(url, program="billing") as billing:
        await before.declare([NIGHTLY, HOURLY])
        assert (await billing.declare([NIGHTLY], prune=True)) == Declared(updated=("nightly",), pruned=True)
        assert "job nightly is of the program billing now: a program without a name had declared it" in caplog.text
        with pytest.raises(InvalidJob, match="declared by the program 'billing'"):
            await before.declare([NIGHTLY])


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (job("x", every("5m"), queue="q", overlap="forbid"), InvalidJob, "overlap: expected one of"),  # type: ignore[arg-type]
        (
            job("x", at(datetime(1990, 1, 1, tzinfo=UTC)), queue="q"),
            InvalidTrigger,
            "job 'x': trigger: .* no fire",
        ),
        (job("x", "5m", queue="q"), InvalidTrigger, r"every\('5m'\)"),  # type: ignore[arg-type]
        (job("hourly", every("5m"), queue="q"), InvalidJob, "job 'hourly' is declared twice"),
        ({"name": "x", "queue": "q"}, InvalidJob, "at least `name` and `trigger`"),
        ("x", InvalidJob, "at least `name` and `trigger`"),
        ({"name": "x", "trigger": every("5m"), "que": "q"}, InvalidJob, "did you mean 'queue'"),
    ],
)
async def test_nothing_is_written_where_one_is_wrong(
    scheduler: Scheduler, wrong: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        await scheduler.declare([HOURLY, wrong])
    assert await names(scheduler) == []


async def test_more_jobs_than_go_into_a_batch(scheduler: Scheduler) -> None:
    many = [{"name": f"j{number:04}", "trigger": every("1h"), "queue": "q"} for number in range(1_201)]
    assert len((await scheduler.declare(many)).created) == 1_201
    assert len((await scheduler.declare(many[:1], prune=True)).gone) == 1_200
    assert await names(scheduler) == ["j0000"]


async def test_a_decorated_function_is_a_handler_with_a_job(scheduler: Scheduler) -> None:
    @scheduler.job(every("1h"), "hourly-greeting", args={"name": "world"}, overlap="skip")
    @scheduler.job(cron("0 3 * * *"), args={"name": "night"})
    async def greet(run: RunContext, name: str) -> None: ...

    assert await names(scheduler) == [], "only a start declares them"
    await scheduler.start()
    assert await names(scheduler) == ["greet", "hourly-greeting"]
    made = await scheduler.get_job("hourly-greeting")
    assert (made.queue, made.overlap, made.to_dict()["target"]["args"]) == ("handler/greet", "skip", {"name": "world"})


async def test_a_job_of_a_registered_handler_has_its_name(scheduler: Scheduler) -> None:
    @scheduler.job(every("1h"))
    @scheduler.handler("report", concurrency=2)
    def make_report(run: RunContext) -> None: ...

    assert await scheduler.declare([HOURLY]) == Declared(created=("hourly", "report"))
    await scheduler.start()
    assert await names(scheduler) == ["hourly", "report"], "what was declared before the start stays"


async def test_a_wrong_decorator_is_refused_where_it_is_written(scheduler: Scheduler) -> None:
    with pytest.raises(WrongArguments, match="nam"):

        @scheduler.job(every("1h"), args={"nam": "x"})
        def greet(run: RunContext, name: str) -> None: ...

    with pytest.raises(InvalidTrigger, match="not a function"):
        scheduler.job(greet_all)  # type: ignore[arg-type]
    await scheduler.start()
    with pytest.raises(InvalidJob, match="before the scheduler is started"):
        scheduler.job(every("1h"))


def greet_all(run: RunContext) -> None: ...


@pytest.mark.parametrize("program", [None, "shop"])
async def test_the_last_job_that_leaves_a_program_is_reported_at_its_start(
    tmp_path: Path, program: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Scheduler(url, program=program) as before:
        before.job(every("1h"))(greet_all)
        await before.start()
    assert "no longer has" not in caplog.text
    async with Scheduler(url, program=program) as after:
        await after.start()
        assert "declared earlier and this one no longer has: greet_all" in caplog.text
        assert await names(after) == ["greet_all"]


def test_the_next_version_of_a_program_says_what_is_left_of_the_one_before(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with SyncScheduler(url, program="shop") as first:
        first.job(every("1h"))(greet_all)
        first.job(every("1h"), "other")(greet_all)
        first.start()
    with SyncScheduler(url, program="shop") as second:
        second.job(every("1h"))(greet_all)
        assert second.declare(dry_run=True).gone == ("other",)
        assert json.loads(json.dumps(second.declare(prune=True).to_dict()))["gone"] == ["other"]
        assert [job.name for job in second.list_jobs().items] == ["greet_all"]
