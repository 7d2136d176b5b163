"""One process of several, as its supervisor knows it; and how a Python like this one is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import horarium
from horarium.server.line import Failure, Kind, Message, MessagePipe

AGAIN_SECONDS_MIN, AGAIN_SECONDS_MAX = 0.2, 30.0
STEADY_SECONDS = 10.0
"""A process that lived for this long is started again without delay."""


class Process:
    """One place among the processes: who has it now, and how it fared."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.running: subprocess.Popen[bytes] | None = None
        self.line: MessagePipe | None = None
        self.begun = False
        self.ready = False
        self.hung_up = False
        self.failure: Failure | None = None
        self.failed_starts = 0
        self._began_at = 0.0
        self._failed_in_a_row = 0

    def begin(self, now: float) -> None:
        """It is about to be started."""
        self.begun = True
        self.ready, self.hung_up, self.line, self.failure = False, False, None, None
        self._began_at = now

    def pause(self, now: float) -> float:
        """Seconds until it is started again: longer each time that it ends before it is ready."""
        if self.ready:
            self._failed_in_a_row = 0
            return 0.0 if now - self._began_at >= STEADY_SECONDS else AGAIN_SECONDS_MIN
        self._failed_in_a_row += 1
        return min(AGAIN_SECONDS_MIN * 2.0 ** min(self._failed_in_a_row - 1, 16), AGAIN_SECONDS_MAX)

    def send(self, kind: Kind) -> None:
        """Say it, if there is one that hears."""
        if self.line is not None:
            self.line.send(Message(kind))

    def kill(self) -> None:
        """End it at once."""
        if self.running is not None and self.running.poll() is None:
            self.running.kill()


def how(status: int) -> str:
    """How a process ended."""
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def interpreter() -> list[str]:
    """The command of a Python that finds what this one finds, and no module of the working directory beside it."""
    beside = Path(horarium.__file__).resolve().parents[1] == Path(os.getcwd()).resolve()
    return [sys.executable, *([] if beside else ["-P"])]
