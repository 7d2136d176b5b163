"""A store that can't be used as it was named: said at once, in a sentence that says what to do."""

from __future__ import annotations

import os
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from horarium import Scheduler
from horarium.errors import InvalidSetting, StoreRefused, StoreUnavailable
from horarium.node.backends import BUS_DRIVERS, BUS_SCHEMES, STORE_DRIVERS, make_backend, make_bus
from tests.blackbox.outside import horarium
from tests.servers.mongo import Mongo
from tests.servers.postgres import Postgres
from tests.stores.postgres_server import execute
from tests.stores.redis_server import running

AT_ONCE_SECONDS = 50.0
"""Less than the minute for which a store that is merely down is tried, on a busy machine too."""
INSTALLED = {
    "asyncpg": "asyncpg", "redis": "redis", "hiredis": "hiredis", "pymongo": "pymongo", "aio_pika": "aio-pika",
    "nats": "nats-py",
}  # fmt: skip


async def refusal(url: str) -> str:
    """Why a store refuses to be opened."""
    with pytest.raises(StoreRefused) as caught:
        await Scheduler(url).open()
    return str(caught.value)


# ---- what is missing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", STORE_DRIVERS)
def test_a_store_whose_driver_is_missing_names_the_extra(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extra, *modules = STORE_DRIVERS[scheme]
    for module in modules:
        with monkeypatch.context() as without:
            without.setitem(sys.modules, module, None)
            with pytest.raises(InvalidSetting) as caught:
                make_backend(f"{scheme}://localhost/x")
        assert str(caught.value) == (
            f"store: {scheme}:// needs {INSTALLED[module]}, which is not installed; pip install 'horarium[{extra}]'"
        )


@pytest.mark.parametrize("scheme", BUS_DRIVERS)
def test_a_bus_whose_driver_is_missing_names_the_extra(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extra, *modules = BUS_DRIVERS[scheme]
    for module in modules:
        with monkeypatch.context() as without:
            without.setitem(sys.modules, module, None)
            with pytest.raises(InvalidSetting, match=rf"{scheme}:// needs {INSTALLED[module]}, .*horarium\[{extra}\]"):
                make_bus(f"{scheme}://localhost/")


def test_every_scheme_of_a_bus_but_memory_has_its_extra() -> None:
    assert set(BUS_DRIVERS) == set(BUS_SCHEMES) - {"memory"}


def test_one_extra_has_all_the_drivers() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert {extra for extra, *_ in (*STORE_DRIVERS.values(), *BUS_DRIVERS.values())} < set(extras)
    (everything,) = extras["all"]
    assert set(everything.removeprefix("horarium[").removesuffix("]").split(",")) == set(extras) - {"all", "dev"}


# ---- what was meant ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("sqlite:x3.db", "sqlite:///x3.db"),
        ("sqlite:/x/a.db", "sqlite:////x/a.db"),
        ("sqlite://x3.db", "sqlite:///x3.db"),
        ("sqlite:./a.db?synchronous=normal", "sqlite:///./a.db"),
    ],
)
def test_a_file_with_too_few_slashes_is_refused(given: str, meant: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSetting, match=f"give {meant}$"):
        Scheduler(given)
    assert list(tmp_path.iterdir()) == []


# ---- what can never be opened -----------------------------------------------------------------------------------


async def test_a_file_in_no_folder(tmp_path: Path) -> None:
    assert f"there is no directory {tmp_path}/none; create it" in await refusal(f"sqlite:///{tmp_path}/none/x.db")


async def test_a_file_that_can_not_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "Not a directory" in await refusal(f"sqlite:///{tmp_path}/file/x.db")
    assert "Is a directory" in await refusal(f"sqlite:///{tmp_path}")
    if os.path.isdir("/proc"):
        assert "no file can be made in /proc" in await refusal("sqlite:////proc/x.db")


@pytest.mark.slow
async def test_a_role_or_database_that_postgresql_does_not_have(postgres_server: Postgres) -> None:
    at = f"127.0.0.1:{postgres_server.port}"
    assert "look at the role" in await refusal(f"postgresql://nobody@{at}/postgres")
    assert "create the database" in await refusal(f"postgresql://postgres@{at}/none")
    assert "create the database" in await refusal(f"cockroachdb://postgres@{at}/none")


@pytest.mark.slow
async def test_a_password_that_postgresql_does_not_take(postgres_server: Postgres) -> None:
    rules = postgres_server.folder / "data" / "pg_hba.conf"
    before = rules.read_text()
    await execute(postgres_server.url, "CREATE ROLE guarded LOGIN PASSWORD 'right'")
    try:
        rules.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + before)
        await execute(postgres_server.url, "SELECT pg_reload_conf()")
        url = f"postgresql://guarded:wrong@127.0.0.1:{postgres_server.port}/postgres"
        until = time.monotonic() + AT_ONCE_SECONDS
        while "password" not in (said := await refusal(url)) and time.monotonic() < until:
            pass
        assert "look at the role and the password" in said
        assert "wrong" not in said
    finally:
        rules.write_text(before)
        await execute(postgres_server.url, "SELECT pg_reload_conf()")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "valkey"])
async def test_a_password_that_redis_does_not_take(kind: str) -> None:
    with running(kind, requirepass="right") as server:
        said = await refusal(f"redis://:wrong@127.0.0.1:{server.port}/0")
        assert "look at the store's URL" in said
        assert "wrong@" not in said
        assert "give it in the store's URL" in await refusal(server.url)


@pytest.fixture(scope="module")
def private_mongo() -> Iterator[Mongo]:
    server = Mongo(private=True)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.mark.slow
async def test_a_password_that_mongodb_does_not_take(private_mongo: Mongo) -> None:
    wrong = private_mongo.url.replace(":" + str(private_mongo._password), ":wrong")
    assert "the user name or the password is refused" in await refusal(wrong)
    bare = f"mongodb://{private_mongo.address}/horarium?replicaSet=rs0"
    assert "grant readWrite" in await refusal(bare)


@pytest.mark.slow
def test_a_server_says_so_at_once_and_ends(tmp_path: Path, postgres_server: Postgres) -> None:
    for url in (f"sqlite:///{tmp_path}/none/x.db", f"postgresql://nobody@127.0.0.1:{postgres_server.port}/postgres"):
        begun = time.monotonic()
        done = horarium("serve", "--port", "0", "--store", url)
        assert time.monotonic() - begun < AT_ONCE_SECONDS
        assert (done.returncode, "trying for" in done.stderr) == (1, False), done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


async def test_a_store_that_is_merely_down_is_no_refusal(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        await Scheduler("redis://127.0.0.1:1/0").open()
    assert not isinstance(caught.value, StoreRefused)
