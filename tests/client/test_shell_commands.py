"""Commands as real processes: what they are given, how their end is told, and that nothing of them is left."""

from __future__ import annotations

import os
import pwd
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from horarium.client import ClaimedRun, Client, Commands, Failure
from horarium.client.commands import GRACE_SECONDS_MAX
from horarium.client.processes import HEAD_BYTES, TAIL_BYTES, TEXT_BYTES_MAX, Captured
from horarium.errors import InvalidSetting
from horarium.model import PAYLOAD_BYTES_MAX, RESULT_BYTES_MAX, CommandTarget, RunPolicy
from horarium.testing.values import NOW, a_run
from horarium.wire.views import RunView, claimed_view
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

FAST = 0.3


def sh(script: str, **fields: Any) -> dict[str, Any]:
    return {"command": ["/bin/sh", "-c", script], **fields}


def claimed(program: dict[str, Any], payload: Any = None) -> ClaimedRun:
    """A run whose target is this program, as its worker reads it from the server's answer."""
    run = a_run(queue="pull/shell", token=1, attempt=2, started_at=NOW, lease_expires_at=NOW + 30_000_000)
    target = msgspec.convert({"type": "command", **program}, CommandTarget)
    text = None if payload is None else msgspec.json.encode(payload)
    run = replace(run, job="nightly", payload=text, policy=RunPolicy(target=target))
    view = msgspec.json.decode(msgspec.json.encode(claimed_view(run, None, 0)), type=RunView)
    with Client() as client:
        return ClaimedRun(view, client, 0.0)


def perform(program: dict[str, Any], commands: Commands | None = None, payload: Any = None) -> dict[str, Any]:
    return (commands or Commands(grace_seconds=FAST))(claimed(program, payload))


def failing(program: dict[str, Any], commands: Commands | None = None) -> Failure:
    with pytest.raises(Failure) as caught:
        perform(program, commands)
    return caught.value


def lives(pid: int) -> bool:
    """Whether a process runs: one that nobody has taken note of does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


# ---- what a command is given ------------------------------------------------------------------------------------


def test_what_it_writes_is_the_result() -> None:
    result = perform(sh("echo out; echo err >&2"))
    assert (result["exit_code"], result["stdout"], result["stderr"]) == (0, "out\n", "err\n")
    assert 0 <= result["seconds"] < PATIENCE


def test_arguments_are_never_put_through_a_shell() -> None:
    tricks = ["$(id)", "; rm -rf x", "a b", "*", "`id`", "--", "\n", "ä", ""]
    program = [sys.executable, "-c", "import sys; print(sys.argv[1:])", *tricks]
    assert perform({"command": program})["stdout"] == f"{tricks}\n"


def test_it_finds_the_variables_of_its_run_and_not_those_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORARIUM_API_KEY", "canary")
    monkeypatch.setenv("VAULT_TOKEN", "canary")
    monkeypatch.setenv("LC_TIME", "C")
    program = {"command": ["env"], "env": {"GIVEN": "a=b", "HORARIUM_ATTEMPT": "99"}}
    found = dict(line.split("=", 1) for line in perform(program)["stdout"].splitlines() if "=" in line)
    run = claimed(program)
    assert {name: value for name, value in found.items() if name.startswith("HORARIUM_")} == {
        "HORARIUM_RUN": run.id, "HORARIUM_JOB": "nightly", "HORARIUM_QUEUE": "shell", "HORARIUM_ATTEMPT": "2",
        "HORARIUM_FIRE_AT": "2027-01-15T07:00:00Z", "HORARIUM_IDEMPOTENCY_KEY": run.id,
    }  # fmt: skip
    assert (found["PATH"], found["LC_TIME"], found["GIVEN"]) == (os.environ["PATH"], "C", "a=b")
    assert "canary" not in found.values()


def test_more_of_the_workers_variables_are_handed_on_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "OTHER", "HORARIUM_API_KEY"):
        monkeypatch.setenv(name, "canary")
    commands = Commands(grace_seconds=FAST, pass_env=["PG*", "HORARIUM_API_KEY"])
    found = [line for line in perform({"command": ["env"]}, commands)["stdout"].splitlines() if "canary" in line]
    assert sorted(found) == ["PGHOST=canary", "PGPORT=canary"]


HIDDEN = """
import os, subprocess, sys
from horarium.client.hiding import hide
if sys.argv[1] != "0":
    os.setgroups([]), os.setgid(65534), os.setuid(int(sys.argv[1]))
