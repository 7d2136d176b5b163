"""The connection to one Redis or Valkey: scripts are called, errors translated, nothing is repeated.

A command that was sent is completed: a caller that is cancelled leaves the command to its own task, so that no answer
is ever taken for the answer to another command. Nothing is sent twice: a script whose answer did not come may have been
carried out, and the caller knows what repeating it means. The two exceptions have done nothing: a server that does not
know a script (it was restarted, or its scripts were flushed), and a node of a cluster that names the one that has our
slot.

The node is chosen at the first call, and again after one that was not served: see `location`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import hiredis
from redis import exceptions as errors
from redis.asyncio.connection import AbstractConnection, BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import MovedError, NoScriptError, RedisError, ResponseError

from horarium.clock import SECOND, Instant
from horarium.errors import InvalidSetting, StoreRefused, StoreUnavailable
from horarium.stores.calls import Calls
from horarium.stores.redis.location import Location, Node, find_node
from horarium.stores.redis.scripts import script
from horarium.stores.redis.single import PROTOCOL

T = TypeVar("T")

CONNECTIONS_MAX = 8

_TIME = ("TIME",), ("INFO", "persistence")
_WRITTEN = re.compile(rb"^rdb_changes_since_last_save:(\d+)", re.MULTILINE)
_SAVED = re.compile(rb"^rdb_last_save_time:(\d+)", re.MULTILINE)

_PASSING_ERRORS: dict[type[RedisError], str] = {
    errors.OutOfMemoryError: "its memory is full (maxmemory)",
    errors.ReadOnlyError: "it is a read-only replica",
    errors.BusyLoadingError: "it is loading its data",
    errors.MasterDownError: "it has lost its primary",
    errors.ClusterDownError: "its cluster is down",
    errors.TryAgainError: "its cluster is moving the slot",
    errors.AskError: "its cluster is moving the slot",
    errors.MovedError: "another node of its cluster has the slot, and yet another after that",
    errors.NoPermissionError: "the user lacks a permission",
}
_PASSING_CODES = {
    "MISCONF": "it can't save its data to disk",
    "NOREPLICAS": "it has too few replicas (min-replicas-to-write)",
    "BUSY": "it is busy with a script",
    "UNKILLABLE": "it is busy with a script",
}
"""What the server may refuse for now, by redis-py's error or by how the text of the error begins."""
_ELSEWHERE = (errors.ReadOnlyError, errors.ClusterDownError, errors.AskError, errors.MovedError, errors.MasterDownError)
"""Refusals after which another node may be the one to talk to."""


