"""A database whose encoding is not UTF8: what `initdb` makes where no locale is set."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from msgspec.structs import replace

from horarium.errors import InvalidSetting
from horarium.ports import JobFilter
from horarium.stores.postgres import PostgresStore, migrate
from horarium.testing.values import NOW, a_job
from tests.servers.postgres import Postgres
from tests.stores.postgres_server import execute
from tests.stores.test_next_schema import live

pytestmark = pytest.mark.slow


def database(server: Postgres, encoding: str) -> str:
    """The URL of a new one."""
    name = f"test_{secrets.token_hex(6)}"
    how = f"ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    asyncio.run(execute(server.url, f"CREATE DATABASE {name} {how}"))
    return server.url.removesuffix("/postgres") + "/" + name


@pytest.fixture
def ascii_url(postgres_server: Postgres) -> str:
    return database(postgres_server, "SQL_ASCII")


@pytest.fixture
def latin_url(postgres_server: Postgres) -> str:
    return database(postgres_server, "LATIN1")


async def test_where_bytes_are_kept_as_they_are_all_is_answered(ascii_url: str) -> None:
    store = PostgresStore(ascii_url)
    await store.open()
    for round_ in (1, 2):
        await live(store, round_)
    job = replace(a_job("named", next_fire_at=NOW), title="\u65e5\u672c \U0001f600", labels={"where": "\u65e5\u672c"})
    assert await store.add_jobs([job]) == [True]
    for where in (JobFilter(), JobFilter(name_prefix="na"), JobFilter(enabled=True, name_prefix="na"),
                  JobFilter(finished=False), JobFilter(labels={"where": "\u65e5\u672c"})):  # fmt: skip
        assert job in (await store.list_jobs(where, None, 9)).items, where
    await store.jobs_ahead(NOW, None, 9)
    await store.close()


async def test_what_can_not_hold_every_text_is_refused_before_anything_is_made(latin_url: str) -> None:
    store = PostgresStore(latin_url)
    with pytest.raises(InvalidSetting, match="the encoding of this database is LATIN1"):
        await store.open()
    await store.close()


async def test_what_was_made_in_such_a_database_is_opened_and_listed(
    latin_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "ENCODINGS", frozenset({"LATIN1"}))
    first = PostgresStore(latin_url)
    await first.open()
    await first.close()
    monkeypatch.undo()
    store = PostgresStore(latin_url)
    await store.open()
    await live(store, 1)
    assert (await store.list_jobs(JobFilter(name_prefix="job"), None, 9)).items
    await store.jobs_ahead(NOW, None, 9)
    await store.close()
