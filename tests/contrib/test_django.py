"""The app of Django on a real PostgreSQL: the scheduler's store is the project's own database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.blackbox.outside import environment
from tests.servers.postgres import Postgres
from tests.stores.conftest import postgres_server as postgres_server
from tests.stores.postgres_server import new_database

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from urllib.parse import parse_qsl, urlsplit
import django
from django.conf import settings
given = urlsplit(sys.argv[1])
where = dict(parse_qsl(given.query)).get("host", given.hostname)
database = {"ENGINE": "django.db.backends.postgresql", "NAME": given.path[1:], "USER": given.username,
            "PASSWORD": given.password or "", "HOST": where, "PORT": str(given.port or "")}
settings.configure(INSTALLED_APPS=["horarium.contrib.django"], DATABASES={"default": database},
                   HORARIUM={"DATABASE": "default"})
django.setup()
from django.db import connection, transaction
from horarium.contrib.django import scheduler
closed = []
@scheduler.handler()
def count(number: int) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s + 1", [number])
        closed.append(connection.connection)
        return cursor.fetchone()[0]
scheduler.open()
class Undone(Exception): ...
try:
    with transaction.atomic():
        scheduler.enqueue_on_commit(count, {"number": 1})
        raise Undone
except Undone:
    pass
with transaction.atomic():
    scheduler.enqueue_on_commit("count", {"number": 2}, priority=3)
    run = scheduler.enqueue(count, {"number": 3}, connection=connection)
    assert scheduler.list_runs().items == ()
assert sorted(run.payload for run in scheduler.list_runs().items) == [b'{"number":2}', b'{"number":3}']
scheduler.start()
assert scheduler.wait_for(run.id, timeout=60).result == b"4"
scheduler.close()
assert all(each.closed for each in closed)
print("done")
"""
WRONG = """
import django, sys
from django.conf import settings
settings.configure(INSTALLED_APPS=["horarium.contrib.django"], HORARIUM=eval(sys.argv[1]),
                   DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "x"}})
django.setup()
from horarium.contrib.django import scheduler
"""


def python(program: str, argument: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, argument], cwd=folder, env=environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_runs_are_part_of_the_transactions_of_the_project(postgres_server: Postgres, tmp_path: Path) -> None:
    done = python(PROGRAM, new_database(postgres_server), tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{}", "give one of STORE and DATABASE"),
        ("{'STROE': 'memory://'}", "there is no 'STROE'"),
        ("{'DATABASE': 'default'}", "DATABASE 'default' is no PostgreSQL of DATABASES"),
    ],
)
def test_settings_that_name_no_store_are_refused(given: str, words: str, tmp_path: Path) -> None:
    done = python(WRONG, given, tmp_path)
    assert "ImproperlyConfigured: HORARIUM: " + words in done.stderr
