"""`horarium feed` on a real server: the address that it prints is a calendar, until it is revoked."""

from __future__ import annotations

import json
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from icalendar import Calendar

from horarium.cli import cli
from horarium.client import Client
from tests.servers.live import live_server

pytestmark = pytest.mark.slow


def test_a_feed_is_made_read_listed_and_revoked() -> None:
    with live_server() as server, Client(server.url) as client:
        target = {"type": "queue", "queue": "q"}
        trigger = {"type": "cron", "expression": "0 9 * * *"}
        client.put_job({"name": "daily", "trigger": trigger, "target": target})

        def call(*args: str) -> str:
            result = CliRunner().invoke(cli, [*args, "--url", server.url])
            assert result.exit_code == 0, (result.output, result.stderr)
            return result.output

        address = call("feed", "create", "mine", "--job", "daily").strip()
        with urlopen(address) as answer:
            events = Calendar.from_ical(answer.read()).walk("VEVENT")
        assert len(events) == 60
        assert [each["name"] for each in json.loads(call("feed", "list", "--json"))] == ["mine"]
        assert "mine revoked" in call("feed", "revoke", "mine")
        with pytest.raises(HTTPError, match="404"):
            urlopen(address)
