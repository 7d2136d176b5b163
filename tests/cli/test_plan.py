"""`horarium plan`, `apply` and `forecast` on a real server: a folder of files is all that a team needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from horarium.cli import cli
from horarium.cli.forecast import heat_map
from horarium.client import Client
from horarium.errors import Conflict
from tests.servers.live import live_server

pytestmark = pytest.mark.slow

Call = Callable[..., Result]
JOBS = """
calendars:
  - name: office
    holidays: [2027-01-01]
jobs:
  - name: report
    labels: {team: billing}
    trigger: {type: cron, expression: "0 9 * * *", timezone: Europe/Berlin}
    target: {type: queue, queue: reports}
"""
MORE = """[{
    "name": "invoice", "labels": {"team": "billing"}, "trigger": {"type": "interval", "every_seconds": 3600},
    "target": {"type": "queue", "queue": "reports"}
}]"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_server() as server:
        yield server.url


@pytest.fixture
def call(url: str, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("HORARIUM_URL", url)

    def run(*args: str, status: int = 0, input: str | None = None) -> Result:
        result = CliRunner().invoke(cli, args, input=input)
        assert result.exit_code == status, (result.output, result.stderr)
        return result

    return run


def test_a_folder_is_planned_applied_and_pruned(call: Call, url: str, tmp_path: Path) -> None:
    folder, kept = tmp_path / "schedules", tmp_path / "plan.json"
    (folder / "deep").mkdir(parents=True)
    (folder / "jobs.yaml").write_text(JOBS)
    (folder / "deep" / "more.json").write_text(MORE)
    shown = call("plan", str(folder), "--prune", "team=billing", "--out", str(kept), status=2)
    assert "+ job report" in shown.output
    assert "+ calendar office" in shown.output
    assert "3 to create; 0 unchanged." in shown.output
    assert "no worker has taken a run of the queue pull/reports" in shown.stderr
    assert "3 changes were made." in call("apply", str(kept), "--yes").output
    assert "Nothing to change; 3 unchanged." in call("plan", str(folder), "--prune", "team=billing").output
    assert "0 changes were made: all of it was made before." in call("apply", str(kept), "--yes").output
    (folder / "deep" / "more.json").write_text("[]")
    (folder / "jobs.yaml").write_text(JOBS.replace("0 9 *", "30 9 *"))
    shown = call("plan", str(folder), "--prune", "team=billing", status=2)
    assert 'trigger.expression: "0 9 * * *" -> "30 9 * * *"' in shown.output
    assert "- job invoice" in shown.output
    call("apply", str(folder), "--prune", "team=billing", input="n\n", status=130)
    assert json.loads(call("apply", str(folder), "--prune", "team=billing", "--json").output)["applied"] == 2
    with Client(url) as client:
        assert [job.name for job in client.list_jobs(labels={"team": "billing"})] == ["report"]


def test_files_without_a_job_prune_nothing_unless_it_is_said(call: Call, url: str, tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("jobs: []")
    with Client(url) as client:
        job = {"trigger": {"type": "interval", "every_seconds": 60}, "target": {"type": "external"}}
        client.put_job({"name": "kept", "labels": {"team": "empty"}, **job})
    for command in (["plan"], ["apply", "--yes"]):
        said = call(*command, str(file), "--prune", "team=empty", status=1).stderr
        assert "every job with team=empty would be deleted" in said
    assert "- job kept" in call("plan", str(file), "--prune", "team=empty", "--allow-empty", status=2).output
    assert "- job kept" not in call("plan", str(file)).output


def test_a_plan_is_approved_by_its_id_or_its_file(call: Call, tmp_path: Path) -> None:
    file, kept = tmp_path / "jobs.json", tmp_path / "plan.json"
    file.write_text(MORE.replace("invoice", "approved").replace("billing", "approving"))
    call("plan", str(file), "--out", str(kept), status=2)
    id = json.loads(kept.read_text())["id"]
    assert call("apply", id, "--approve").output == "Approved: an operator may apply it now (1 change).\n"
    assert "approved already" in call("apply", str(kept), "--approve", status=1).stderr
    for wrong in ([str(file)], [id, id]):
        assert "--out" in call("apply", *wrong, "--approve", status=2).stderr
    call("apply", str(kept), "--yes")


def test_plans_are_listed(call: Call, tmp_path: Path) -> None:
    file, kept = tmp_path / "jobs.yaml", tmp_path / "plan.json"
    file.write_text(JOBS.replace("report", "listed").replace("office", "listed"))
    call("plan", str(file), "--out", str(kept), status=2)
    ref = json.loads(call("plan", "--list", "--json").output)[0]["ref"]
    assert json.loads(kept.read_text())["id"].startswith(f"{ref}-")
    assert f"{ref}  2 to create" in call("plan", "--list").output
    assert "--list alone" in call("plan", "--list", str(file), status=1).stderr


@pytest.mark.parametrize("wrong", [(), ("--nosuch",), ("--days", "soon"), ("--prune", "team")])
def test_a_wrong_use_does_not_end_as_a_plan_with_changes(call: Call, tmp_path: Path, wrong: tuple[str, ...]) -> None:
    """A pipeline lets status 2 pass."""
    file = tmp_path / "jobs.yaml"
    file.write_text(JOBS)
    assert call("plan", *([str(file)] if wrong else ()), *wrong, status=1).stderr.startswith("Error: ")


def test_a_plan_that_is_stale_is_refused(call: Call, url: str, tmp_path: Path) -> None:
    file, kept = tmp_path / "jobs.yaml", tmp_path / "plan.json"
    file.write_text(JOBS.replace("report", "stale"))
    call("plan", str(file), "--out", str(kept), status=2)
    with Client(url) as client:
        job = {
            "name": "stale",
            "trigger": {"type": "once", "at": "2100-01-01T00:00:00Z"},
            "target": {"type": "queue", "queue": "q"},
        }
        client.put_job(job)
        with pytest.raises(Conflict, match="job stale: was made since"):
            client.plans.apply(json.loads(kept.read_text())["id"])
    assert "job stale: was made since" in call("apply", str(kept), "--yes", status=1).stderr


def test_what_is_invalid_is_an_error_with_its_place(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(JOBS.replace('"0 9 * * *"', '"99 9 * * *"').replace("report", "bad"))
    shown = call("plan", str(file), status=1)
    assert "! job bad" in shown.output
    assert "99" in shown.output
    call("apply", str(file), "--yes", status=1)
    file.write_text("jobs: 3")
    assert "jobs is no list" in call("plan", str(file), status=1).stderr
    assert "can't be read" in call("plan", str(tmp_path / "none.yaml"), status=1).stderr


def test_an_export_holds_calendars_and_channels_that_jobs_use(call: Call, url: str, tmp_path: Path) -> None:
    file, secret = tmp_path / "all.yaml", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    trigger = {"type": "business_day", "trigger": {"type": "cron", "expression": "0 9 * * *"}, "calendar": "export"}
    with Client(url) as client:
        client.calendars.put("export", {"holidays": ["2027-01-01"]})
        client.channels.put("export", {"type": "webhook", "url": "https://example.com/hook", "signing_secret": secret})
        client.channels.put("hook", {"type": "webhook", "url": "https://example.com/hook?token=abc"})
        job = {"name": "export", "trigger": trigger, "target": {"type": "queue", "queue": "q"}}
        client.put_job({**job, "on": {"failed": [{"notify": "export"}, {"notify": "hook"}]}})
    call("job", "export", "export", "--output", str(file))
    assert "Nothing to change; 4 unchanged." in call("plan", str(file)).output
    assert (
        "1 run of 1 job begins" in call("simulate", str(file), "--since", "2027-03-01T00:00Z", "--until", "1d").output
    )
    assert "0 created, 0 updated, 1 unchanged, 0 failed." in call("job", "import", str(file)).output
    with live_server() as other:
        shown = call("job", "import", str(file), "--url", other.url, "--dry-run")
        assert "calendars: export would be written." in shown.output
        assert "It would be: 1 created" in shown.output
        shown = call("job", "import", str(file), "--url", other.url)
        for channel in ("export", "hook"):
            assert f"channel {channel} is left out: its secret is masked" in shown.stderr
        assert "1 created, 0 updated, 0 unchanged, 0 failed." in shown.output
        with Client(other.url) as client:
            assert client.calendars.get("export")["holidays"] == ["2027-01-01"]
            assert client.get_job("export").next_fire_at is not None
        file.write_text("calendars: [{name: wrong, holidays: [never]}]")
        assert "calendar wrong: holidays" in call("job", "import", str(file), "--url", other.url, status=1).stderr


def test_definitions_are_carried_out_in_virtual_time(call: Call, url: str, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    hold = {
        "scope": {"job": "report"},
        "reason": "moving",
        "from": "2027-03-27T07:00:00Z",
        "until": "2027-03-27T09:00:00Z",
    }
    jobs = JOBS.replace("office", "simulated")  # the server of this module has it afterwards
    file.write_text(f"{jobs}\nholds: [{json.dumps(hold)}]")
    span = ("--since", "2027-03-27T00:00:00Z", "--until", "2d")
    shown = call("simulate", str(file), *span).output
    assert "2 runs of 1 job begin" in shown
    assert "report" in shown
    told = json.loads(call("simulate", str(file), *span, "--durations", "90", "--json").output)
    assert [run["began_at"] for run in told["runs"]] == ["2027-03-27T09:00:00Z", "2027-03-28T07:00:00Z"]
    with Client(url) as client:
        target = {"type": "queue", "queue": "simulated"}
        client.put_job({"name": "hourly", "trigger": {"type": "interval", "every_seconds": 3600}, "target": target})
        client.calendars.put("simulated", {"holidays": ["2027-01-01"]})
    down = ("--down", "2027-03-27T02:00Z/2027-03-27T06:00Z", "--slots", "pull/simulated=1")
    told = json.loads(call("simulate", "--from-server", *span, *down, "--json").output)
    assert told["jobs"]["hourly"]["skipped"]["missed"] in (2, 3, 4)
    both = json.loads(call("simulate", str(file), "--from-server", *span, "--json").output)
    assert {"hourly", "report"} <= both["jobs"].keys()


def test_the_example_of_the_page_gives_what_the_page_says(call: Call, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
    _, definitions, *_ = page.split("```yaml\n")
    _, console, *_ = page.split("```console\n")
    command, _, answer = console.partition("```")[0].replace("\\\n", "").removeprefix("$ ").partition("\n")
    (tmp_path / "night.yaml").write_text(definitions.partition("```")[0])
    args = [str(tmp_path) if arg == "schedules/" else arg for arg in command.split()[1:]]
    assert [line.rstrip() for line in call(*args).output.splitlines()] == answer.splitlines()


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--since", "now"], "no instant"),
        (["--down", "2027-03-27T02:00Z"], "is not T1/T2"),
        (["--down", "2027-03-27T02:00Z/2027-03-27T01:00Z"], "ends before it begins"),
        (["--durations", "long"], "neither `measured` nor"),
        (["--durations", "measured"], "belongs to --from-server"),
        (["--slots", "q=many"], "give QUEUE=N"),
        (["--slots", "q=0"], "needs 1 or more"),
    ],
)
def test_a_wrong_use_of_simulate_is_told(call: Call, tmp_path: Path, args: list[str], text: str) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(JOBS)
    given = ["--since", "2027-03-27T00:00:00Z", "--until", "1d", *args]
    assert text in call("simulate", str(file), *given, status=2).stderr


def test_a_forecast_is_a_map_of_the_hours(call: Call, url: str) -> None:
    with Client(url) as client:
        target = {"type": "queue", "queue": "map"}
        client.put_job({"name": "often", "trigger": {"type": "interval", "every_seconds": 60}, "target": target})
    shown = call("forecast", "--days", "2").output
    assert "@" in shown
    assert "pull/map: " in shown
    assert call("forecast", "--days", "1", "--quiet").output.count(" start") == 5
    quiet = json.loads(call("forecast", "--days", "30", "--quiet", "--json").output)["quiet"]
    counts = [sum(each["starts"].values()) for each in quiet]
    assert (len(counts), counts) == (5, sorted(counts))
    buckets = json.loads(call("forecast", "--days", "1", "--bucket", "7200", "--json").output)["buckets"]
    assert buckets[1]["starts"]["pull/map"] == 120


def test_one_start_is_said_as_one() -> None:
    hour = {"at": "2027-03-01T10:00:00Z", "starts": {"pull/map": 1}}
    assert [line.split("  ")[-1].strip() for line in heat_map([hour])[2:] if line] == [
        "1 start",
        "@ = 1 start in an hour",
    ]
    twice = {**hour, "at": "2027-03-01T11:00:00Z"}
    assert heat_map([hour, twice])[2].endswith("  2 starts")
