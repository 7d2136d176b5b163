"""The app of Django on a real PostgreSQL: the scheduler's store is the project's own database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from horarium.contrib.django.scheduling import database_url
from horarium.stores.postgres.connect import parse_url
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
beside = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(INSTALLED_APPS=["horarium.contrib.django"], DATABASES={"default": database, "beside": beside},
                   HORARIUM={"DATABASE": "default"})
django.setup()
import asyncio
from django.db import connection, connections, transaction
from horarium import Scheduler
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
async def enqueue(connection):
    async with Scheduler(sys.argv[1]) as other:
        await other.enqueue("count", {"number": 1}, connection=connection)
try:
    with transaction.atomic():
        scheduler.enqueue_on_commit(count, {"number": 1})
        asyncio.run(enqueue(connections["default"]))
        try:
            asyncio.run(enqueue(connection))
        except ValueError as error:
            assert "connections['default']" in str(error)
        raise Undone
except Undone:
    pass
try:
    with transaction.atomic(using="beside"):
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
TESTED = """
from django.core.management import call_command
from django.db import connection
from django.test.utils import setup_databases, setup_test_environment, teardown_databases
from horarium.contrib.django import scheduler
def runs():
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass('horarium.runs')")
        return cursor.fetchone()[0] and (cursor.execute("SELECT count(*) FROM horarium.runs"), cursor.fetchone()[0])[1]
assert runs() is None
setup_test_environment()
made = setup_databases(verbosity=0, interactive=False)
assert connection.settings_dict["NAME"].startswith("test_") and runs() == 0
scheduler.add_handler("work", print)
scheduler.enqueue("work")
assert runs() == 0
teardown_databases(made, verbosity=0)
assert runs() is None, "the live database is as it was"
call_command("migrate", verbosity=0)
assert runs() == 0
print("done")
"""
ISOLATED = """
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["horarium.contrib.django"], HORARIUM={"STORE": "sqlite:///live.db"})
django.setup()
from django.test.utils import setup_test_environment
from horarium.contrib.django import scheduler
from horarium.testing import assert_enqueued, assert_not_enqueued, in_memory, travel
scheduler.add_handler("work", print)
setup_test_environment()
with in_memory():
    scheduler.enqueue("work")
assert_not_enqueued(scheduler, "work")
scheduler.enqueue("work")
assert_enqueued(scheduler, "work", count=1)
with travel(scheduler, "2027-01-01T00:00Z") as clock:
    clock.advance("1h")
print("done")
"""
BESIDE = """
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["horarium.contrib.django"], HORARIUM={"STORE": "sqlite:///jobs.db"},
                   DATABASES={name: {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{name}.db"}
                              for name in ("default", "other", "third")})
django.setup()
from django.db import connection, transaction
from horarium.contrib.django import scheduler
@scheduler.handler()
def count(number: int) -> None: ...
connection.cursor().execute("CREATE TABLE orders (number int)")
for wrong in ({"args": {"nmber": 1}}, {"args": {"number": 1}, "dely": 5}, {"args": {"number": 1}, "unique": "k"}):
    try:
        with transaction.atomic():
            connection.cursor().execute("INSERT INTO orders VALUES (1)")
            scheduler.enqueue_on_commit(count, **wrong)
    except ValueError:
        continue
    raise AssertionError(wrong)
assert connection.cursor().execute("SELECT count(*) FROM orders").fetchone()[0] == 0
with transaction.atomic():
    args = {}
    for args["number"] in (1, 2):
        scheduler.enqueue_on_commit(count, args, unique={"key": "{args.number}"})
    assert scheduler.list_runs().items == ()
assert sorted(run.payload for run in scheduler.list_runs().items) == [b'{"number":1}', b'{"number":2}']
class Undone(Exception): ...
try:
    with transaction.atomic(using="other"):
        scheduler.enqueue_on_commit(count, {"number": 3})
        raise Undone
except Undone:
    pass
with transaction.atomic(using="other"):
    scheduler.enqueue_on_commit(count, {"number": 4})
    assert len(scheduler.list_runs().items) == 2
assert [run.payload for run in scheduler.list_runs().items][0] == b'{"number":4}'
with transaction.atomic(using="other"), transaction.atomic(using="third"):
    try:
        scheduler.enqueue_on_commit(count, {"number": 5})
    except ValueError as error:
        assert "transactions of other and third are open" in str(error)
