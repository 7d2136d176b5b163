"""Messages between the processes of one server, passed on by their supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from horarium.server.line import Message
from horarium.server.processes import Process
from horarium.services.metrics.scrapes import add_up, counts_of

ANSWER_SECONDS = 1.0
"""How long a process may take to answer another. It is left out then."""
METRICS = "metrics"
"""The topic whose answers are added up here, where that holds up no run."""


class Question(Struct):
    """A question that waits for answers."""

    asker: Process
    number: int
    topic: str
    said: bytes
    waiting: set[str]
    answers: dict[str, bytes] = {}


class Relay:
    """Passes on, and collects answers."""

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
