"""The file itself: its URL, who may read it, opening, its schema, and what is wrong with it when something is."""

from __future__ import annotations

import asyncio
import os
import resource
import stat
import threading
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from horarium.errors import BrokenInvariant, InvalidSetting, StoreUnavailable
from horarium.model import Plan
from horarium.stores.encoding import CAUSES, DISPOSITIONS, STATES, decode_id_digits, encode_id
from horarium.stores.migrations import Migration, known_migrations
from horarium.stores.queries import Queries
from horarium.stores.sqlite import SqliteStore
from horarium.stores.sqlite.connect import connect, explain, parse_url
from horarium.stores.sqlite.migrate import PACKAGE, migrate
from horarium.stores.sqlite.session import ROWS_MAX, SIZES, Session
from horarium.testing.values import NOW, a_job, a_run
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

KNOWN = known_migrations(PACKAGE)
SCHEMA = Path(__file__).with_name("sqlite_schema.sql")


def url_of(path: Path, options: str = "") -> str:
    return f"sqlite:///{path}{options}"


async def opened(path: Path, options: str = "") -> SqliteStore:
    store = SqliteStore(url_of(path, options))
    await store.open()
    return store


# ---- the URL ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///jobs.db", "jobs.db"),
        ("sqlite:///data/jobs.db", "data/jobs.db"),
        ("sqlite:////var/lib/jobs.db", "/var/lib/jobs.db"),
        ("sqlite:///a%20b.db", "a b.db"),
    ],
)
def test_a_url_names_a_file(url: str, path: str) -> None:
    assert parse_url(url).path == path


def test_a_url_may_say_how_it_is_written() -> None:
    location = parse_url("sqlite:///a.db?synchronous=normal&busy_seconds=0.5")
    assert (location.synchronous, location.busy_seconds) == ("normal", 0.5)
    assert parse_url("sqlite:///a.db").synchronous == "full"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite://host/a.db", "names no file"),
        ("postgresql:///a.db", "names no file"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///a.db?synchronous=off", "give full or normal"),
        ("sqlite:///a.db?busy_seconds=soon", "from 0 to 60"),
        ("sqlite:///a.db?busy_seconds=61", "from 0 to 60"),
        ("sqlite:///a.db?cache=shared", "unknown option 'cache'"),
    ],
)
def test_a_wrong_url_is_refused_with_its_reason(url: str, why: str) -> None:
    with pytest.raises(InvalidSetting, match=why):
        SqliteStore(url)


# ---- opening ----------------------------------------------------------------------------------------------------


async def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    store = await opened(tmp_path / "jobs.db")
    await store.add_jobs([a_job()])
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["jobs.db", "jobs.db-shm", "jobs.db-wal"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    await store.close()


async def test_closing_leaves_one_file(tmp_path: Path) -> None:
    store = await opened(tmp_path / "jobs.db")
    await store.add_jobs([a_job()])
    await store.close()
    await store.close()
    assert [file.name for file in tmp_path.iterdir()] == ["jobs.db"]


async def test_commits_wait_for_the_disk_unless_told_not_to(tmp_path: Path) -> None:
    for options, level in (("", 2), ("?synchronous=normal", 1)):
        store = await opened(tmp_path / "jobs.db", options)
        assert await store._writer.call(lambda session: session.connection.pragma("synchronous")) == level
        await store.close()


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"there is no directory .*nowhere"):
        await opened(tmp_path / "nowhere" / "jobs.db")


async def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="readable and writable"):
        await opened(tmp_path)


async def test_a_store_that_did_not_open_can_be_opened_later(tmp_path: Path) -> None:
    store = SqliteStore(url_of(tmp_path / "later" / "jobs.db"))
    with pytest.raises(StoreUnavailable):
        await store.open()
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.check()
    (tmp_path / "later").mkdir()
    await store.open()
    await store.check()
    await store.close()


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = await opened(tmp_path / "jobs.db")
    await store.close()
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.get_jobs(["a"])


async def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be taken for one" * 100)
    with pytest.raises(InvalidSetting, match="not a SQLite database"):
        await opened(path)
    assert path.read_text().startswith("not a database")


async def test_a_damaged_database_is_reported_as_such(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = await opened(path)
    await store.add_runs([a_run(number) for number in range(500)])
    await store.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))
    with pytest.raises(BrokenInvariant, match="damaged"):
        await opened(path)


def test_errors_of_ours_pass_through_unchanged() -> None:
    mine = ValueError("mine")
    assert explain(mine, "jobs.db") is mine
    assert isinstance(explain(apsw.ConstraintError("x"), "jobs.db"), BrokenInvariant)


