"""Several processes as one server: one port, one store, one answer to a signal.

    horarium serve --processes 4       supervisor -- listening socket, a line to each process
                                         |- NAME-1   API, planner, dispatcher, ... in an event loop of its own
                                         |- NAME-2   ...

The supervisor does no work and imports none of what does. Each process is begun afresh (no fork of a running
interpreter), is handed the listening socket and a line, and gets its settings over the line, so that secrets are in no
list of processes. The first one brings the schema of the store up to date before the others are begun. A line that ends
tells the supervisor, or the process, that the other side has died.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal as os_signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

import horarium
from horarium.errors import CallerError, HorariumError
from horarium.interrupts import ignore_signals
from horarium.server.config import Settings
from horarium.server.crowd import make_table
from horarium.server.line import Failure, Kind, Message, MessagePipe, open_line
from horarium.server.listening import greeting, listen, own_url, tls_context
from horarium.server.logs import configure_logging
from horarium.services.metrics.scrapes import add_up, counts_of
from horarium.triggers.words import counted

ANSWER_SECONDS = 1.0
"""How long a process may take to answer another. It is left out then."""
METRICS = "metrics"
"""The topic whose answers are added up here, where that holds up no run."""
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


class Question(Struct):
    """A question that waits for answers."""

    asker: Process
    number: int
    topic: str
    said: bytes
    waiting: set[str]
    answers: dict[str, bytes] = {}


class Relay:
    """Passes on messages between the processes of one server, and collects answers."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes
        self._asked: dict[int, Question] = {}
        self._number = 0
        self._figures: dict[str, bytes] = {}
        self._ended: bytes = b""

    def heard(self, process: Process, message: Message) -> None:
        """A process said something that is for others."""
        if message.kind == "tell":
            self._pass_on(process, message)
        elif message.kind == "ask":
            self._ask(process, message)
        elif message.kind == "answer":
            self._answered(process, message)

    def left(self, process: Process) -> None:
        """It has ended: no answer of it will come, and its last counts are kept."""
        last = self._figures.pop(process.name, None)
        if last is not None:
            self._ended = counts_of([self._ended, last])
        for number, asked in list(self._asked.items()):
            asked.waiting.discard(process.name)
            self._finish(number)

    def _pass_on(self, process: Process, message: Message) -> set[str]:
        others = [each for each in self._processes if each is not process and each.ready and each.line is not None]
        return {each.name for each in others if each.line is not None and each.line.send(message)}

    def _ask(self, process: Process, message: Message) -> None:
        self._number += 1
        number, said = self._number, message.said[0]
        others = self._pass_on(
            process, Message("ask", number, message.topic, [b"" if message.topic == METRICS else said])
        )
        self._asked[number] = Question(process, message.number, message.topic, said, others)
        asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._finish, number, True)
        self._finish(number)

    def _answered(self, process: Process, message: Message) -> None:
        asked = self._asked.get(message.number)
        if asked is not None and process.name in asked.waiting:
            asked.waiting.discard(process.name)
            asked.answers[process.name] = b"".join(message.said)
            self._finish(message.number)

    def _finish(self, number: int, late: bool = False) -> None:
        """Hand over the answers, once all are there or there is no more time."""
        asked = self._asked.get(number)
        if asked is None or (asked.waiting and not late):
            return
        del self._asked[number]
        answers = [self._figures_of(asked)] if asked.topic == METRICS else list(asked.answers.values())
        if asked.asker.line is not None:
            asked.asker.line.send(Message("answers", asked.number, asked.topic, answers))

    def _figures_of(self, asked: Question) -> bytes:
        """The figures of all: of one that did not answer in time, those that it told last."""
        self._figures[asked.asker.name] = asked.said
        self._figures |= asked.answers
        others = [text for name, text in self._figures.items() if name != asked.asker.name]
        return add_up(asked.said, others, [self._ended] if self._ended else [])


STARTS_MAX = 5
"""A process that fails to start this often in a row ends the server."""
OVERTIME_SECONDS = 30.0
"""So long after its grace a process that does not end is killed."""
KILLING_SIGNAL = 3
"""The third signal waits for nothing."""
STOPS = (os_signal.SIGINT, os_signal.SIGTERM)

log = logging.getLogger("horarium")


def run_processes(settings: Settings, count: int) -> int:
    """Serve with this number of processes until SIGINT or SIGTERM. The exit status: 0 once all of them stopped in
    order, else that of the one that could not start, or 1."""
    configure_logging(settings.log_format, settings.log_level)
    try:
        return asyncio.run(Supervisor(settings, count).run())
    except HorariumError as error:
        log.error("%s", error)
        return 2 if isinstance(error, CallerError) else 1