assert len(scheduler.list_runs().items) == 3
scheduler.close()
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


ADMIN = """
import sys
import django
from django.conf import settings
apps = ["auth", "contenttypes", "sessions", "messages"]
settings.configure(
    INSTALLED_APPS=["django.contrib.admin", *(f"django.contrib.{app}" for app in apps), "horarium.contrib.django"],
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware",
                "django.contrib.auth.middleware.AuthenticationMiddleware",
                "django.contrib.messages.middleware.MessageMiddleware"],
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {
        "context_processors": ["django.template.context_processors.request",
                               "django.contrib.auth.context_processors.auth",
                               "django.contrib.messages.context_processors.messages"]}}],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}, ROOT_URLCONF="__main__",
    SECRET_KEY="x", ALLOWED_HOSTS=["*"], HORARIUM={"STORE": "memory://", "DASHBOARD": sys.argv[1]})
django.setup()
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client
from django.urls import path
urlpatterns = [path("admin/", admin.site.urls)]
call_command("migrate", verbosity=0)
call_command("makemigrations", check=True, dry_run=True, verbosity=0)
call_command("check", fail_level="WARNING")
chief, clerk = User.objects.create_superuser("chief"), User.objects.create_user("clerk", is_staff=True)
seen = []
for user in (chief, clerk):
    client = Client()
    client.force_login(user)
    link = "/admin/horarium/dashboard/"
    seen.append((link in client.get("/admin/").content.decode(), client.get(link).get("Location")))
clerk.user_permissions.add(Permission.objects.get(codename="view_dashboard"))
client.force_login(User.objects.get(username="clerk"))
print(*seen, client.get(link).get("Location"))
"""


def python(program: str, argument: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, argument], cwd=folder, env=environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_a_run_beside_a_transaction_is_checked_and_kept_before_it_commits(tmp_path: Path) -> None:
    done = python(BESIDE, "", tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_runs_are_part_of_the_transactions_of_the_project(postgres_server: Postgres, tmp_path: Path) -> None:
    done = python(PROGRAM, new_database(postgres_server), tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_no_test_touches_the_live_store(tmp_path: Path) -> None:
    """Neither after the first that looks into memory itself, nor before it was called."""
    done = python(ISOLATED, "", tmp_path)
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert not list(tmp_path.iterdir())


def test_migrating_makes_the_schema_in_the_database_of_the_tests_too(postgres_server: Postgres, tmp_path: Path) -> None:
    program = PROGRAM.partition("from django.db import connection")[0] + TESTED
    done = python(program, new_database(postgres_server), tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_the_admin_leads_those_to_the_dashboard_who_may_view_it(tmp_path: Path) -> None:
    done = python(ADMIN, "https://jobs.example.com/", tmp_path)
    there = "https://jobs.example.com/"
    assert done.stdout.splitlines()[-1:] == [f"(True, '{there}') (False, None) {there}"], done.stderr
    (tmp_path / "db.sqlite3").unlink()
    done = python(ADMIN, "", tmp_path)
    assert done.stdout.splitlines()[-1:] == ["(False, None) (False, None) None"], done.stderr


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({"HOST": "db", "PORT": 5433, "USER": "a@b", "PASSWORD": "p:/?"}, "postgresql://a%40b:p%3A%2F%3F@db:5433/shop"),
        ({"HOST": "::1", "PORT": ""}, "postgresql://[::1]/shop"),
        ({"HOST": "/run/postgresql", "NAME": "a/b"}, "postgresql:///a%2Fb?host=%2Frun%2Fpostgresql"),
        (
            {"HOST": "db", "OPTIONS": {"sslmode": "verify-full", "sslrootcert": "/ca.pem", "pool": True}},
            "postgresql://db/shop?sslmode=verify-full&sslrootcert=%2Fca.pem",
        ),
        ({"NAME": "", "OPTIONS": {"service": "shop", "passfile": ".pgpass"}}, "postgresql:///?service=shop&passfile=.pgpass"),
    ],
)  # fmt: skip
def test_a_database_of_the_project_is_reached_as_django_reaches_it(given: dict[str, Any], url: str) -> None:
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", **given}
    assert database_url("default", database) == url
    assert parse_url(url).dsn


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