hide(sys.argv[2:])
read = "cat /proc/$PPID/environ /proc/$PPID/maps"
sys.stdout.buffer.write(subprocess.run(["/bin/sh", "-c", read], stdout=-1, stderr=-1, env={}).stdout)
"""


@pytest.mark.parametrize(("user", "names", "read"), [("0", ["OWN_KEY"], True), ("65534", [], False)])
def test_a_program_does_not_find_a_key_in_the_memory_of_its_worker(user: str, names: list[str], read: bool) -> None:
    env = {**os.environ, "OWN_KEY": "canary", "OTHER": "seen"}
    done = subprocess.run([sys.executable, "-c", HIDDEN, user, *names], env=env, capture_output=True, text=True)
    assert done.stderr == ""
    assert "canary" not in done.stdout
    assert ("OTHER=seen" in done.stdout, bool(done.stdout)) == (read, read), "root reads all but the key"


def test_folder_and_input_are_those_of_the_target(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("#!/bin/sh\npwd; cat\n")
    (tmp_path / "own").chmod(0o755)
    result = perform({"command": ["./own"], "cwd": str(tmp_path), "stdin": "line one\nline two"})
    assert result["stdout"] == f"{tmp_path.resolve()}\nline one\nline two"


def test_a_long_input_is_fed_while_the_output_is_read() -> None:
    text = "x" * 200_000
    assert perform({"command": ["wc", "-c"], "stdin": text})["stdout"].strip() == "200000"
    assert perform({"command": ["true"], "stdin": text})["exit_code"] == 0, "who does not read is no failure"


def test_without_input_it_finds_the_end_of_it_at_once() -> None:
    assert perform({"command": ["cat"]})["stdout"] == ""


# ---- how its end is told ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "fields", "error", "retryable"),
    [
        ("exit 1", {}, "exit code 1", True),
        ("exit 75", {}, "exit code 75", True),
        ("echo no paper >&2; exit 3", {}, "exit code 3: no paper", True),
        ("echo told on the other; exit 3", {}, "exit code 3: told on the other", True),
        ("exit 64", {"discard_codes": [64]}, "exit code 64", False),
        ("exit 0", {"success_codes": [1]}, "exit code 0", True),
        ("nosuchprogram 2>/dev/null", {}, "exit code 127", False),
        ("kill -9 $$", {}, "ended by SIGKILL", True),
        ("kill -TERM $$", {}, "ended by SIGTERM", True),
    ],
)
def test_an_exit_code_says_whether_another_attempt_can_help(
    script: str, fields: dict[str, Any], error: str, retryable: bool
) -> None:
    failure = failing(sh(script, **fields))
    assert (str(failure), failure.retryable) == (error, retryable)


def test_other_codes_may_mean_success() -> None:
    assert perform(sh("exit 24", success_codes=[0, 24]))["exit_code"] == 24


def test_a_failure_keeps_the_result_too() -> None:
    result = failing(sh("echo begun; kill -9 $$")).result
    assert (result["exit_code"], result["signal"], result["stdout"]) == (137, "SIGKILL", "begun\n")


def test_the_error_is_the_end_of_what_was_said() -> None:
    failure = failing(sh("seq 1 1000 >&2; exit 2"))
    assert str(failure).splitlines()[0] == "exit code 2: 981"
    assert str(failure).endswith("999\n1000")


def test_what_can_not_be_started_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    (tmp_path / "broken").write_text("#!/no/such/interpreter\n")
    (tmp_path / "broken").chmod(0o755)
    for name, words, code in [
        ("no-such-program-here", "no-such-program-here could not be started: it is not on the PATH", 127),
        (f"{tmp_path}/none", "No such file or directory (exit code 127)", 127),
        (f"{tmp_path}/plain", "Permission denied (exit code 126)", 126),
        (f"{tmp_path}/broken", "could not be started", 127),
        (str(tmp_path), "could not be started", 126),
    ]:
        failure = failing({"command": [name]})
        assert words in str(failure)
        assert (failure.retryable, failure.result["exit_code"]) == (False, code)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"command": "ls -l"}, "Expected `array`"),
        ({"command": []}, "length >= 1"),
        ({"command": [""]}, "the program is missing"),
        ({"command": ["a\0b"]}, "matching regex"),
        ({"command": ["ls"], "env": {"A=B": "x"}}, "matching regex"),
        ({"command": ["ls"], "env": {"A": "x\0"}}, "matching regex"),
        ({"command": ["ls"], "cwd": "var"}, "matching regex"),
        ({"command": ["ls"], "user": "a:b"}, "matching regex"),
        ({"command": ["ls"], "user": "nobody\n"}, "matching regex"),
        ({"command": ["cat"], "stdin": "a\0b"}, "matching regex"),
        ({"command": ["cat"], "stdin": "x" * (PAYLOAD_BYTES_MAX + 1)}, "length <= 262144"),
        ({"command": ["ls"] * 1_025}, "length <= 1024"),
        ({"command": ["ls", "x" * 131_072]}, "length <= 131071"),
        ({"command": ["ls"], "env": {"A": "x" * 131_072}}, "length <= 131071"),
        ({"command": ["ls"], "env": {"A" * 201: "x"}}, "length <= 200"),
        ({"command": ["ls"], "env": {f"A{n}": "x" for n in range(1_025)}}, "length <= 1024"),
        ({"command": ["ls"], "cwd": "/" + "x" * 4_096}, "length <= 4096"),
        ({"command": ["ls"], "shell": True}, "unknown field `shell`"),
        ({}, "missing required field `command`"),
    ],
)
def test_a_target_that_is_no_command_is_refused_where_it_is_defined(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=words):
        claimed(fields)


def test_a_program_runs_as_the_user_of_its_target() -> None:
    result = perform({"command": ["/bin/sh", "-c", "id -un; id -G"], "user": "nobody"})
    assert result["stdout"].splitlines()[0] == "nobody"
    assert "0" not in result["stdout"].splitlines()[1].split()
    assert perform({"command": ["id", "-un"], "user": "root"})["stdout"] == "root\n"
    told = perform(sh("echo $HOME $LOGNAME $USER $SHELL", user="nobody"))["stdout"].split()
    account = pwd.getpwnam("nobody")
    assert told == [account.pw_dir, "nobody", "nobody", account.pw_shell]
    assert perform(sh("echo $HOME", user="nobody", env={"HOME": "/own"}))["stdout"] == "/own\n"
    failure = failing({"command": ["id"], "user": "no-such-user"})
    assert (str(failure), failure.retryable) == ("user: there is no user 'no-such-user' here", False)


def test_a_worker_of_another_user_refuses_to_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    failure = failing({"command": ["id"], "user": "nobody"})
    assert (str(failure), failure.retryable) == ("user: only a worker of root may start a program as 'nobody'", False)


def test_a_payload_that_is_too_long_for_a_variable_is_input_alone() -> None:
    script = 'wc -c; echo "[$HORARIUM_PAYLOAD]"'
    result = perform(sh(script), payload="x" * 200_000)
    assert result["stdout"].split() == ["200002", "[]"]


def test_a_flood_of_output_is_read_to_its_end_in_bounded_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = perform(sh("echo first; yes | head -c 100000000; echo last; echo aside >&2"))
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    lines = result["stdout"].split("\n")
    left_out = 100_000_000 + len("first\nlast\n") - HEAD_BYTES - TAIL_BYTES
    assert (lines[0], lines[-2], result["stderr"]) == ("first", "last", "aside\n")
    assert f"[{left_out:,} bytes left out]" in lines
    assert len(result["stdout"]) < HEAD_BYTES + TAIL_BYTES + 100
    assert grown_kib < 20_000


def test_bytes_that_are_no_text_are_shown_as_such_and_fit_into_a_report() -> None:
    program = "import os; data = bytes(range(256)) * 4000; os.write(1, data); os.write(2, bytes(100_000))"
    result = perform({"command": [sys.executable, "-c", program]})
    assert "\ufffd" in result["stdout"]
    assert "bytes left out" in result["stderr"]
    assert len(msgspec.json.encode(result)) < RESULT_BYTES_MAX


@pytest.mark.parametrize("size", [0, 1, HEAD_BYTES, HEAD_BYTES + TAIL_BYTES])
def test_up_to_its_bound_a_stream_is_kept_whole(size: int) -> None:
    captured = Captured()
    for at in range(0, size, 1000):
        captured.add(b"a" * min(1000, size - at))
    assert captured.text() == "a" * size


@pytest.mark.parametrize("shift", range(4))
def test_a_cut_goes_through_no_character(shift: int) -> None:
    captured = Captured()
    captured.add(b"x" * shift + "\U0001f550".encode() * 10_000)
    text = captured.text()
    assert "\ufffd" not in text
    assert text.startswith("x" * shift + "\U0001f550")
    assert text.endswith("\U0001f550")


def test_control_characters_take_no_more_than_their_room() -> None:
    captured = Captured()
    captured.add(b"\x00\x1b" * 50_000)
    assert TEXT_BYTES_MAX / 2 < len(msgspec.json.encode(captured.text())) <= TEXT_BYTES_MAX


# ---- how it is ended --------------------------------------------------------------------------------------------


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """A file for process ids; whatever of them lives after the test is killed, and told."""
    file = tmp_path / "pids"
    file.touch()
    yield file
    left = [int(word) for word in file.read_text().split() if lives(int(word))]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def test_time_that_runs_out_ends_the_whole_group(pids: Path) -> None:
    script = f"echo begun; (echo $$ >> {pids}; sleep 60) & sleep 60 & echo $! >> {pids}; wait"
    failure = failing(sh(script, timeout_seconds=5))
    assert str(failure).startswith("timed out: not done within 5 s (ended by SIGTERM)")
    assert (failure.retryable, failure.result["stdout"]) == (True, "begun\n")


def test_who_ignores_sigterm_is_killed_after_the_grace(pids: Path) -> None:
    script = f"trap '' TERM; echo $$ >> {pids}; while :; do sleep 0.05; done"
    failure = failing(sh(script, timeout_seconds=0.1), Commands(grace_seconds=0.2))
    assert failure.result["signal"] == "SIGKILL"


def test_who_cleans_up_at_sigterm_is_given_the_time_for_it(tmp_path: Path) -> None:
    script = (
        f"exec 2>/dev/null; trap 'echo cleaned up; exit 0' TERM; touch {tmp_path}/ready; while :; do sleep 0.02; done"
    )
    run = claimed(sh(script))
    ended: list[Failure] = []

    def work() -> None:
        try:
            Commands(grace_seconds=PATIENCE)(run)
        except Failure as failure:
            ended.append(failure)

    thread = threading.Thread(target=work)
    thread.start()
    eventually((tmp_path / "ready").exists)
    run.cancel_requested.set()
    thread.join(PATIENCE)
    assert [str(failure) for failure in ended] == ["it was asked to stop (exit code 0): cleaned up"]


def test_what_a_command_leaves_in_its_group_ends_with_it(pids: Path) -> None:
    result = perform(sh(f"sleep 60 & echo $! >> {pids}; echo done"))
    assert (result["exit_code"], result["stdout"]) == (0, "done\n")
    perform(sh(f"sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' >/dev/null 2>&1 & echo $! >> {pids}"))


def test_nobody_waits_for_a_pipe_that_a_process_of_another_group_holds(tmp_path: Path) -> None:
    begun = time.monotonic()
    file = tmp_path / "pid"
    result = perform(sh(f"setsid sh -c 'echo $$ > {file}; sleep 60' & while ! test -s {file}; do sleep 0.02; done"))
    assert result["exit_code"] == 0
    assert time.monotonic() - begun < PATIENCE
    os.kill(int(file.read_text()), signal.SIGKILL)


def test_many_commands_run_at_once_and_all_of_them_can_be_killed(pids: Path) -> None:
    commands = Commands(grace_seconds=FAST)
    ended: list[str] = []

    def work() -> None:
        try:
            commands(claimed(sh(f"echo $$ >> {pids}; exec sleep 60")))
        except Failure as failure:
            ended.append(str(failure))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(pids.read_text().split()) == 8)
    commands.kill_all()
    for thread in threads:
        thread.join(PATIENCE)
    assert ended == ["ended by SIGKILL"] * 8


def test_no_file_stays_open() -> None:
    perform(sh("true"))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        perform(sh("echo x; sleep 0 & :", stdin="y"))
        failing({"command": ["/none"]})
    assert len(os.listdir("/proc/self/fd")) == before


# ---- which programs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "name", "allowed"),
    [
        (["true"], "true", True),
        (["tr*"], "true", True),
        (["true"], "env", False),
        (["true"], "{dir}/true", False),
        (["{dir}/*"], "{dir}/own", True),
        (["{dir}/own"], "{dir}/own", True),
        (["{dir}/*"], "{dir}/sub/own", False),
        (["{dir}/*"], "{dir}/sub/../own", False),
        (["{dir}/sub/../*"], "{dir}/sub/../own", False),
        (["env", "true"], "true", True),
        (["*"], "/bin/sh", False),
    ],
)
def test_only_allowed_programs_are_started(tmp_path: Path, patterns: list[str], name: str, allowed: bool) -> None:
    (tmp_path / "sub").mkdir()
    for place in ("own", "true", "sub/own"):
        (tmp_path / place).write_text("#!/bin/sh\nexit 0\n")
        (tmp_path / place).chmod(0o755)
    commands = Commands([pattern.format(dir=tmp_path) for pattern in patterns])
    payload = {"command": [name.format(dir=tmp_path)]}
    if allowed:
        assert perform(payload, commands)["exit_code"] == 0
    else:
        failure = failing(payload, commands)
        assert "is none of the programs that this worker may start" in str(failure)
        assert not failure.retryable


def test_a_job_can_not_put_its_own_program_in_the_place_of_an_allowed_one(tmp_path: Path) -> None:
    (tmp_path / "true").write_text("#!/bin/sh\necho mine\n")
    (tmp_path / "true").chmod(0o755)
    payload = {"command": ["true"], "env": {"PATH": str(tmp_path)}}
    assert perform(payload)["stdout"] == "mine\n"
    assert str(failing(payload, Commands(["true"]))).startswith("env: PATH may not be set")
    assert str(failing({"command": ["true"], "env": {"LD_PRELOAD": "x"}}, Commands(["true"]))).startswith("env: LD_P")
    assert perform({"command": ["true"], "cwd": str(tmp_path)}, Commands(["true"]))["stdout"] == ""


@pytest.mark.parametrize("pattern", ["", "bin/sh", "./x"])
def test_a_pattern_that_would_never_fit_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidSetting, match="neither a name such as pg_dump nor a path from the root"):
        Commands([pattern])


def test_the_grace_has_a_bound() -> None:
    Commands(grace_seconds=GRACE_SECONDS_MAX)
    with pytest.raises(InvalidSetting, match="grace_seconds: must be from 0 to 600"):
        Commands(grace_seconds=GRACE_SECONDS_MAX + 1)
