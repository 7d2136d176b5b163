"""The connection to one Redis or Valkey: scripts are called, errors translated, nothing is repeated.

A command that was sent is seen through, whoever waits for it: a caller that is cancelled leaves the command to its own
task, so that no answer is ever taken for the answer to another command. Nothing is sent twice: a script whose answer
did not come may have been carried out, and whoever called it knows what repeating it means. The one exception is a
server that does not know a script (it was restarted, or its scripts were flushed): it has done nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import hiredis
from msgspec import Struct
from redis import exceptions as errors
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from horarium.errors import InvalidSetting, StoreUnavailable
from horarium.stores.redis.scripts import script

T = TypeVar("T")

SCHEMES = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}
CONNECTIONS_MAX = 8
TIMEOUT_SECONDS = 5.0
TIMEOUT_SECONDS_MAX = 300.0
REPLICAS_MAX = 100
PROTOCOL = 2
"""RESP 2: the answers of scripts are the same on every server, and nothing is pushed in between."""

_PASSING_ERRORS: dict[type[RedisError], str] = {
    errors.OutOfMemoryError: "its memory is full (maxmemory)",
    errors.ReadOnlyError: "it is a read-only replica",
    errors.BusyLoadingError: "it is loading its data",
    errors.MasterDownError: "it has lost its primary",
    errors.ClusterDownError: "its cluster is down",
    errors.TryAgainError: "its cluster is moving the slot",
    errors.AskError: "its cluster is moving the slot",
    errors.MovedError: "another node of its cluster has the slot",
    errors.NoPermissionError: "the user lacks a permission",
    errors.AuthenticationError: "it refuses the login",
}
_PASSING_CODES = {
    "MISCONF": "it can't save its data to disk",
    "NOREPLICAS": "it has too few replicas (min-replicas-to-write)",
    "BUSY": "it is busy with a script",
    "NOAUTH": "it wants a password",
    "WRONGPASS": "it refuses the login",
    "UNKILLABLE": "it is busy with a script",
}
"""What the server may refuse for now, by redis-py's error or by how the text of the error begins."""


class Location(Struct, frozen=True):
    """What a store's URL says. `replicas`: how many must have a write before it counts."""

    url: str
    shown: str
    replicas: int
    timeout_seconds: float