class Server:
    """A pool of connections to the node that is talked to, and calls over it."""

    def __init__(self, location: Location, connections: int = CONNECTIONS_MAX) -> None:
        self.location = location
        self._connections = connections
        self._calls = Calls()
        self.see_through = self._calls.see_through
        self._finding = asyncio.Lock()
        self._node = location.nodes[0]
        self._pool = self._pool_of(self._node)
        self._settled = len(location.nodes) == 1 and location.sentinel is None

    def _pool_of(self, node: Node) -> BlockingConnectionPool:
        seconds = self.location.timeout_seconds
        try:
            return BlockingConnectionPool.from_url(
                self.location.url(node),
                max_connections=self._connections,
                timeout=seconds,
                socket_timeout=seconds,
                socket_connect_timeout=seconds,
                protocol=PROTOCOL,
                retry=Retry(NoBackoff(), 0),
                decode_responses=False,
            )
        except (ValueError, TypeError) as error:
            shown = self.location.shown
            raise InvalidSetting(f"store: the URL of {shown} can't be used: {error}", field="store") from error

    async def node_url(self) -> str:
        """The URL of the node that is talked to. Raises StoreUnavailable."""
        await self._settle()
        return self.location.url(self._node)

    async def _settle(self) -> None:
        """Choose a node, unless one is chosen."""
        if self._settled:
            return
        async with self._finding:
            if not self._settled:
                await self._move_to(await find_node(self.location))

    async def _move_to(self, node: Node) -> None:
        left, self._settled = self._pool, True
        if node != self._node:
            self._node, self._pool = node, self._pool_of(node)
            await left.disconnect(inuse_connections=False)

    def look_again(self) -> None:
        """The call was not served: look again before the next one."""
        self._settled = False

    async def close(self) -> None:
        """Wait for calls under way, then disconnect."""
        await self._calls.all_over()
        await self._pool.disconnect()

    async def read(self, name: str, prefix: bytes, *arguments: Any) -> Any:
        """The answer of a script that writes nothing."""
        return await self.see_through(self._translated(self._script(name, prefix, arguments, 0)))

    async def write(self, name: str, prefix: bytes, *arguments: Any) -> Any:
        """The answer of a script that writes. With replicas to wait for: once they have it."""
        return await self.see_through(self._translated(self._script(name, prefix, arguments, self.location.replicas)))

    async def command(self, *arguments: Any) -> Any:
        """The answer to one plain command."""
        return (await self.see_through(self._translated(self._commands([arguments]))))[0]

    async def time(self) -> tuple[Instant, bytes | None]:
        """The server's time; and another text after each write, by anyone, to any database of the server: how much was
        changed since it was last saved, and when that was. None: it does not say. Raises StoreUnavailable."""
        (seconds, micros), said = await self.see_through(self._translated(self._commands(_TIME)))
        found = [each.search(said) for each in (_WRITTEN, _SAVED) if not isinstance(said, Exception)]
        mark = b" ".join(each[1] for each in found if each) if found and all(found) else None
        return int(seconds) * SECOND + int(micros), mark

    async def _script(self, name: str, prefix: bytes, arguments: Sequence[Any], replicas: int) -> Any:
        known = script(name)
        after: list[tuple[Any, ...]] = []
        if replicas:
            after = [("WAIT", replicas, int(self.location.timeout_seconds * 500))]
        called = [("EVALSHA", known.digest, 1, prefix, *arguments), *after]
        sent = [("EVAL", known.text, 1, prefix, *arguments), *after]
        try:
            answers = await self._commands(called)
        except MovedError as moved:
            await self._move_to((moved.host or self._node[0], int(moved.port)))
            answers = await self._commands(sent)
        except NoScriptError:
            answers = await self._commands(sent)
        if after:
            self._check_replicas(answers[1])
        return answers[0]

    async def _commands(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send these over one connection; the answers. Raises if the first one is an error."""
        await self._settle()
        pool = self._pool
        # Its deprecation decorator is untyped.
        connection = await pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            await connection.send_packed_command(b"".join(map(hiredis.pack_command, commands)), check_health=False)
            answers = [await _answer(connection) for _ in commands]
        except (errors.ConnectionError, errors.TimeoutError, OSError):
            await self._drop_idle()
            raise
        finally:
            await pool.release(connection)
            if pool is not self._pool:
                await pool.disconnect(inuse_connections=False)
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers

    async def _drop_idle(self) -> None:
        """What happened to one connection has probably happened to all: a network may have dropped them, and each would
        cost the call that takes it the whole time limit, long after the outage. Without an await, so that no call can
        take one that is being closed."""
        for connection in list(self._pool._available_connections):
            await connection.disconnect(nowait=True)

    def _check_replicas(self, confirmed: Any) -> None:
        wanted = self.location.replicas
        if isinstance(confirmed, Exception) or int(confirmed) < wanted:
            raise StoreUnavailable(
                f"Redis at {self.location.shown}: the write was made, but {confirmed} of {wanted} replicas confirmed "
                "it (?wait= in the store's URL)"
            )

    async def _translated(self, call: Awaitable[T]) -> T:
        where = f"Redis at {self.location.shown}"
        try:
            return await call
        except (errors.TimeoutError, TimeoutError) as error:
            self.look_again()
            seconds = self.location.timeout_seconds
            raise StoreUnavailable(f"{where} gave no answer within {seconds:g} s") from error
        except (RedisError, OSError) as error:
            if isinstance(error, errors.AuthenticationError):
                self.look_again()
                raise StoreRefused(f"{where}: {_refusal(error)} ({error})") from error
            meaning = _meaning(error)
            if not isinstance(error, ResponseError) or isinstance(error, _ELSEWHERE):
                self.look_again()
            if meaning is not None:
                raise StoreUnavailable(f"{where} refuses: {meaning} ({error})") from error
            if isinstance(error, ResponseError):
                raise
            raise StoreUnavailable(f"{where} is not reachable: {error}") from error
        except RuntimeError as error:
            if not is_hangup(error):
                raise
            self.look_again()
            raise StoreUnavailable(f"{where} is not reachable: it closed the connection while we connected") from error


def is_hangup(error: RuntimeError) -> bool:
    """Whether it is uvloop's way to say that a connection was closed before it was used."""
    return "the handler is closed" in str(error)


async def _answer(connection: AbstractConnection) -> Any:
    """An answer, or the error that the server gave: the answers behind it are still to be read."""
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _refusal(error: Exception) -> str:
    """Why the login was refused."""
    wanted = "required" in str(error)
    return (
        "it wants a password; give it in the store's URL"
        if wanted
        else ("it refuses the login; look at the store's URL")
    )


def _meaning(error: Exception) -> str | None:
    """What a refusal that may pass means; None for any other error."""
    for known, meaning in _PASSING_ERRORS.items():
        if isinstance(error, known):
            return meaning
    return _PASSING_CODES.get(str(error).partition(" ")[0])
