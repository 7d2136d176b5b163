"""`horarium calendar` on a real server: from countries, markets and iCalendar files to jobs that roll."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from horarium.cli import cli
from horarium.client import Client
from tests.servers.live import live_server
from tests.waiting import eventually

pytestmark = pytest.mark.slow

Call = Callable[..., Result]
ICS = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//example//holidays//EN
BEGIN:VEVENT
UID:1@example.org
DTSTART;VALUE=DATE:20270329
SUMMARY:Easter Monday
END:VEVENT
BEGIN:VEVENT
UID:2@example.org
DTSTART;VALUE=DATE:20271224
DTEND;VALUE=DATE:20271228
SUMMARY:Christmas
END:VEVENT
BEGIN:VEVENT
UID:3@example.org
DTSTART;VALUE=DATE:20260501
RRULE:FREQ=YEARLY
SUMMARY:Labour Day
END:VEVENT
END:VCALENDAR
""".replace("\n", "\r\n")


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


def test_the_holidays_of_a_country_and_of_markets(call: Call) -> None:
    call("calendar", "import", "be", "--country", "DE", "--subdivision", "BE", "--years", "2026-2028")
    call("calendar", "import", "target2", "--market", "XECB", "--years", "2026-2028")
    call("calendar", "import", "nyse", "--market", "XNYS", "--years", "2026-2028")
    call("calendar", "import", "eg", "--country", "EG", "--years", "2027")
    shown = call("calendar", "show", "be", "--year", "2027").stdout
    assert "2027-03-08" in shown, "a holiday of Berlin alone"
    assert "2027-03-26  Good Friday" in call("calendar", "show", "target2", "--year", "2027").stdout
    assert "2027-07-05" in call("calendar", "show", "nyse", "--year", "2027").stdout, "the fourth is a Sunday"
    assert json.loads(call("calendar", "show", "eg", "--json").stdout)["weekend"] == ["FRI", "SAT"]
    names = [each["name"] for each in json.loads(call("calendar", "list", "--json").stdout)]
    assert names == sorted(names)
    assert {"be", "eg", "nyse", "target2"} <= set(names), "beside those that other tests added"
    for wrong in (("--country", "XX"), ("--market", "NONE"), ("--ics", "/no/such.ics")):
        assert "Traceback" not in call("calendar", "import", "x", *wrong, status=1).stderr


def test_an_icalendar_file_and_a_job_that_follows_it(call: Call, url: str, tmp_path: Path) -> None:
    file = tmp_path / "days.ics"
    file.write_text(ICS)
    call("calendar", "add", "ours", "--holiday", "2030-12-24=Christmas Eve")
    call(
        "job", "add", "pay", "--cron", "0 9 24 12 *", "--timezone", "Europe/Berlin", "--calendar", "ours",
        "--convention", "preceding", "--offset", "-1", "--queue", "books", "--ends-at", "2028-01-01T00:00:00Z",
        "--starts-at", "2027-01-01T00:00:00Z",
    )  # fmt: skip
    with Client(url) as client:
        assert [f"{fire:%Y-%m-%d}" for fire in client.fires("pay", 5).fires] == ["2027-12-23"]
        told = call("calendar", "diff", "ours", str(file), status=2).stdout
        assert "2027-12-23T08:00:00Z -> 2027-12-22T08:00:00Z" in told
        call("calendar", "import", "ours", "--ics", str(file))
        eventually(lambda: [f"{fire:%d}" for fire in client.fires("pay", 5).fires] == ["22"])
    assert "No fire time changes." in call("calendar", "diff", "ours", str(file)).stdout
    days = {each["date"]: each for each in json.loads(_days(url, "ours", "2027-05-01", "2027-12-27"))["items"]}
    assert days["2027-05-01"]["name"] == "Labour Day"
    assert not any(days[f"2027-12-{day}"]["business_day"] for day in (24, 25, 26, 27))
    refused = call("calendar", "remove", "ours", status=1)
    assert "pay" in refused.stderr
    call("job", "delete", "pay")
    call("calendar", "remove", "ours")


def _days(url: str, name: str, since: str, until: str) -> str:
    with Client(url) as client:
        return json.dumps({"items": client.calendars.days(name, since, until)})


def test_a_preview_asks_the_server_for_the_days_of_a_calendar(call: Call) -> None:
    assert "no calendar named" in call("preview", "--cron", "0 9 * * *", "--calendar", "none", status=1).stderr
    call("calendar", "add", "shop", "--weekend", "FRI", "--holiday", "2027-01-02")
    of = ("--cron", "0 9 1 * *", "--calendar", "shop", "--convention", "following", "--offset", "-1")
    out = call("preview", *of, "--count", "2", "--after", "2026-12-20T00:00:00Z").stdout
    assert "2026-12-31T09:00:00Z" in out
    assert "(calendar shop)" in out
    found = call(
        "preview", "the 2nd business day of each month at 9am (shop)", "--after", "2026-12-20T00:00:00Z", "--json"
    )
    assert json.loads(found.stdout)["fires"][0] == "2027-01-04T09:00:00Z"


def test_the_flags_of_business_days_belong_to_a_trigger(call: Call) -> None:
    assert "--convention" in call("job", "add", "x", "--convention", "following", "--queue", "q", status=2).stderr
    out = call("preview", "--cron", "0 9 * * *", "--convention", "following", "--after", "2027-01-01T12:00:00Z").stdout
    assert "2027-01-04T09:00:00Z" in out, "Monday to Friday, without a calendar"
