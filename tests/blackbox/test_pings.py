"""Pings as they are sent out there: curl and wget from a crontab's line, and a client of Healthchecks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.outside import Server, environment, horarium, serving
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

DECORATED = """
import sys
from healthchecks_decorator import healthcheck

@healthcheck(url=sys.argv[1], send_start=True, send_diagnostics=True)
def work(fails):
    if fails:
        raise RuntimeError("no paper")
    return {"pages": 3}

work("fail" in sys.argv)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("pings")
    with serving(f"sqlite:///{folder}/horarium.db", "--api-key", "first-key-1234", key="first-key-1234") as server:
        yield server


def external(server: Server, name: str, **fields: Any) -> str:
    """A job whose fire times lie far ahead, and where its pings go."""
    job = server.add(name, 86_400, {"type": "external"}, **fields)
    assert job["ping_url"].startswith(server.url + "/ping/")
    return str(job["ping_url"])


def line(command: str) -> None:
    """One line of a crontab: the shell's status is that of the ping."""
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)


def last(server: Server, name: str) -> dict[str, Any]:
    found: dict[str, Any] = max(server.runs(name), key=lambda run: str(run["fire_at"]))
    return found


def test_curl_from_a_crontab(server: Server) -> None:
    url = external(server, "curl")
    line(f"curl -fsS -m 10 --retry 5 -o /dev/null {url}/start")
    assert last(server, "curl")["state"] == "running"
    line(f"test $(curl -fsS {url}) = OK")
    done = last(server, "curl")
    assert (done["state"], done["cause"], len(server.runs("curl"))) == ("completed", "ping", 1)
    line(f'm=$(echo out of paper; exit 0); curl -fsS -m 10 --retry 5 -o /dev/null --data-raw "$m" {url}/3')
    failed = last(server, "curl")
    assert (failed["state"], failed["error"]) == ("failed", "exit status 3: out of paper")
    log = server("GET", f"/runs/{failed['id']}/log")
    assert [(each["stream"], each["text"]) for each in log["items"]] == [("ping", "out of paper")]
    line(f"curl -fsS -I {url}/0")
    assert last(server, "curl")["state"] == "completed"


def test_wget_from_a_crontab(server: Server) -> None:
    url = external(server, "wget")
    line(f"wget {url}/start -T 10 -t 5 -q -O /dev/null")
    line(f"wget {url} -T 10 -t 5 -q -O /dev/null --post-data='all is well'")
    done = last(server, "wget")
    assert (done["state"], done["attempt"], len(server.runs("wget"))) == ("completed", 1, 1)
    line(f"wget {url}/fail -q -O /dev/null")
    assert last(server, "wget")["error"] == "reported as failed"


def test_a_client_of_healthchecks(server: Server, tmp_path: Path) -> None:
    url = external(server, "decorated")
    script = tmp_path / "work.py"
    script.write_text(DECORATED)

    def work(*more: str) -> None:
        subprocess.run([sys.executable, script, url, *more], env=environment(), capture_output=True, check=False)

    work()
    done = last(server, "decorated")
    assert (done["state"], len(server.runs("decorated"))) == ("completed", 1)
    assert [each["text"] for each in server("GET", f"/runs/{done['id']}/log")["items"]] == ["pages=3"]
    work("fail")
    assert last(server, "decorated")["state"] == "failed"


def test_each_fire_time_waits_for_its_ping(server: Server) -> None:
    job = server.add("often", 1, {"type": "external"}, timeouts={"start_seconds": 1}, retry={"attempts_max": 5})
    failed = eventually(lambda: [run for run in server.runs("often") if run["state"] == "failed"], what="a failure")
    assert (failed[-1]["disposition"], failed[-1]["attempt"], failed[-1]["queue"]) == ("not_started", 0, "external")

    def heard() -> bool:
        server.ask("GET", job["ping_url"].removeprefix(server.url))
        return any(run["state"] == "completed" and run["cause"] == "schedule" for run in server.runs("often"))

    eventually(heard, what="a fire time that was heard of")
    server("DELETE", "/jobs/often", status=204)
    assert server.ask("GET", job["ping_url"].removeprefix(server.url)).status == 404


def test_what_is_no_ping_is_not_found_and_a_long_body_is_cut(server: Server) -> None:
    path = external(server, "odd").removeprefix(server.url)
    for wrong in (f"{path[:-1]}x", f"{path}/256", f"{path}/stop", "/ping/none", "/ping/" + "x" * 400):
        assert server.ask("GET", wrong).status == 404, wrong
    line(f"head -c 3000000 /dev/zero | tr '\\0' x | fold -w 99 | curl -fsS --data-binary @- {server.url}{path}")
    run = last(server, "odd")
    said = server("GET", f"/runs/{run['id']}/log?limit=1000")["items"]
    assert run["state"] == "completed"
    assert sum(len(each["text"]) + 1 for each in said) in range(99_000, 100_002)
    rid = "0b4d2a3c-7d0e-4f35-9a38-5a1a6ab5a8d2"
    line(f"curl -fsS '{server.url}{path}/start?rid={rid}'")
    assert last(server, "odd")["worker"] == f"ping {rid}"


def test_the_command_line_defines_and_shows_it(server: Server) -> None:
    key = {"HORARIUM_URL": server.url, "HORARIUM_API_KEY": "first-key-1234"}
    added = horarium("job", "add", "by-hand", "--cron", "0 3 * * *", "--external", "--start-timeout", "1h", env=key)
    assert added.returncode == 0, added.stderr
    assert f"{server.url}/ping/" in horarium("job", "show", "by-hand", env=key).stdout
