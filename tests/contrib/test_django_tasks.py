"""The backend of Django's Tasks framework: a project with tasks, and the worker that performs them."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import django
import pytest

from tests.blackbox.outside import environment
from tests.contrib.test_django import PROGRAM as ON_POSTGRES
from tests.contrib.test_django import python
from tests.servers.postgres import Postgres
from tests.stores.conftest import postgres_server as postgres_server
from tests.stores.postgres_server import new_database
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

TASKS = """
try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

@task
def add(a, b=1):
    return {"sum": a + b}

@task(queue_name="heavy", priority=7)
async def wait(text):
    return text

@task(takes_context=True)
def tell(context, word):
    return [word, context.attempt, context.task_result.id]

@task(backend="patient")
def fail(word):
    raise LookupError(word)
"""
SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["horarium.contrib.django"]
HORARIUM = {"STORE": "sqlite:///horarium.db"}
BACKEND = "horarium.contrib.django.tasks.HorariumBackend"
TASKS = {
    "default": {"BACKEND": BACKEND, "QUEUES": ["default", "heavy"]},
    "patient": {"BACKEND": BACKEND, "OPTIONS": {"retry": {"attempts_max": 2, "backoff_seconds": 0.1}}},
}
"""
MANAGE = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""
PROGRAM = """
import asyncio, os, sys, time
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django
django.setup()
from datetime import datetime, timedelta, timezone
from horarium.contrib.django import scheduler
from horarium.contrib.django.tasks import _signals, backend_of, import_module, ROOT
import tasks
enqueued = []
_signals.task_enqueued.connect(lambda sender, task_result, **_: enqueued.append(task_result.id), weak=False)

def ended(result):
    scheduler.wait_for(result.id, timeout=100)
    result.refresh()
    return result

first = tasks.add.enqueue(1, b=2)
assert (first.status, first.task, first.args, first.kwargs, enqueued) == ("READY", tasks.add, [1], {"b": 2}, [first.id])
try:
    first.return_value
except ValueError as error:
    assert str(error) == "Task has not finished yet"
assert (ended(first).return_value, first.attempts, first.errors) == ({"sum": 3}, 1, [])
assert first.enqueued_at <= first.started_at <= first.finished_at
assert tasks.add.get_result(first.id) == first

told = ended(tasks.tell.enqueue("hello"))
assert told.return_value == ["hello", 1, told.id]
waiting = asyncio.run(tasks.wait.aenqueue("later"))
assert waiting.task.queue_name == "heavy" and waiting.task.priority == 7
assert scheduler.get_run(waiting.id).queue == "handler/django.default.heavy"

failed = ended(tasks.fail.enqueue("no such word"))
assert (failed.status, failed.attempts, len(set(failed.worker_ids))) == ("FAILED", 2, 1), failed
assert [error.exception_class for error in failed.errors] == [LookupError, LookupError]
assert "no such word" in failed.errors[0].traceback
at = datetime.now(timezone.utc) + timedelta(hours=1)
assert scheduler.get_run(tasks.add.using(run_after=at).enqueue(1).id).due_at == at

exceptions = import_module(ROOT + ".exceptions")
for wrong, error in (
    (lambda: tasks.add.get_result("00000000-0000-7000-8000-000000000000"), exceptions.TaskResultDoesNotExist),
    (lambda: tasks.tell.get_result(first.id), exceptions.TaskResultMismatch),
    (lambda: tasks.add.enqueue(object()), TypeError),
):
    try:
        wrong()
    except error:
        continue
    raise AssertionError(error)
assert scheduler.get_run(waiting.id).state == "pending"
print("done", waiting.id)
"""
LATER = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django
django.setup()
from horarium.contrib.django import scheduler
import tasks
print(scheduler.wait_for(sys.argv[1], timeout=100) and tasks.wait.get_result(sys.argv[1]).return_value)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    found = django.VERSION >= (6,) or find_spec("django_tasks")
    assert found, "there is no Tasks framework: pip install -e '.[dev]'"
    for name, text in (("tasks", TASKS), ("settings", SETTINGS), ("manage", MANAGE)):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def performed(project: Path, queue: str, program: str, argument: str = "") -> str:
    """What a program of the project prints beside a worker for one queue."""
    worker = subprocess.Popen([sys.executable, "manage.py", "horarium", "worker", "--queue", queue], cwd=project,
                              env=environment())  # fmt: skip
    try:
        done = python(program, argument, project)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0


def test_tasks_of_django_are_runs(project: Path) -> None:
    word, waiting = performed(project, "default", PROGRAM).split()
    assert word == "done"
    assert performed(project, "heavy", LATER, waiting) == "later"


def test_a_task_is_part_of_the_transaction(postgres_server: Postgres, project: Path) -> None:
    setup, _ = ON_POSTGRES.split("closed = []")
    tasks = "TASKS={name: {'BACKEND': 'horarium.contrib.django.tasks.HorariumBackend', 'QUEUES': ['default', 'heavy']}"
    tasks += " for name in ('default', 'patient')}, HORARIUM="
    setup = setup.replace("HORARIUM=", tasks)
    program = (
        setup
        + """
import tasks
scheduler.open()
try:
    with transaction.atomic():
        tasks.add.enqueue(1)
        raise KeyError
except KeyError:
    pass
with transaction.atomic():
    kept = tasks.add.enqueue(2)
assert [run.id for run in scheduler.list_runs().items] == [kept.id]
print("done")
"""
    )
    done = python(program, new_database(postgres_server), project)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
