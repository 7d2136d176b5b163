"""One process of several: begun by the supervisor with the numbers of its line and of the listening socket, of the
table of connections, and of its own place in that.

    python -m horarium.server.child NAME LINE [LISTENER TABLE PLACE]

It ends in order when the supervisor says so, and when the supervisor has died: then it gives up the port at once, so
that another server can be started while runs here finish.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Awaitable

import msgspec

from horarium.errors import CallerError, HorariumError
from horarium.server.config import Settings
from horarium.server.crowd import Crowd
from horarium.server.line import Failure, Message, MessagePipe, open_line, receive_first, send_last
from horarium.server.listening import tls_context
from horarium.server.logs import configure_logging
from horarium.siblings import Hear

ASK_SECONDS = 2.0
"""How long a process waits for the supervisor, which itself waits for the others."""

UNHEARD = "what another process said on %r could not be heard"

log = logging.getLogger("horarium")


def main(arguments: list[str]) -> int:
    """Serve until told to stop. The exit status."""
    name, number, *rest = arguments
    line = socket.socket(fileno=int(number))
    first = receive_first(line)
    if first is None:
        return 0
    settings = msgspec.json.decode(first.said[0], type=Settings)
    configure_logging(settings.log_format, settings.log_level, node=name)
    try:
        tls_context(settings.tls_cert, settings.tls_key)
        from horarium.server.process import run

        run(settings, lambda: _serve(settings, line.dup(), *_shared(*map(int, rest))))
    except HorariumError as error:
        failure = Failure(str(error), 2 if isinstance(error, CallerError) else 1)
        try:
            send_last(line, Message("failed", said=[msgspec.json.encode(failure)]))
        except OSError:
            log.error("%s", error)
        return failure.status
    return 0


def _shared(listener: int = -1, table: int = -1, place: int = 0) -> tuple[socket.socket | None, Crowd | None]:
    """What all processes have in common, if they listen."""
    return (None, None) if listener < 0 else (socket.socket(fileno=listener), Crowd(table, place))


async def _serve(settings: Settings, sock: socket.socket, listener: socket.socket | None, crowd: Crowd | None) -> None:
    from horarium.server.process import Stopping, serve

    family = Family()
    stopping = Stopping()

    def heard(message: Message) -> None:
        if message.kind == "stop":
            stopping.ask()
        elif message.kind == "hurry":
            stopping.hurry()
        else:
            family.heard(message)

    def ended() -> None:
        if not stopping.asked.is_set():
            log.warning("the supervisor has died; this process stops")
            stopping.leave()

    family.line = line = await open_line(sock, heard, ended)
    await serve(
        settings,
        listener,
        stopping,
        siblings=family,
        crowd=crowd,
        opened=lambda: line.send(Message("opened")),
        ready=lambda: line.send(Message("ready")),
    )
    line.close()
    stopping.done()


class Family:
    """The other processes of this server, over the supervisor."""

    def __init__(self) -> None:
        self.line: MessagePipe | None = None
        self._hearing: dict[str, list[Hear]] = {}
        self._asked: dict[int, asyncio.Future[list[bytes]]] = {}
        self._number = 0
        self._answering: set[asyncio.Task[None]] = set()

    def hear(self, topic: str, answer: Hear) -> None:
        """Have `answer` called whenever another process says something on this topic."""
        self._hearing.setdefault(topic, []).append(answer)

    def tell(self, topic: str, said: bytes) -> None:
        """Say something, and go on."""
        if self.line is not None:
            self.line.send(Message("tell", 0, topic, [said]))

    async def ask(self, topic: str, said: bytes = b"") -> list[bytes]:
        """Say something, and wait for what each of them answers."""
        self._number += 1
        number = self._number
        if self.line is None or not self.line.send(Message("ask", number, topic, [said])):
            return []
        answers = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(answers, ASK_SECONDS)
        except TimeoutError:
            return []
        finally:
            del self._asked[number]

    def heard(self, message: Message) -> None:
        """Something came over the line."""
        if message.kind == "answers":
            answers = self._asked.get(message.number)
            if answers is not None and not answers.done():
                answers.set_result(message.said)
            return
        said: list[bytes] = []
        try:
            for hear in self._hearing.get(message.topic, ()):
                each = hear(message.said[0])
                if not isinstance(each, bytes):
                    self._answering.add(task := asyncio.ensure_future(self._answer(message, each)))
                    task.add_done_callback(self._answering.discard)
                    return
                said.append(each)
        except Exception:
            log.exception(UNHEARD, message.topic)
        self._send(message, said)

    async def _answer(self, message: Message, answer: Awaitable[bytes]) -> None:
        said: list[bytes] = []
        try:
            said.append(await answer)
        except Exception:
            log.exception(UNHEARD, message.topic)
        self._send(message, said)

    def _send(self, message: Message, said: list[bytes]) -> None:
        if message.kind == "ask" and self.line is not None:
            self.line.send(Message("answer", message.number, message.topic, said))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
