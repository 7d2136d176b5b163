"""The rules of deploy/ in a real Prometheus, which scrapes a real server."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from horarium.client import Client
from tests.servers.live import LiveServer
from tests.servers.process import free_port
from tests.waiting import eventually

pytestmark = pytest.mark.slow

RULES = Path(__file__).parents[2] / "deploy" / "prometheus-rules.yaml"
CONFIG = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [rules.yaml]
scrape_configs:
  - {{job_name: horarium, honor_labels: true, static_configs: [{{targets: ["{target}"]}}]}}
"""
Ask = Callable[[str], list[Any]]


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Ask]:
    """Asks a Prometheus that scrapes this server each second. Alerts do not wait."""
    program = shutil.which("prometheus")
    assert program, "prometheus is missing; run tools/install_servers.py"
    (folder / "rules.yaml").write_text(RULES.read_text().replace("for: 5m", "for: 0s"))
    (folder / "prometheus.yml").write_text(CONFIG.format(target=target))
    address = f"127.0.0.1:{free_port()}"
    options = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, *options], cwd=folder, stdout=log, stderr=log)

    def ask(query: str) -> list[Any]:
        with urlopen(f"http://{address}/api/v1/query?query={quote(query)}") as answer:
            found: list[Any] = json.load(answer)["data"]["result"]
        return found

    try:
        yield ask
    finally:
        process.terminate()
        process.wait()


def test_a_first_failure_is_an_alert_and_still_is_after_a_restart(tmp_path: Path) -> None:
    server = LiveServer(store=f"sqlite:///{tmp_path}/jobs.db")
    server.start()
    firing = 'ALERTS{alertname="HorariumJobFailing", alertstate="firing", job="monthly"}'
    none_counted = 'horarium_job_runs_total{job="monthly", outcome="failed"} == 0'
    try:
        with prometheus(tmp_path, server.url.removeprefix("http://")) as ask, Client(server.url) as client:
            client.create_job(
                {
                    "name": "monthly",
                    "trigger": {"type": "cron", "expression": "0 5 1 * *"},
                    "target": {"type": "queue", "queue": "work"},
                }
            )
            eventually(lambda: ask(none_counted), what="the job is shown before a run of it has ended")
            client.trigger_job("monthly")
            (run,) = client.claim(["work"], 1, "w", wait_seconds=30)
            assert run.lease
            client.fail(run.id, run.lease.token, "no disk", retryable=False)
            eventually(lambda: ask(firing), what="its first failure is an alert")
            assert client.get_job("monthly").failures_in_a_row == 1
            server.stop()
            server.start_again()
            # The new server has counted nothing itself.
            eventually(lambda: ask(f"{firing} and on (job) {none_counted}"), what="a restart ends no alert")
    finally:
        server.stop()
