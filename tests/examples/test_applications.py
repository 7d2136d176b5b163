"""The applications of examples/ from end to end: a real PostgreSQL, a server, a worker, and their own tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from tests.blackbox.outside import environment
from tests.servers.postgres import Postgres
from tests.servers.process import free_port
from tests.stores.conftest import postgres_server as postgres_server
from tests.stores.postgres_server import new_database
from tests.waiting import PATIENCE, eventually

EXAMPLES = Path(__file__).parents[2] / "examples"
LINES_MAX = 320


class Application:
    """The programs of one example, in its folder."""

    def __init__(self, name: str, database: str, mails: Path) -> None:
        self.folder = EXAMPLES / name
        self.environ = environment(
            {
                "DATABASE_URL": database,
                "MAILS": str(mails),
                "PYTHONPATH": f"{self.folder}:{environment()['PYTHONPATH']}",
                "PYTHONDONTWRITEBYTECODE": "1",
            }
        )

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    @contextmanager
    def started(self, *command: str) -> Iterator[None]:
        process = subprocess.Popen([sys.executable, *command], cwd=self.folder, env=self.environ)
        try:
            yield
        finally:
            process.terminate()
            assert process.wait(PATIENCE) in (0, -15)


def ask(url: str, form: dict[str, Any] | None = None, method: str | None = None) -> Any:
    data = None if form is None else urlencode(form).encode()
    with urlopen(Request(url, data, method=method), timeout=PATIENCE) as response:
        return json.load(response)


def test_an_application_of_fastapi_and_sqlalchemy(postgres_server: Postgres, tmp_path: Path) -> None:
    application, port = Application("fastapi_orders", new_database(postgres_server), tmp_path), free_port()
    url = f"http://127.0.0.1:{port}"
    with application.started("-m", "uvicorn", "orders:app", "--port", str(port), "--log-level", "error"):
        bought = {"customer": "kim@example.com", "cents": 995, "day": "2027-03-27"}
        made = eventually(lambda: ask(f"{url}/orders?{urlencode(bought)}", method="POST"))
        eventually(lambda: ask(f"{url}/orders/{made['order']}")["confirmed"])
        run = ask(f"{url}/reports/2027-03-27", method="POST")
        assert eventually(lambda: ask(f"{url}/reports/{run['id']}")) == {"day": "2027-03-27", "orders": 1, "cents": 995}
        for text in ("blue", "green"):
            ask(f"{url}/orders/{made['order']}/note?text={text}", method="PUT")
        eventually(lambda: ask(f"{url}/search?text=green") == [made["order"]])
        assert ask(f"{url}/search?text=blue") == []
        assert eventually(lambda: ask(f"{url}/invoices/{made['order']}"))["order"] == made["order"]
        batch = ask(f"{url}/letters?letter=urgent", method="POST")["batch"]
        shown = ask(f"{url}/letters/{batch}")
        assert (shown["state"], shown["total"], shown["completed"]) == ("finished", 1, 1)
        for path in ("letters", "reports"):
            with pytest.raises(HTTPError, match="404"):
                ask(f"{url}/{path}/none")
    plugins = ("-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "-W", "ignore")
    assert "4 passed" in application.run("-m", "pytest", "-q", *plugins)


def test_an_application_of_django(postgres_server: Postgres, tmp_path: Path) -> None:
    application, port = Application("django_shop", new_database(postgres_server), tmp_path), free_port()
    application.run("manage.py", "migrate")
    assert "nightly: created" in application.run("manage.py", "horarium", "declare", "--prune")
    url = f"http://127.0.0.1:{port}"
    with (
        application.started("manage.py", "horarium", "worker", "--slots", "4"),
        application.started("manage.py", "runserver", "--noreload", str(port)),
    ):
        made = eventually(lambda: ask(f"{url}/orders", {"customer": "kim@example.com", "cents": 995}))
        eventually(lambda: ask(f"{url}/orders/{made['order']}")["confirmed"])
        assert ask(f"{url}/report") == {"orders": 1, "cents": 995}
    (mail,) = tmp_path.glob("*.log")
    assert f"Order {made['order']}" in mail.read_text()
    assert "OK" in application.run("manage.py", "test")


@pytest.mark.parametrize("name", ["fastapi_orders", "django_shop"])
def test_an_application_is_small(name: str) -> None:
    lines = [line for path in (EXAMPLES / name).rglob("*.py") for line in path.read_text().splitlines()]
    assert len(lines) <= LINES_MAX
