"""A worker of the protocol in the standard library alone, that does one thing wrong: `faulty_worker.py FAULT`.

Without a FAULT it is right, as the page docs/worker-protocol.md has it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from typing import Any

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
API = os.environ["HORARIUM_URL"] + "/api/v1"
KEY = os.environ["HORARIUM_KEY"] if FAULT != "no key" else "a guess"
HEADERS = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
stopping = threading.Event()


def post(path: str, body: Any, seconds: float = 40.0) -> tuple[int, Any, float]:
    """Status (0: no answer), answer, and how long to wait before another try."""
    request = urllib.request.Request(API + path, json.dumps(body).encode(), HEADERS, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return answer.status, json.loads(answer.read() or b"null"), 0.0
    except urllib.error.HTTPError as error:
        return error.code, None, float(error.headers.get("Retry-After") or 0.5)
    except OSError:
        return 0, None, 0.5


class Work:
    """One claimed run."""

    def __init__(self, run: dict[str, Any]) -> None:
        self.run, self.asked, self.token = run, run["payload"], run["lease"]["token"]
        self.path = f"/runs/{run['id']}"
        self.stop, self.done, self.lost = threading.Event(), threading.Event(), False
        ends, began = (datetime.fromisoformat(text) for text in (run["lease"]["expires_at"], run["started_at"]))
        if FAULT == "own clock":
            began = datetime.now(UTC)
        self.lease_seconds = (ends - began).total_seconds()

    def beat(self, **more: Any) -> None:
        status, answer, _ = post(f"{self.path}/heartbeat", {"token": self.token, **more})
        if (status in (404, 409) and FAULT != "reports in spite of 409") or (
            FAULT == "gives up at 503" and status == 503
        ):
            self.lost = True
            self.stop.set()
        elif status == 200 and answer["cancel_requested"] and FAULT != "ignores cancels":
            self.stop.set()

    def beats(self) -> None:
        while not self.done.wait(self.lease_seconds / 3):
            self.beat()
            if FAULT == "one heartbeat" or self.lost:
                return

    def perform(self) -> None:
        if FAULT != "no heartbeats":
            threading.Thread(target=self.beats, daemon=True).start()
        if "progress" in self.asked and FAULT != "no progress":
            self.beat(progress=self.asked["progress"])
        seconds = self.asked.get("seconds", 0)
        self.stop.wait(min(seconds, 4.5) if FAULT in ("ignores cancels", "reports in spite of 409") else seconds)
        self.done.set()
        if self.lost:
            return
        if self.stop.is_set():
            self.report("/fail", {"error": "stopped"})
        elif self.asked["do"] == "complete":
            self.report("/complete", {} if FAULT == "no result" else {"result": self.asked.get("result")})
        else:
            names = ["error", "retryable", "retry_after_seconds"]
            left_out = {"always retryable": "retryable", "no retry after": "retry_after_seconds"}.get(FAULT)
            self.report("/fail", {name: self.asked[name] for name in names if name in self.asked and name != left_out})

    def report(self, path: str, body: dict[str, Any]) -> None:
        for _ in range(2 if FAULT == "reports twice" else 1):
            while True:
                status, _, wait = post(self.path + path, {"token": self.token, **body})
                if (status not in (0, 429) and status < 500) or FAULT == "never repeats":
                    break
                time.sleep(0.1 if FAULT == "hurries" else wait)


def main() -> None:
    if FAULT != "dies at SIGTERM":
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    while not stopping.is_set() or FAULT == "claims on":
        asked = {"queues": [os.environ["HORARIUM_QUEUE"]], "worker": "w", "wait_seconds": 0 if FAULT == "polls" else 1}
        status, answer, wait = post("/runs/claim", asked)
        if status == 200:
            Work(answer["runs"][0]).perform()
        elif status != 204:
            time.sleep(0.05 if FAULT in ("hammers", "hurries") else wait)


if __name__ == "__main__":
    main()
