"""What deploy/ has for Prometheus and Grafana: judged by promtool, and made of metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from ruamel.yaml import YAML

from horarium.clock import SECOND
from horarium.model import NO_HEALTH, Disposition, State
from horarium.ports import QueueStats, Stats
from horarium.services.metrics.telemetry import Telemetry
from horarium.testing.values import NOW, a_run

DEPLOY = Path(__file__).parents[2] / "deploy"


def promtool(*arguments: str, input: bytes | None = None) -> str:
    """What it says, once it finds nothing wrong."""
    tool = shutil.which("promtool")
    assert tool, "promtool is missing; run tools/install_servers.py"
    done = subprocess.run([tool, *arguments], cwd=DEPLOY, input=input, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


@pytest.fixture(scope="module")
def scraped() -> bytes:
    """All that a node shows."""
    telemetry = Telemetry(version="1.2.3")
    done = a_run(1, job="nightly", state=State.COMPLETED, started_at=NOW, finished_at=NOW + 2 * SECOND)
    telemetry.planned([done])
    telemetry.settled([done])
    telemetry.jobs.show("nightly", NO_HEALTH)
    telemetry.rescued([done])
    telemetry.lease_lost()
    telemetry.reported("written")
    telemetry.refused("host")
    skipped = a_run(2, job="nightly", state=State.SKIPPED, disposition=Disposition.MISSED, finished_at=NOW)
    telemetry.planned([skipped])
    stats = Stats(2, 1, (QueueStats("pull/a", 1, 0, 0, NOW),))
    return telemetry.render(stats, NOW)[0]


def expressions(value: Any) -> Iterator[str]:
    """Every query in it."""
    if isinstance(value, dict):
        yield from (value["expr"],) if isinstance(value.get("expr"), str) else ()
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from expressions(part)


def board() -> Any:
    return json.loads((DEPLOY / "grafana-board.json").read_text())


def metrics_of(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:horarium|process)_\w+", expression))


def test_the_rules_do_what_their_cases_say() -> None:
    assert "rules found" in promtool("check", "config", "prometheus.yaml")
    assert "SUCCESS" in promtool("test", "rules", "prometheus-rules.test.yaml")


def test_what_is_scraped_is_as_prometheus_wants_it(scraped: bytes) -> None:
    promtool("check", "metrics", input=scraped)


def test_rules_and_board_ask_for_metrics_that_exist(scraped: bytes) -> None:
    shown = set(re.findall(r"^(\w+)[ {]", scraped.decode(), re.MULTILINE))
    rules = YAML(typ="safe").load((DEPLOY / "prometheus-rules.yaml").read_text())
    asked = [expression for content in (rules, board()) for expression in expressions(content)]
    assert len(asked) > 20
    for expression in asked:
        assert metrics_of(expression) <= shown, expression


def test_the_queries_of_the_board_can_be_read(tmp_path: Path) -> None:
    told = [text.replace("$__rate_interval", "5m").replace("$job", ".*") for text in expressions(board())]
    rules = [{"record": f"board:query:{index}", "expr": text} for index, text in enumerate(told)]
    file = tmp_path / "board.yaml"
    YAML(typ="safe").dump({"groups": [{"name": "board", "rules": rules}]}, file)
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(file))


def test_the_board_is_as_grafanas_schema_has_it() -> None:
    register_default_plugins()
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(board())))
    assert not list(lost(board(), read))
    places = [panel["gridPos"] for panel in board()["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells), "panels lie over each other"
    assert max(x for x, _ in cells) < 24


def lost(given: Any, read: Any, path: str = "") -> Iterator[str]:
    """Where what was read is not what was given: fields that the schema does not have."""
    if isinstance(given, dict):
        for name, value in given.items():
            yield from lost(value, read[name], f"{path}/{name}") if name in read else (f"{path}/{name}",)
    elif isinstance(given, list):
        for index, pair in enumerate(zip(given, read, strict=True)):
            yield from lost(*pair, f"{path}[{index}]")
    elif given != read:
        yield path
