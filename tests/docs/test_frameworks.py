"""docs/fastapi-django.md and docs/coming-from.md: the programs run as they are, and what the tables name exists."""

from __future__ import annotations

import inspect
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import horarium
from horarium import Scheduler
from horarium.library.fields import JobArguments
from horarium.library.one_offs import RunFields
from tests.blackbox.outside import environment
from tests.servers.process import free_port
from tests.waiting import PATIENCE, eventually

DOCS = Path(__file__).parents[2] / "docs"
FASTAPI, JOBS, VIEWS = re.findall(r"```python\n(.*?)```", (DOCS / "fastapi-django.md").read_text(), re.DOTALL)
(WORKERS,) = re.findall(r"```python\n(.*?)```", (DOCS / "processes.md").read_text(), re.DOTALL)
TABLES = (DOCS / "coming-from.md").read_text()

(HORARIUM,) = re.findall(r"^    (HORARIUM = .*?})", (DOCS / "fastapi-django.md").read_text(), re.MULTILINE)

DJANGO_SETTINGS = f"""
SECRET_KEY = "x"
ROOT_URLCONF = "shop.urls"
ALLOWED_HOSTS = ["testserver"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}}}
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = "mails"
INSTALLED_APPS = ["horarium.contrib.django", "shop"]
{HORARIUM}
"""
DJANGO_URLS = """
from django.urls import path
from shop import views
urlpatterns = [path("buy/<int:order>", views.buy), path("runs/<str:run_id>", views.show_run)]
"""
DJANGO_CLIENT = """
import json, os, django
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
django.setup()
from django.test import Client
from shop.jobs import scheduler
client = Client()
assert client.post("/buy/7").status_code == client.post("/buy/7").status_code == 201
(run,) = scheduler.list_runs().items
print(json.dumps(client.get(f"/runs/{run.id}").json()))
"""


@contextmanager
def started(folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A process in this folder, interrupted at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=folder, env=environment({"PYTHONPATH": f"{folder}:{SRC}"}), text=True
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)


SRC = environment()["PYTHONPATH"]


def ask(url: str, method: str = "GET") -> Any:
    """What is answered, once the server does."""

    def answer() -> Any:
        try:
            with urlopen(Request(url, method=method), timeout=PATIENCE) as response:
                return json.load(response)
        except ConnectionError:
            return None
        except OSError as error:
            if isinstance(getattr(error, "reason", None), ConnectionError):
                return None
            raise

    return eventually(answer)


@pytest.mark.slow
def test_the_fastapi_program_adds_performs_and_shows_work(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(FASTAPI)
    port = free_port()
    with started(tmp_path, "uvicorn", "app:app", "--port", str(port), "--log-level", "error"):
        run = ask(f"http://127.0.0.1:{port}/pictures/cat", "POST")
        assert (run["queue"], run["payload"]) == ("handler/resize", {"picture": "cat"})
        shown = f"http://127.0.0.1:{port}/runs/{run['id']}"
        eventually(lambda: ask(shown)["state"] == "completed")
        assert ask(shown)["result"] == {"picture": "cat", "size": 128}
        assert [item["id"] for item in ask(f"http://127.0.0.1:{port}/runs")["items"]] == [run["id"]]
        assert ask(f"http://127.0.0.1:{port}/pictures/cat", "POST")["id"] == run["id"], "one run under one key"
        for path, status in (("runs?after=no%20place", 422), ("runs/none", 404)):
            with pytest.raises(HTTPError, match=str(status)):
                urlopen(f"http://127.0.0.1:{port}/{path}", timeout=PATIENCE)


@pytest.mark.slow
def test_workers_of_a_web_server_share_each_fire_time(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(WORKERS)
    port = free_port()

    def fires() -> list[str]:
        try:
            with urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE) as response:
                return [line.split()[0] for line in response.read().decode().splitlines() if "completed" in line]
        except OSError:
            return []

    with started(tmp_path, "uvicorn", "app:app", "--port", str(port), "--log-level", "error", "--workers", "2"):
        found = eventually(lambda: len(fires()) >= 3 and fires())
        assert len(found) == len(set(found)), "each fire time ran once"


def django(folder: Path, *part: str) -> list[str]:
    """What `manage.py horarium` says."""
    done = subprocess.run(
        [sys.executable, "-m", "django", "horarium", *part], cwd=folder, text=True, capture_output=True, check=False,
        env=environment({"PYTHONPATH": f"{folder}:{SRC}", "DJANGO_SETTINGS_MODULE": "shop.settings"}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_django_program_sends_its_mail(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    files = {"jobs": JOBS, "views": VIEWS, "settings": DJANGO_SETTINGS, "urls": DJANGO_URLS}
    for name, text in {**files, "__init__": ""}.items():
        (shop / f"{name}.py").write_text(text)
    asked = subprocess.run(
        [sys.executable, "-c", DJANGO_CLIENT], cwd=tmp_path, text=True, stdout=subprocess.PIPE, timeout=PATIENCE,
        check=True, env=environment({"PYTHONPATH": f"{tmp_path}:{SRC}"}),
    )  # fmt: skip
    assert json.loads(asked.stdout)["payload"] == {"order": 7, "to": "kim@example.com"}
    assert django(tmp_path, "check") == [
        "weekly_report: would be created",
        "handler/send_receipt: 1 due, 0 scheduled, 0 running",
        "the store answers",
    ]
    assert django(tmp_path, "declare", "--prune") == ["weekly_report: created"]
    with started(tmp_path, "django", "horarium", "--settings", "shop.settings", "worker", "--name", "web-1"):
        mails = tmp_path / "mails"
        (mail,) = eventually(lambda: list(mails.glob("*")) if mails.exists() else [])
        eventually(lambda: "Receipt for order 7" in mail.read_text())


def cells() -> list[str]:
    """The right column of every table: what Horarium has."""
    rows = re.findall(r"^\| .* \| (.*) \|$", TABLES, re.MULTILINE)
    return [text for cell in rows for text in re.findall(r"`([^`]+)`", cell)]


def test_every_trigger_of_the_tables_can_be_made() -> None:
    made = [text for text in cells() if re.match(r"(cron|every)\(", text)]
    assert len(made) >= 9
    for text in made:
        assert eval(text, vars(horarium).copy() | {"cron": horarium.cron, "every": horarium.every})


def test_every_method_and_argument_of_the_tables_exists() -> None:
    methods = {name for text in cells() for name in re.findall(r"scheduler\.(\w+)\(", text)}
    assert len(methods) >= 9
    assert methods <= {name for name, _ in inspect.getmembers(Scheduler)}
    known = {*JobArguments.__annotations__, *RunFields.__annotations__}
    bare = {name for text in cells() for name in re.findall(r"^(\w+)=", text)}
    assert len(bare) >= 8
    assert bare <= known