# ---- threads and processes --------------------------------------------------------------------------------------


async def test_a_store_does_not_survive_a_fork(tmp_path: Path) -> None:
    store = await opened(tmp_path / "jobs.db")
    child = os.fork()
    if child == 0:
        try:
            store.check().send(None)
        except BrokenInvariant:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    await store.check()
    await store.close()


async def test_callers_who_wait_together_share_one_commit(tmp_path: Path) -> None:
    store = await opened(tmp_path / "jobs.db")
    commits: list[None] = []
    release, entered = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def count() -> bool:
        commits.append(None)
        return False

    def hold(session: Session) -> None:
        loop.call_soon_threadsafe(entered.set)
        release.wait(PATIENCE)
        session.connection.set_commit_hook(count)

    holding = asyncio.create_task(store._writer.call(hold))
    await entered.wait()
    calls = [asyncio.create_task(store.add_runs([a_run(number)])) for number in range(50)]
    failing = asyncio.create_task(store._writer.call(fail_half_way))
    later = asyncio.create_task(store.add_runs([a_run(50)]))
    await asyncio.wait([holding], timeout=0)
    release.set()
    assert await asyncio.gather(*calls, later) == [[True]] * 51
    with pytest.raises(ZeroDivisionError):
        await failing
    await holding
    assert len(commits) <= 2  # the one that was held, and the group
    assert await store.get_jobs(["half"]) == [None]
    await store.close()


def fail_half_way(session: Session) -> None:
    session.change("intern_worker", "half")
    raise ZeroDivisionError


async def test_reading_does_not_wait_for_a_write(tmp_path: Path) -> None:
    store = await opened(tmp_path / "jobs.db")
    await store.add_jobs([a_job()])
    release = threading.Event()
    writing = asyncio.create_task(store._writer.call(lambda session: release.wait(2 * PATIENCE)))
    assert await asyncio.wait_for(store.get_jobs([a_job().name]), PATIENCE) == [a_job()]
    release.set()
    assert await writing
    await store.close()


async def test_another_process_is_noticed(tmp_path: Path) -> None:
    store, other = await opened(tmp_path / "jobs.db"), await opened(tmp_path / "jobs.db")
    await store.changed()
    assert not await store.changed()
    await other.add_jobs([a_job()])
    assert await store.changed()
    assert not await store.changed()
    await store.add_jobs([a_job("own")])
    assert not await store.changed(), "what it wrote itself is no news: it would be woken ten times a second"
    await other.add_jobs([a_job("theirs")])
    await store.add_jobs([a_job("own-too")])
    assert await store.changed()
    assert not await store.changed()
    await store.close()
    await other.close()


async def test_nothing_is_acknowledged_when_the_commit_fails_and_all_goes_on_with_room(tmp_path: Path) -> None:
    store = await opened(tmp_path / "jobs.db")
    log = tmp_path / "jobs.db-wal"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, hard))
    try:
        with pytest.raises(StoreUnavailable, match=r"jobs\.db"):
            await store.add_runs([a_run(1)])
        with pytest.raises(StoreUnavailable):
            await store.check()
        assert await store.get_runs([a_run(1).id]) == [None]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert await store.add_runs([a_run(1)]) == [True]
    assert await store.get_runs([a_run(1).id]) == [a_run(1)]
    await store.close()


async def test_a_full_file_is_named_as_the_reason(tmp_path: Path) -> None:
    store = await opened(tmp_path / "jobs.db")
    await store._writer.call(lambda session: session.connection.pragma("max_page_count", 1))
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await store.add_runs([a_run(number) for number in range(1_000)])
    await store._writer.call(lambda session: session.connection.pragma("max_page_count", 1_000_000))
    assert all(await store.add_runs([a_run(number) for number in range(1_000)]))
    await store.close()


async def test_a_lock_held_for_too_long_is_named_as_the_reason(tmp_path: Path) -> None:
    store = await opened(tmp_path / "jobs.db", "?busy_seconds=0")
    other = apsw.Connection(str(tmp_path / "jobs.db"))
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreUnavailable, match="busy timeout"):
        await store.check()
    assert await store.get_jobs(["a"]) == [None]
    other.execute("ROLLBACK")
    await store.check()
    other.close()
    await store.close()


# ---- the schema -------------------------------------------------------------------------------------------------


