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
from horarium.clock import SECOND
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


def test_three_ways_to_fail_first_are_each_an_alert_within_two_scrapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that never succeeded; one that failed first after a restart, so that its server has counted nothing; and a
    monthly one, which was well a month ago and whose runs are forgotten."""
    monkeypatch.setattr("horarium.services.metrics.job_recall.LOOK", SECOND // 5)  # scraped each second, not each 15
    server = LiveServer(store=f"sqlite:///{tmp_path}/jobs.db")
    server.start()
    try:
        with prometheus(tmp_path, server.url.removeprefix("http://")) as ask, Client(server.url) as client:
            for name, more in (("never", {}), ("steady", {}), ("monthly", {"retention": {"runs_max": 1}})):
                client.create_job(
                    {
                        "name": name,
                        "trigger": {"type": "cron", "expression": "0 5 1 * *"},
                        "target": {"type": "queue", "queue": name},
                        **more,
                    }
                )
            ended(client, "steady", well=True)
            ended(client, "monthly", well=True)
            first, *_ = [ended(client, "never") for _ in range(11)]
            assert scrapes_until_told(ask, "never", first) <= 2
            server.stop()
            server.start_again()
            eventually(
                lambda: ask('horarium_job_last_success_timestamp_seconds{job="monthly"} > 0'),
                what="the last success is known after a restart",
            )
            eventually(lambda: ask('horarium_job_failures_in_a_row{job="steady"} == 0'), what="nothing has failed yet")
            for name in ("steady", "monthly"):
                assert scrapes_until_told(ask, name, ended(client, name)) <= 2
    finally:
        server.stop()


def ended(client: Client, job: str, *, well: bool = False) -> float:
    """A run of the job ends like this. When it did."""
    client.trigger_job(job)
    (run,) = client.claim([job], 1, "w", wait_seconds=30)
    assert run.lease
    if well:
        client.complete(run.id, run.lease.token)
    else:
        client.fail(run.id, run.lease.token, "no disk", retryable=False)
    at = client.get_run(run.id).finished_at
    assert at is not None
    return at.timestamp()


def scrapes_until_told(ask: Ask, job: str, since: float) -> int:
    """How many scrapes after this instant the alert fired, by Prometheus's own account."""
    firing = f'ALERTS{{alertname="HorariumJobFailing", alertstate="firing", job="{job}"}}'
    eventually(lambda: ask(firing), what=f"{job} is an alert")
    (failures,) = ask(f'horarium_job_failures_in_a_row{{job="{job}"}}[10m]')
    (up,) = ask('up{job="horarium"}[10m]')
    told = min(at for at, value in failures["values"] if at > since and float(value) > 0)
    return sum(since < at <= told for at, _ in up["values"])
