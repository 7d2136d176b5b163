"""The process of a worker under test."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from horarium.errors import InvalidSetting

KILL_SECONDS = 3.0
OUTPUT_BYTES = 2_000
"""So much of the end of its output is shown."""


class WorkerProcess:
    """One process, with what it starts itself. `start`, then `end`, always."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._output = TemporaryFile()  # noqa: SIM115 - it is closed by `end`
        self._process: asyncio.subprocess.Process
        self.is_asked_to_end = False

    async def start(self, env: Mapping[str, str], folder: Path | None = None) -> None:
        """Raises InvalidSetting for a program that can't be started."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**os.environ, **env},
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )
        except OSError as error:
            self._output.close()
            message = f"{self._command[0]!r} can't be started: {error.strerror}; give the command of a worker after --"
            raise InvalidSetting(message, field="command") from None

    def terminate(self) -> None:
        """SIGTERM, to the process alone."""
        self.is_asked_to_end = True
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    async def ended(self, seconds: float | None = None) -> int | None:
        """Its exit status; None: it has not ended after that long."""
        try:
            return await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            return None

    async def end(self) -> None:
        """End it and all that it started."""
        if self._process.returncode is None:
            self.terminate()
            await self.ended(KILL_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._output.close()

    def last_words(self) -> str:
        """The last line that it wrote."""
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(size - OUTPUT_BYTES, 0))
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
