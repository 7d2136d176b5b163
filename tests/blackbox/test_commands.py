"""A crontab, from the file to the output of its commands: import, server, worker, all of them processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.blackbox.outside import Server, environment, horarium
from tests.waiting import PATIENCE, eventually

CRONTAB = """\
GREETING=hello $(id) `id`
0 3 1 1 * echo "$GREETING"; cat%one%two
@yearly   echo no paper >&2; exit 75
"""


def test_a_crontab_is_imported_and_its_commands_are_performed(server: Server, name: str, tmp_path: Path) -> None:
    file = tmp_path / "my.crontab"
    file.write_text(CRONTAB)
    url = {"HORARIUM_URL": server.url}
    args = ("job", "import", str(file), "--queue", name, "--prefix", f"{name}.", "--attempts", "3", "--json")
    first, second = (json.loads(horarium(*args, env=url).stdout) for _ in range(2))
    assert ((first["created"], first["failed"]), second["unchanged"]) == ((2, 0), 2)
    jobs = server("GET", f"/jobs?prefix={name}.")["items"]
    good, bad = (job["name"] for job in sorted(jobs, key=lambda job: "no paper" in job["target"]["command"][2]))
    command = [sys.executable, "-m", "horarium", "worker", "--queue", name, "--allow-command", "/bin/sh"]
    with subprocess.Popen(command, env=environment(url)) as worker:
        try:
            runs = [server("POST", f"/jobs/{job}/trigger", {}) for job in (good, bad)]
            done = server.becomes(runs[0]["id"], "completed")
            failed = eventually(lambda: _messages(server, runs[1]["id"], "exit code 75: no paper"))
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(PATIENCE) == 0
        finally:
            worker.kill()
    assert done["result"]["stdout"] == "hello $(id) `id`\none\ntwo", "what a variable holds is not evaluated"
    assert failed[0].startswith("attempt 1 failed"), "and it is tried again"


def _messages(server: Server, run_id: str, words: str) -> list[str]:
    """What the run's history says with these words."""
    return [event["message"] for event in server.run(run_id)["history"] if words in event["message"]]
