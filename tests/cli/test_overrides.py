"""`horarium job skip|move|unskip|overrides` on a real server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from horarium.cli import cli
from tests.servers.live import live_server

pytestmark = pytest.mark.slow

Call = Callable[..., Result]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_server() as server:
        yield server.url


@pytest.fixture
def call(url: str, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("HORARIUM_URL", url)

    def run(*args: str, status: int = 0) -> Result:
        result = CliRunner().invoke(cli, args)
        assert result.exit_code == status, (result.output, result.stderr)
        return result

    return run


def test_the_next_fire_time_is_skipped_and_another_one_moved(call: Call) -> None:
    call("job", "add", "payroll", "--cron", "0 9 * * *", "--timezone", "Europe/Berlin", "--queue", "books")
    first, second, third = json.loads(call("job", "preview", "payroll", "--count", "3", "--json").stdout)["fires"]
    skipped = json.loads(call("job", "skip", "payroll", "--next", "--reason", "closed", "--json").stdout)
    assert (skipped["fire_at"], skipped["action"], skipped["by"]) == (first, "skip", "local")
    to = second.replace("Z", "+00:00").replace(":00:00", ":45:00")
    assert "instead of" in call("job", "move", "payroll", "--at", second, "--to", third).stdout
    assert call("job", "preview", "payroll", "--count", "3").stdout.count("moved from") == 1
    coming = json.loads(call("upcoming", "--since", third, "--until", "1000h", "--limit", "3", "--json").stdout)[
        "items"
    ]
    assert [(each["fire_at"], "override" in each) for each in coming[:2]] == [(third, True), (third, False)]
    call("job", "unskip", "payroll", "--at", second)
    assert "instead of" in call("job", "move", "payroll", "--at", second, "--to", to).stdout
    again = json.loads(call("job", "skip", "payroll", "--next", "--json").stdout)
    assert again["fire_at"] == second, "the next one is the one that was moved"
    assert [each["action"] for each in json.loads(call("job", "overrides", "payroll", "--json").stdout)] == ["skip"] * 2
    assert "skipped by local: closed" in call("job", "preview", "payroll").stdout
    assert "runs at" in call("job", "unskip", "payroll", "--at", first).stdout
    assert json.loads(call("job", "preview", "payroll", "--count", "2", "--json").stdout)["fires"] == [first, third]
    assert "no fire time at" in call("job", "skip", "payroll", "--at", "2099-01-01T00:00:01Z", status=1).stderr
    assert "--next or --at" in call("job", "skip", "payroll", status=2).stderr


def test_an_export_has_overrides_where_it_is_asked_to(call: Call, tmp_path: Path) -> None:
    call("job", "add", "ledger", "--cron", "0 9 * * *", "--queue", "books")
    first, second = json.loads(call("job", "preview", "ledger", "--count", "2", "--json").stdout)["fires"]
    call("job", "skip", "ledger", "--at", first, "--reason", "closed")
    call("job", "move", "ledger", "--at", second, "--to", second.replace(":00:00", ":30:00"))
    assert "overrides" not in call("job", "export", "ledger").stdout
    file = tmp_path / "jobs.yaml"
    call("job", "export", "ledger", "--overrides", "--output", str(file))
    shown = call("job", "overrides", "ledger", "--json").stdout
    call("plan", str(file), status=0)
    call("job", "delete", "ledger")
    call("job", "import", str(file), "--dry-run")
    call("job", "import", str(file))
    again = json.loads(call("job", "overrides", "ledger", "--json").stdout)
    assert [{**each, "at": ""} for each in again] == [{**each, "at": ""} for each in json.loads(shown)]
    file.write_text(file.read_text().replace(first[:10], "2099-01-01").replace("09:00:00", "09:00:01"))
    assert "is not set" in call("job", "import", str(file)).stderr