class Supervisor:
    """Begins processes, begins again those that die, and ends all of them together."""

    def __init__(self, settings: Settings, count: int) -> None:
        self._settings = settings
        self._base = settings.node_name or f"{socket.gethostname()}-{os.getpid()}"
        self._processes = [Process(f"{self._base}-{number}") for number in range(1, count + 1)]
        self._relay = Relay(self._processes)
        self._listener: socket.socket | None = None
        self._table = -1
        self._signals = 0
        self._greeted = False
        self._status = 0
        self._ended = asyncio.Event()
        self._connecting: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Until all have ended. The exit status. Raises Outage where the port can't be had, InvalidSetting."""
        loop = asyncio.get_running_loop()
        tls_context(self._settings.tls_cert, self._settings.tls_key)
        if "api" in self._settings.roles:
            self._listener = listen(self._settings.host, self._settings.port)
            self._table = make_table(len(self._processes))
        for number in STOPS:
            loop.add_signal_handler(number, self._signalled)
        loop.add_signal_handler(os_signal.SIGCHLD, self._look)
        try:
            self._begin(self._processes[0])
            await self._ended.wait()
        finally:
            for process in self._processes:
                process.kill()
        log.info("stopped")
        for number in (*STOPS, os_signal.SIGCHLD):
            loop.remove_signal_handler(number)
        ignore_signals()
        return self._status

    # ---- beginning

    def _begin(self, process: Process) -> None:
        if self._signals or process.running is not None:
            return
        ours, theirs = socket.socketpair()
        handed = [theirs.fileno()] + ([self._listener.fileno(), self._table] if self._listener else [])
        place = [self._processes.index(process)] if self._listener else []
        process.begin(asyncio.get_running_loop().time())
        try:
            process.running = subprocess.Popen(
                [*interpreter(), "-m", "horarium.server.child", process.name, *map(str, [*handed, *place])],
                stdin=subprocess.DEVNULL,
                pass_fds=handed,
                process_group=0,  # a terminal's Ctrl-C is for the supervisor, which passes it on
            )
        except OSError as error:
            ours.close()
            process.failure = Failure(f"no process can be started: {error.strerror or error}", 1)
            self._over(process, 1)
            return
        finally:
            theirs.close()
        task = asyncio.get_running_loop().create_task(self._connect(process, ours))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, process: Process, ours: socket.socket) -> None:
        def ended() -> None:
            process.hung_up = True
            self._look()

        process.line = await open_line(ours, lambda message: self._heard(process, message), ended)
        settings = replace(self._settings, node_name=process.name)
        process.line.send(Message("settings", said=[msgspec.json.encode(settings)]))
        if self._signals:
            process.line.send(Message("stop"))

    def _heard(self, process: Process, message: Message) -> None:
        match message.kind:
            case "opened":
                for other in self._processes:
                    if not other.begun:
                        self._begin(other)
            case "ready":
                self._is_ready(process)
            case "failed":
                process.failure = msgspec.json.decode(message.said[0], type=Failure)
            case _:
                self._relay.heard(process, message)

    def _is_ready(self, process: Process) -> None:
        process.ready = True
        process.failed_starts = 0
        if self._greeted:
            log.info("%s runs again", process.name)
        elif all(each.ready for each in self._processes):
            self._greeted = True
            said = greeting(self._settings, own_url(self._settings, self._listener))
            processes = counted(len(self._processes), "process", "processes")
            log.info("horarium %s: %s, %s", self._base, said, processes)

    # ---- one that ends

    def _look(self) -> None:
        """Some process has ended, or what it said last was read."""
        for process in self._processes:
            if process.running is not None and process.hung_up and (status := process.running.poll()) is not None:
                self._relay.left(process)
                self._over(process, status)
        if self._signals and not any(process.running for process in self._processes):
            self._ended.set()

    def _over(self, process: Process, status: int) -> None:
        process.running = None
        if self._signals:
            if status > 0 or (status < 0 and process.ready):
                log.error("%s ended with %s", process.name, how(status))
                self._status = self._status or 1
        elif not process.ready and status > 0:
            self._failed(process, status)
        else:
            log.warning("%s ended with %s; it is started again", process.name, how(status))
            self._again(process)

    def _failed(self, process: Process, status: int) -> None:
        """It ended by itself before it was ready."""
        failure = process.failure or Failure(f"it ended with {how(status)} before it was ready", status)
        process.failed_starts += 1
        if self._greeted and process.failed_starts < STARTS_MAX:
            if process.failed_starts == 1:
                log.warning("%s can't start: %s; it is tried %d times", process.name, failure.why, STARTS_MAX)
            self._again(process)
            return
        times = f" {STARTS_MAX} times in a row" if process.failed_starts > 1 else ""
        log.error("%s could not start%s: %s", process.name, times, failure.why)
        self._status = failure.status
        self._stop()

    def _again(self, process: Process) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(process.pause(loop.time()), self._begin, process)

    # ---- the end of all

    def _signalled(self) -> None:
        if self._signals >= KILLING_SIGNAL - 1:
            self._kill()
        elif self._signals:
            self._signals += 1
            for process in self._processes:
                process.send("hurry")
        else:
            log.info("stopping: what runs is given %g s to finish", self._settings.grace_seconds)
            self._stop()

    def _stop(self) -> None:
        self._signals = 1
        for process in self._processes:
            process.send("stop")
        loop = asyncio.get_running_loop()
        loop.call_later(self._settings.grace_seconds + OVERTIME_SECONDS, self._kill)
        loop.call_soon(self._look)

    def _kill(self) -> None:
        for process in self._processes:
            if process.running is not None:
                log.error("%s has not ended; it is killed", process.name)
                process.kill()
