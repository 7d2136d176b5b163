"""Somebody who looks at the runs all the time, and remembers every one that was final.

What is final may never change again: at the end the ledger compares each row that was seen with what is there then. So
an outcome that a sleeper reports too late shows even if it changes a row only for a while.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any, Self

from tests.proof.harness import PAGE, World

LOOK_EVERY_SECONDS = 0.4
TIMEOUT_SECONDS = 3.0


class Observer:
    """Looks at a page of the newest final runs and at one of some job's, again and again, through any node that
    answers. `seen`: the first final row of each run."""

    def __init__(self, world: World, jobs: Sequence[str], seed: int) -> None:
        self._world = world
        self._jobs = list(jobs)
        self._random = Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="observer", daemon=True)
        self.seen: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join(2 * TIMEOUT_SECONDS + 10)

    def _look_on(self) -> None:
        while not self._over.wait(LOOK_EVERY_SECONDS):
            for query in ("", f"&job={self._random.choice(self._jobs)}"):
                with suppress(OSError, IndexError):
                    self._look(query)

    def _look(self, query: str) -> None:
        node = self._random.choice([node for node in self._world.nodes if node.url])
        states = "completed,failed,cancelled,skipped"
        answer = node.api.call("GET", f"/api/v1/runs?limit={PAGE}&state={states}{query}", timeout=TIMEOUT_SECONDS)
        for row in answer.body["items"] if answer.status == 200 else ():
            self.seen.setdefault(row["id"], row)