def test_the_migrations_give_exactly_the_schema(tmp_path: Path) -> None:
    connection = connect(parse_url(url_of(tmp_path / "jobs.db")))
    for count in range(1, len(KNOWN) + 1):
        assert migrate(connection, KNOWN[:count]) == 1
    assert migrate(connection, KNOWN) == 0
    found = connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY type, name").fetchall()
    assert "\n\n".join(f"{sql};" for (sql,) in found) + "\n" == SCHEMA.read_text()
    connection.close()


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [step.number for step in KNOWN] == list(range(1, len(KNOWN) + 1))


async def test_a_schema_that_needs_newer_code_is_refused(tmp_path: Path) -> None:
    connection = connect(parse_url(url_of(tmp_path / "jobs.db")))
    migrate(connection, [*KNOWN, Migration(9_999, "later", "-- needs: 9999\nCREATE TABLE later (a)")])
    connection.close()
    with pytest.raises(InvalidSetting, match="its schema is version 9999"):
        await opened(tmp_path / "jobs.db")


def test_an_edited_migration_is_noticed(tmp_path: Path) -> None:
    connection = connect(parse_url(url_of(tmp_path / "jobs.db")))
    migrate(connection, [Migration(1, "first", "CREATE TABLE a (b)")])
    with pytest.raises(InvalidSetting, match=r"of no release of Horarium.*0001"):
        migrate(connection, [Migration(1, "first", "CREATE TABLE a (c)")])
    connection.close()


def test_a_migration_that_fails_leaves_nothing(tmp_path: Path) -> None:
    connection = connect(parse_url(url_of(tmp_path / "jobs.db")))
    steps = [Migration(1, "first", "CREATE TABLE a (b)"), Migration(2, "second", "CREATE TABLE a (b)")]
    with pytest.raises(apsw.SQLError):
        migrate(connection, steps)
    assert connection.execute("SELECT count(*) FROM sqlite_schema").get == 0
    connection.close()


async def test_stores_that_open_a_new_file_together_agree(tmp_path: Path) -> None:
    stores = [SqliteStore(url_of(tmp_path / "jobs.db"), f"space-{number % 3}") for number in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    for store in stores:
        await store.check()
    await asyncio.gather(*(store.close() for store in stores))


def test_the_numbers_of_the_schema_never_change() -> None:
    assert " ".join(STATES) == "pending running cancelling completed failed cancelled skipped"
    assert " ".join(CAUSES) == "schedule catch_up manual backfill enqueued follow_up ping"
    assert " ".join(each or "-" for each in DISPOSITIONS) == (
        "ran skipped_overlap skipped_paused missed - - - withdrawn not_started cancelled skipped_override held rejected"
        " approval_expired"
    )


# ---- small parts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0198c0de-0000-7000-8000-000000000001", "", "job-1", "é\ud800", "x" * 36, "0" * 32])
def test_any_id_comes_back(text: str) -> None:
    assert decode_id_digits(encode_id(text).hex()) == text


def test_a_query_has_as_many_rows_as_asked() -> None:
    queries = Queries("-- name: add\n-- why\nINSERT INTO a VALUES (?, ?);\n\n-- name: other\nSELECT 1;\n")
    assert queries.names() == ["add", "other"]
    assert queries.rows("add", 2) == "INSERT INTO a VALUES (?, ?),(?, ?)"


@pytest.mark.parametrize("count", sorted({1, *SIZES, *(size + 1 for size in SIZES), 2 * ROWS_MAX + 1}))
async def test_every_size_of_batch_is_written(tmp_path: Path, count: int) -> None:
    store = await opened(tmp_path / "jobs.db", "?synchronous=normal")
    runs = [a_run(number) for number in range(count)]
    assert await store.add_runs(runs) == [True] * count
    assert await store.get_runs([run.id for run in runs]) == runs
    assert await store.add_runs(runs) == [False] * count
    claimed = await store.claim_runs([runs[0].queue], count + 1, "w", NOW, NOW, NOW)
    assert len(claimed.runs) == count
    await store.close()


async def test_a_job_that_is_read_again_is_the_same_value_until_it_changes(tmp_path: Path) -> None:
    store = await opened(tmp_path / "horarium.db")
    job = a_job()
    assert await store.add_jobs([job]) == [True]
    (first,) = await store.get_jobs([job.name])
    assert first == job
    assert (await store.get_jobs([job.name]))[0] is first
    assert await store.commit_plans([Plan(replace(job, title="another"))], NOW) == [True]
    (changed,) = await store.get_jobs([job.name])
    assert changed is not None
    assert (changed.title, changed.version) == ("another", job.version + 1)
    assert (await store.get_jobs([job.name]))[0] is changed
    await store.close()
