"""The conformance kit: our workers pass it, and each of these faults is told in the right words."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from horarium.errors import InvalidSetting
from horarium.testing.conformance import SCENES, Verdict, play
from tests.blackbox.outside import horarium

HERE = Path(__file__).parent
FAULTY = [sys.executable, str(HERE / "faulty_worker.py")]
pytestmark = pytest.mark.slow

FAULTS = {
    "no key": ("complete", "came without `Authorization: Bearer KEY`"),
    "polls": ("complete", "while nothing was due: ask with `wait_seconds`"),
    "no result": ("complete", "the result is None, not the payload's"),
    "reports twice": ("complete", "reported again, although the first report was answered with 200"),
    "always retryable": ("fail", "`retryable` false of the payload was not sent"),
    "no retry after": ("retry-after", "`retry_after_seconds` 600 was not sent"),
    "no progress": ("progress", "no heartbeat had the payload's progress"),
    "no heartbeats": ("late-heartbeat", "a heartbeat was answered 503, and none came after it"),
    "one heartbeat": ("late-heartbeat", "repeat it until the lease ends"),
    "gives up at 503": ("late-heartbeat", "a heartbeat was answered 503, and none came after it"),
    "reports in spite of 409": ("lease-lost", "stop the work, and report nothing"),
    "ignores cancels": ("cancel", "answered with `cancel_requested` true, and the work went on"),
    "hammers": ("stopping", "answered 503 with Retry-After 1: wait so long"),
    "never repeats": ("repeated-report", "the report was not repeated: without an answer, send it again"),
    "hurries": ("too-many", "answered 429 with Retry-After 2, and the next came after"),
    "own clock": ("clock", "no heartbeat came within the lease while the server's clock is an hour ahead"),
    "dies at SIGTERM": ("drain", "ended at SIGTERM without a report of the run that it held"),
    "claims on": ("drain", "SIGTERM"),
}


async def test_each_fault_is_found_and_told() -> None:
    verdicts = await asyncio.gather(*(play([*FAULTY, fault], [scene]) for fault, (scene, _) in FAULTS.items()))
    told = {fault: verdict.fault or "" for fault, (verdict,) in zip(FAULTS, verdicts, strict=True)}
    assert {fault: text for fault, text in told.items() if FAULTS[fault][1] not in text} == {}


@pytest.mark.parametrize("command", [FAULTY, [sys.executable, str(HERE / "python_worker.py")]], ids=["stdlib", "ours"])
async def test_a_worker_that_keeps_to_the_protocol_passes(command: list[str]) -> None:
    assert await play(command) == [Verdict(scene.name) for scene in SCENES]


PROGRAM = """
import json, sys, time
payload = json.load(sys.stdin)["runs"][0]["payload"]
time.sleep(payload.get("seconds", 0))
sys.exit(payload["do"] != "complete")
"""
IN_SHELL = 'HORARIUM_API_KEY=$HORARIUM_KEY HEARTBEAT_SECONDS=0.7 exec sh "$0" "$HORARIUM_QUEUE" "$@"'
BEYOND_AN_EXIT_STATUS = {"complete", "fail", "retry-after", "progress"}


async def test_the_worker_in_shell_passes_all_that_an_exit_status_can_say() -> None:
    worker = str(HERE.parents[1] / "examples" / "worker.sh")
    scenes = [scene.name for scene in SCENES if scene.name not in BEYOND_AN_EXIT_STATUS]
    command = ["sh", "-c", IN_SHELL, worker, sys.executable, "-S", "-c", PROGRAM]
    assert await play(command, scenes) == [Verdict(scene) for scene in scenes]


async def test_a_worker_that_ends_by_itself_is_told_with_its_last_words() -> None:
    (verdict,) = await play([sys.executable, "-c", "raise SystemExit('no module of that name')"], ["fail"])
    assert verdict.fault == "the worker ended by itself with status 1: no module of that name"


async def test_a_scene_or_a_program_that_is_not_there_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(InvalidSetting, match="there is no 'dance'; known are complete, fail"):
        await play(["true"], ["dance"])
    with pytest.raises(InvalidSetting, match="can't be started: No such file"):
        await play(["/no/such/worker"], ["fail"])


def test_the_command_says_pass_or_the_fault_and_ends_with_1() -> None:
    scenes = ("--scene", "fail", "--scene", "retry-after")
    done = horarium("conformance", "worker", *scenes, "--", *FAULTY, "always retryable")
    assert (done.returncode, done.stderr) == (1, "")
    first, second, last = done.stdout.splitlines()
    assert first.startswith("FAIL  fail: the failure was reported as one to try again")
    assert (second, last) == ("pass  retry-after", "1 of 2 scenes passed")
    done = horarium("conformance", "worker", *scenes, "--json", "--", *FAULTY)
    told = json.loads(done.stdout)
    assert (done.returncode, told["protocol"], told["passed"], told["failed"]) == (0, 1, 2, 0)
    assert told["scenes"] == [{"scene": "fail", "fault": None}, {"scene": "retry-after", "fault": None}]