def parse_url(url: str) -> Location:
    """`redis[s]://[user:password@]host[:port][/db]`, or `valkey[s]://`; `?wait=N` replicas, `?timeout=SECONDS`. Other
    parameters are redis-py's. Raises InvalidSetting."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise InvalidSetting(f"store: {parts.scheme or url!r} is not one of {known}", field="store")
    query = dict(parse_qsl(parts.query))
    replicas = _number(query.pop("wait", "0"), "wait", 0, REPLICAS_MAX)
    seconds = _number(query.pop("timeout", str(TIMEOUT_SECONDS)), "timeout", 0.05, TIMEOUT_SECONDS_MAX)
    try:
        shown = f"{parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path}"
    except ValueError as error:
        raise InvalidSetting(f"store: the port of the URL can't be used: {error}", field="store") from error
    rest = urlunsplit(parts._replace(scheme=SCHEMES[parts.scheme], query=urlencode(query)))
    return Location(rest, shown, int(replicas), seconds)


def _number(text: str, name: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise InvalidSetting(f"store: ?{name}={text} is not a number from {least:g} to {most:g}", field="store")
    return value


class Server:
    """A pool of connections, and calls over it."""

    def __init__(self, location: Location, connections: int = CONNECTIONS_MAX) -> None:
        self.location = location
        self._calls: set[asyncio.Future[Any]] = set()
        try:
            self._pool = BlockingConnectionPool.from_url(
                location.url,
                max_connections=connections,
                timeout=location.timeout_seconds,
                socket_timeout=location.timeout_seconds,
                socket_connect_timeout=location.timeout_seconds,
                protocol=PROTOCOL,
                retry=Retry(NoBackoff(), 0),
                decode_responses=False,
            )
        except (ValueError, TypeError) as error:
            raise InvalidSetting(f"store: the URL of {location.shown} can't be used: {error}", field="store") from error

    async def close(self) -> None:
        """See what was sent through, then disconnect."""
        if self._calls:
            await asyncio.wait(self._calls)
        await self._pool.disconnect()

    async def see_through(self, call: Coroutine[Any, Any, T]) -> T:
        """Wait for a call that goes on even if we are cancelled."""
        task = asyncio.ensure_future(call)
        self._calls.add(task)
        task.add_done_callback(self._over)
        return await asyncio.shield(task)

    def _over(self, task: asyncio.Future[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            # Looked at, so that asyncio does not complain of an error that nobody waited for.
            task.exception()

    async def read(self, name: str, prefix: bytes, *arguments: Any) -> Any:
        """The answer of a script that writes nothing."""
        return await self.see_through(self._translated(self._script(name, prefix, arguments, 0)))

    async def write(self, name: str, prefix: bytes, *arguments: Any) -> Any:
        """The answer of a script that writes. With replicas to wait for: once they have it."""
        return await self.see_through(self._translated(self._script(name, prefix, arguments, self.location.replicas)))

    async def command(self, *arguments: Any) -> Any:
        """The answer to one plain command."""
        return await self.see_through(self._translated(self._commands([arguments])))

    async def _script(self, name: str, prefix: bytes, arguments: Sequence[Any], replicas: int) -> Any:
        known = script(name)
        after: list[tuple[Any, ...]] = []
        if replicas:
            after = [("WAIT", replicas, int(self.location.timeout_seconds * 500))]
        try:
            return await self._commands([("EVALSHA", known.digest, 1, prefix, *arguments), *after])
        except NoScriptError:
            return await self._commands([("EVAL", known.text, 1, prefix, *arguments), *after])

    async def _commands(self, commands: Sequence[tuple[Any, ...]]) -> Any:
        """Send these over one connection; the answer to the first."""
        # Its deprecation decorator is untyped.
        connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            await connection.send_packed_command(b"".join(map(hiredis.pack_command, commands)), check_health=False)
            answers = [await _answer(connection) for _ in commands]
        except (errors.ConnectionError, errors.TimeoutError, OSError):
            await self._drop_idle()
            raise
        finally:
            await self._pool.release(connection)
        if isinstance(answers[0], Exception):
            raise answers[0]
        if len(answers) > 1:
            self._check_replicas(answers[1])
        return answers[0]

    async def _drop_idle(self) -> None:
        """What happened to one connection has probably happened to all: a network may have forgotten them, and each
        would cost whoever takes it the whole time limit, long after the outage. Without a wait, so that nobody can take
        one that is being closed."""
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
            seconds = self.location.timeout_seconds
            raise StoreUnavailable(f"{where} gave no answer within {seconds:g} s") from error
        except (RedisError, OSError) as error:
            meaning = _meaning(error)
            if meaning is not None:
                raise StoreUnavailable(f"{where} refuses: {meaning} ({error})") from error
            if isinstance(error, ResponseError):
                raise
            raise StoreUnavailable(f"{where} is not reachable: {error}") from error
        except RuntimeError as error:
            if not is_hangup(error):
                raise
            raise StoreUnavailable(f"{where} is not reachable: it hung up while we connected") from error


def is_hangup(error: RuntimeError) -> bool:
    """Whether it is uvloop's way to say that a connection was closed before it was used."""
    return "the handler is closed" in str(error)


async def _answer(connection: AbstractConnection) -> Any:
    """An answer, or the error that the server gave: the answers behind it are still to be read."""
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _meaning(error: Exception) -> str | None:
    """What a refusal that may pass means; None for any other error."""
    for known, meaning in _PASSING_ERRORS.items():
        if isinstance(error, known):
            return meaning
    return _PASSING_CODES.get(str(error).partition(" ")[0])
