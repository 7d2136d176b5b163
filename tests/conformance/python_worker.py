"""The worker of `horarium.client`, as the conformance kit asks for it."""

from __future__ import annotations

import os
from typing import Any

from horarium import Discard, Retry
from horarium.client import ClaimedRun, Client, Worker


def perform(run: ClaimedRun) -> Any:
    asked = run.payload
    if "progress" in asked:
        run.heartbeat(asked["progress"])
    if run.cancel_requested.wait(asked.get("seconds", 0)):
        raise RuntimeError("stopped")
    if asked["do"] == "complete":
        return asked.get("result")
    if not asked.get("retryable", True):
        raise Discard(asked["error"])
    raise Retry(asked["error"], after=asked.get("retry_after_seconds"))


if __name__ == "__main__":
    slots = int(os.environ.get("HORARIUM_SLOTS", "2"))
    with Client(os.environ["HORARIUM_URL"], os.environ["HORARIUM_KEY"]) as client:
        Worker(client, [os.environ["HORARIUM_QUEUE"]], perform, slots=slots).run_until_signal()
