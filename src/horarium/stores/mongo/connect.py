"""The driver, and all that is known of it: URLs, timeouts, how writes are acknowledged, and what its errors mean.

pymongo is imported here and nowhere else, when the first store is opened. Every wait has an end: to find a server, to
connect, for an answer, for a free connection, for the majority. A write counts when a majority has it in its journal;
no URL can weaken that. No message shows a user name, a password or an option: only hosts and database are shown.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from warnings import catch_warnings, simplefilter

from msgspec import Struct

from horarium.clock import Instant, to_instant, to_micros
from horarium.errors import BrokenInvariant, HorariumError, InvalidSetting, StoreRefused, StoreUnavailable

SCHEMES = ("mongodb", "mongodb+srv")
DATABASE_DEFAULT = "horarium"
HALF_MILLISECOND = 500
NAMESPACE_EXISTS = 48
WIRE_VERSION_MIN, SERVER_MIN = 17, "6.0"
ABANDONED_SECONDS = 1.0
"""A transaction of ours that was not touched for this long has no owner any more: none of them ever waits."""
LOOKS = 4
"""In how many parts that time is watched."""
COMMITS_MAX = 3
"""How often a commit is asked for whose fate is unknown."""

DEFAULTS: dict[str, Any] = {
    "serverSelectionTimeoutMS": 5_000,
    "connectTimeoutMS": 5_000,
    "socketTimeoutMS": 8_000,
    "waitQueueTimeoutMS": 5_000,
    "wTimeoutMS": 6_000,
    "heartbeatFrequencyMS": 5_000,
    "maxPoolSize": 20,
    "appname": "horarium",
}
"""The defaults of options that a URL may set. Milliseconds, except for the last two."""

DENSE: dict[str, Any] = {"wiredTiger": {"configString": "block_compressor=zstd"}}

FIXED: dict[str, Any] = {"w": "majority", "journal": True, "retryWrites": True}
REFUSED = frozenset(("w", "journal", "retrywrites", "readpreference", "readconcernlevel", "timeoutms", "tz_aware"))
SAID_CHARS_MAX = 300
_BAD_VALUE, _NO_INDEX = 2, "hint provided does not correspond"
_UPGRADED = (
    "an index that this release works by is gone: a node of a newer release has upgraded the database; upgrade this "
    "node too, the others do its work meanwhile"
)

_PASSING_CODES = {
    6: "a host can't be reached",
    7: "a host was not found",
    24: "a lock is held for too long",
    50: "it took too long",
    64: "the majority did not confirm in time",
    89: "the network is too slow",
    91: "it is shutting down",
    112: "others write the same all the time",
    136: "what is followed was overwritten",
    189: "the primary has stepped down",
    239: "the snapshot is too old",
    246: "the snapshot is not available",
    251: "the transaction was aborted",
    262: "it took too long",
    290: "the transaction took too long",
    9001: "the connection was lost",
    10107: "the node is not the primary",
    11600: "it is shutting down",
    11601: "it was interrupted",
    11602: "the primary has stepped down",
    13435: "the node is not the primary",
    13436: "the node is recovering",
    14031: "its disk is full",
}
_REFUSED_CODES = {
    13: "the user may not do this; grant readWrite on the database",
    18: "the user name or the password is refused; look at the store's URL",
    8000: "the user name or the password is refused; look at the store's URL",
}
_CUT_SHORT = frozenset({11601, 290})
"""Of a command in a transaction that was ended from outside while it was under way (`end_abandoned` of another node, an
operator, the server's own time limit). It is undone as after any other error, but the server puts no label on these."""
_PASSING_LABELS = ("TransientTransactionError", "RetryableWriteError", "UnknownTransactionCommitResult")


class Location(Struct, frozen=True):
    """A database to connect to. `shown` may appear in messages, `url` may not."""

    url: str
    shown: str
    database: str
    options: frozenset[str]


def parse_url(url: str) -> Location:
    """`mongodb://[user:password@]host[:port][,host...][/database][?option=value&...]`, or `mongodb+srv://` with one
    host, looked up in DNS. The database is `horarium` if none is named. Options are the driver's own, except those
    that say how writes are acknowledged. Raises InvalidSetting."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2]
    if parts.scheme not in SCHEMES or not hosts:
        raise InvalidSetting(
            f"store: {parts.scheme}://{hosts} names no MongoDB; give mongodb://HOST[:PORT]/DATABASE", field="store"
        )
    database = unquote(parts.path.lstrip("/")) or DATABASE_DEFAULT
    if not set(database).isdisjoint('/\\. "$*<>:|?\0'):
        raise InvalidSetting(f"store: MongoDB allows no database named {database!r}; give another", field="store")
    options = frozenset(name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True))
    if refused := sorted(options & REFUSED):
        raise InvalidSetting(
            f"store: the option {refused[0]!r} can't be set, since what is durable depends on it; leave it out",
            field="store",
        )
    return Location(url, f"{parts.scheme}://{hosts}/{database}", database, options)


def make_client(location: Location, **defaults: Any) -> Any:
    """A client, not connected yet. `defaults`: of its own, of options that a URL may set. Raises InvalidSetting."""
    from pymongo import AsyncMongoClient

    options = {**DEFAULTS, **defaults}
    chosen = {name: value for name, value in options.items() if name.lower() not in location.options}
    try:
        # What the driver only warns of, an option that it does not know or a value that it can't use, it ignores.
        with translated(location), catch_warnings():
            simplefilter("error", UserWarning)
            return AsyncMongoClient(location.url, **chosen, **FIXED)
    except (UserWarning, ValueError) as error:
        if isinstance(error, InvalidSetting):
            raise
        raise InvalidSetting(f"store: {location.shown}: the URL can't be used ({error})", field="store") from error


async def server_time(client: Any, location: Location) -> tuple[Instant, Any]:
    """What time the primary has: cut to milliseconds, so put in the middle of one. And what it says of the last write
    that a majority has, to anything in the replica set: another value after each. None: a router or a standalone server
    answers, which can't tell."""
    with translated(location):
        hello = await client.admin.command("hello")
    written = hello.get("lastWrite", {}).get("majorityOpTime")
    return to_instant(hello["localTime"].replace(tzinfo=UTC)) + HALF_MILLISECOND, written


async def verify(client: Any, location: Location) -> bool:
    """Refuse a server that can't do what the store needs. Whether it is a standalone one, which has neither
    transactions nor change streams. Raises InvalidSetting or StoreUnavailable."""
    with translated(location):
        hello = await client.admin.command("hello")
    if hello.get("isreplicaset"):
        raise InvalidSetting(
            f"{location.shown} was started as a replica set and never initiated; run once: {_initiate(location)}",
            field="store",
        )
    if hello.get("maxWireVersion", 0) < WIRE_VERSION_MIN:
        raise InvalidSetting(f"{location.shown} is too old; MongoDB {SERVER_MIN} or later is needed", field="store")
    return is_standalone(hello)


def is_standalone(hello: dict[str, Any]) -> bool:
    """Whether a server that says so is neither in a set nor the router of a cluster."""
    return "setName" not in hello and hello.get("msg") != "isdbgrid"


def how_to_become_a_set(location: Location) -> str:
    """What to type to make a replica set of a lone server; its data stays."""
    return (
        "make the server a replica set (one node is enough, its data stays): start it again with --replSet rs0 beside "
        f"its other options (or replication.replSetName: rs0 in mongod.conf), and run once: {_initiate(location)}"
    )


def _initiate(location: Location) -> str:
    host = location.shown.partition("://")[2].partition("/")[0]
    return f"mongosh 'mongodb://{host}/?directConnection=true' --eval 'rs.initiate()'"


def concerns() -> tuple[Any, Any]:
    """Read concern `majority` for single reads, `snapshot` for transactions."""
    from pymongo.read_concern import ReadConcern

    return ReadConcern("majority"), ReadConcern("snapshot")


def new_mark() -> Any:
    """What a write leaves in the documents that it wrote: unique over all nodes."""
    from bson import ObjectId

    return ObjectId()


def update_one(where: Any, change: Any, *, upsert: bool = False) -> Any:
    """One entry of a bulk write. An upsert finds its document by `_id` alone."""
    from pymongo import UpdateOne

    return UpdateOne(where, change, upsert=upsert)


def update_many(where: Any, change: Any) -> Any:
    from pymongo import UpdateMany

    return UpdateMany(where, change)


def replace_one(where: Any, document: Any, *, upsert: bool = False) -> Any:
    from pymongo import ReplaceOne

    return ReplaceOne(where, document, upsert=upsert)


def delete_many(where: Any) -> Any:
    from pymongo import DeleteMany

    return DeleteMany(where)


LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def unjournaled() -> Any:
    """How a write is acknowledged that something journaled stands for."""
    from pymongo.write_concern import WriteConcern

    return WriteConcern(w=1, j=False)


async def make_capped(database: Any, name: str, size: int) -> None:
    """A collection of this many bytes, which keeps the newest, unless there is one of that name."""
    from pymongo.errors import OperationFailure

    try:
        await database.command("create", name, capped=True, size=size)
    except OperationFailure as error:
        if error.code != NAMESPACE_EXISTS:
            raise


async def make_dense(database: Any, name: str) -> None:
    """A collection whose documents are compressed by zstd, unless there is one of that name. Where the server's storage
    knows no such thing, it makes one of its own kind with the first index."""
    from pymongo.errors import OperationFailure

    try:
        await database.command("create", name, storageEngine=DENSE)
    except OperationFailure as error:
        if error.code in _PASSING_CODES:
            raise


async def follow(collection: Any, where: Any, milliseconds: int) -> AsyncIterator[dict[str, Any]]:
    """The documents of a capped collection, present and future, in the order of insertion; the server waits for up to
    so long before it says that there is nothing new. Ends when the server gives up, which it does with one that is
    empty."""
    from pymongo import CursorType

    silence = collection.database.client.options.pool_options.socket_timeout
    if silence is not None:
        milliseconds = min(milliseconds, int(silence * 500))
    cursor = collection.find(where, cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(milliseconds)
    async with cursor:
        while cursor.alive:
            async for document in cursor:
                yield document


def encode(document: dict[str, Any]) -> bytes:
    """As BSON, which may be larger than a document that is stored."""
    import bson

    return bson.encode(document)


def decode(body: bytes) -> dict[str, Any]:
    """What `encode` made BSON of."""
    import bson

    return bson.decode(body)


async def busy_with(client: Any, location: Location) -> bool:
    """Whether clients' writes of ours are under way at the server. Where it does not tell: no."""
    from pymongo.errors import OperationFailure

    ours = {
        "active": True,
        "connectionId": {"$exists": True},
        "op": {"$in": ["insert", "update", "remove", "command"]},
        "ns": {"$regex": rf"^{re.escape(location.database)}\.(horarium_|\$cmd)"},
    }
    try:
        cursor = await client.admin.aggregate([{"$currentOp": {"allUsers": False}}, {"$match": ours}, {"$limit": 1}])
        return bool(await cursor.to_list())
    except OperationFailure:
        return False


# ---- errors -----------------------------------------------------------------------------------------------------


def duplicates(error: BaseException) -> list[int] | None:
    """Which entries of a bulk write met a unique index; None if the error is of another kind."""
    from pymongo.errors import BulkWriteError, DuplicateKeyError

    if isinstance(error, DuplicateKeyError):
        return [0]
    if not isinstance(error, BulkWriteError) or error.details.get("writeConcernErrors"):
        return None
    failures = error.details["writeErrors"]
    if any(failure["code"] != 11000 for failure in failures):
        return None
    return [failure["index"] for failure in failures]


def is_transient(error: BaseException) -> bool:
    """Whether a transaction may be tried again from its beginning: not if no server answers, which took long enough.
    The error must not be one of a commit whose fate is unknown."""
    from pymongo.errors import NetworkTimeout, PyMongoError, ServerSelectionTimeoutError, WaitQueueTimeoutError

    if isinstance(error, (ServerSelectionTimeoutError, NetworkTimeout, WaitQueueTimeoutError)):
        return False
    if not isinstance(error, PyMongoError):
        return False
    return error.has_error_label("TransientTransactionError") or _code(error) in _CUT_SHORT


async def commit(session: Any) -> None:
    """Commit. A commit whose fate is unknown is asked for again, which changes nothing if it was done."""
    from pymongo.errors import PyMongoError, ServerSelectionTimeoutError

    for attempt in range(COMMITS_MAX):
        try:
            await session.commit_transaction()
        except PyMongoError as error:
            last = isinstance(error, ServerSelectionTimeoutError) or attempt + 1 == COMMITS_MAX
            if _code(error) in _CUT_SHORT:
                if last:
                    raise StoreUnavailable(
                        "MongoDB: a commit was interrupted; whether it was done is unknown"
                    ) from error
            elif last or not error.has_error_label("UnknownTransactionCommitResult"):
                raise
        else:
            return


async def end_abandoned(client: Any) -> bool:
    """Have the server abort transactions that nodes of ours began and left: it keeps what they wrote locked for a
    minute, whether the node that began them lives or not. If one was only slow, it begins again. Whether there were
    any. A user may see and end operations under its own name; where a server allows not even that, nothing is done.

    The server tells how long a transaction was inactive in all, which of a live one of many commands is long, too. So
    those are watched for as long: one that does anything meanwhile has an owner."""
    from pymongo.errors import OperationFailure

    try:
        left = await _idle_transactions(client)
        for _ in range(LOOKS):
            if not left:
                return False
            await asyncio.sleep(ABANDONED_SECONDS / LOOKS)
            now = await _idle_transactions(client)
            left = {which: active for which, active in left.items() if now.get(which) == active}
        if left:
            await client.admin.command("killSessions", [{"id": session} for session, _ in left])
    except OperationFailure:
        return False
    return bool(left)


async def _idle_transactions(client: Any) -> dict[tuple[Any, int], int]:
    """Of ours that no command is under way in, and that were inactive long enough in all: session and number, and for
    how long they were active."""
    ours = {
        "type": "idleSession",
        "appName": client.options.pool_options.appname,
        "transaction.timeInactiveMicros": {"$gte": to_micros(ABANDONED_SECONDS)},
    }
    shown = {"lsid": True, "transaction": True}
    cursor = await client.admin.aggregate(
        [{"$currentOp": {"idleSessions": True, "allUsers": False}}, {"$match": ours}, {"$project": shown}]
    )
    return {
        (document["lsid"]["id"], int(document["transaction"]["parameters"]["txnNumber"])): int(
            document["transaction"]["timeActiveMicros"]
        )
        for document in await cursor.to_list()
    }


@contextmanager
def translated(location: Location) -> Iterator[None]:
    """Turn the driver's errors into ours."""
    from pymongo.errors import PyMongoError

    try:
        yield
    except PyMongoError as error:
        raise explain(error, location) from error


def explain(error: Any, location: Location) -> HorariumError:
    """Our error for one of the driver's."""
    from pymongo import errors

    said = str(error).partition(", Timeout: ")[0].partition(" (configured timeouts")[0][:SAID_CHARS_MAX]
    if isinstance(error, errors.ServerSelectionTimeoutError):
        return StoreUnavailable(f"MongoDB at {location.shown}: no primary answers ({said})")
    if isinstance(error, errors.WaitQueueTimeoutError):
        return StoreUnavailable(f"MongoDB at {location.shown}: all connections are busy; raise maxPoolSize")
    if isinstance(error, errors.ConnectionFailure):
        return StoreUnavailable(f"MongoDB at {location.shown}: the connection was lost ({said})")
    if isinstance(error, errors.ConfigurationError) and "Sessions" in said:
        return StoreUnavailable(f"MongoDB at {location.shown}: it is starting, and has no sessions yet")
    if isinstance(error, errors.ConfigurationError):
        return InvalidSetting(f"store: MongoDB at {location.shown}: the URL can't be used ({said})", field="store")
    if isinstance(error, errors.InvalidOperation):
        return StoreUnavailable(f"the store at {location.shown} is closed; open it first")
    code = _code(error)
    if code in _REFUSED_CODES:
        return StoreRefused(f"MongoDB at {location.shown}: {_REFUSED_CODES[code]} ({said})")
    if code in _PASSING_CODES:
        return StoreUnavailable(f"MongoDB at {location.shown}: {_PASSING_CODES[code]} ({said})")
    if code == _BAD_VALUE and _NO_INDEX in str(error):
        return StoreUnavailable(f"MongoDB at {location.shown}: {_UPGRADED}")
    if any(error.has_error_label(label) for label in _PASSING_LABELS):
        return StoreUnavailable(f"MongoDB at {location.shown}: {said}")
    return BrokenInvariant(f"MongoDB at {location.shown}: {type(error).__name__} {code}: {said}")


def _code(error: Any) -> int | None:
    details = getattr(error, "details", None) or {}
    for failures in ("writeErrors", "writeConcernErrors"):
        for failure in details.get(failures) or ():
            return int(failure["code"])
    code = getattr(error, "code", None)
    return None if code is None else int(code)
