"""Opening the file, and what SQLite's errors mean to us.

apsw only, never the standard library's sqlite3: apsw brings its own SQLite, and those before 3.51.3 can corrupt a
database in WAL mode. It tells errors that may pass (`StoreUnavailable`: the caller backs off and calls again) from
those that won't.
"""

from __future__ import annotations

import os
import threading
from errno import EACCES, EISDIR
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import apsw
from msgspec import Struct

from horarium.errors import BrokenInvariant, HorariumError, InvalidSetting, StoreRefused, StoreUnavailable

BUSY_SECONDS = 5.0
"""How long a statement waits for another process that holds the file."""

WAL_MODE_TRIES = 50
"""Switching a new file to WAL needs it alone; each try waits up to a tenth of a second for the others."""

WAL_PAGES = 4_000
"""After how many pages (4 KiB) the log is copied into the file, which every write waits for. Most pages are in the log
several times: twice as many are copied half as often, and cost little more each time."""

WAL_BYTES_KEPT = 64 * 1024 * 1024
"""To what the log is cut back once a burst made it longer."""

FILE_MODE = 0o600
"""Of a new file: it holds payloads and signing secrets."""

_CREATING = threading.Lock()
"""Between making a file and closing it no other thread may open it."""

_PASSING = (
    (apsw.FullError, "the disk is full; free some space, writing then goes on by itself"),
    (apsw.BusyError, "another process has held the file for longer than the busy timeout"),
    (apsw.LockedError, "another connection holds a table"),
    (apsw.ProtocolError, "too many processes are opening the file at once"),
    (apsw.ReadOnlyError, "the file or its directory is read-only; make both writable for this user"),
    (apsw.CantOpenError, "the file can't be opened; does its directory exist, and is it writable?"),
    (apsw.PermissionsError, "access is denied; make the file and its directory writable for this user"),
    (apsw.AuthError, "access is denied"),
    (apsw.IOError, "reading or writing failed; look at the disk"),
    (apsw.NoMemError, "out of memory"),
    (apsw.InterruptError, "the statement was interrupted"),
)

REOPEN = (apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, apsw.CorruptError)
"""After these a connection may be of no more use: the next call opens a new one."""


class Location(Struct, frozen=True):
    """Where the file is, and how it is written."""

    path: str
    synchronous: str = "full"
    busy_seconds: float = BUSY_SECONDS


def parse_url(url: str) -> Location:
    """`sqlite:///relative.db`, `sqlite:////absolute.db`, with `?synchronous=full|normal` and `&busy_seconds=5`.

    `normal` makes no commit wait for the disk: a power cut (not a crash of the process) may lose the last ones.
    """
    parts = urlsplit(url)
    if parts.scheme == "sqlite" and not url.startswith("sqlite:///"):
        meant = parts.netloc + parts.path
        if meant.strip("/"):
            raise _wrong_url(url, f"it names no file: three slashes come before a path; give sqlite:///{meant}")
    path = unquote(parts.path)[1:]
    if parts.scheme != "sqlite" or parts.netloc or not path:
        raise _wrong_url(url, "it names no file; give sqlite:///relative.db or sqlite:////absolute/path.db")
    if path.startswith(":memory:"):
        raise _wrong_url(url, "SQLite in memory can't be shared by two connections; use memory:// instead")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    synchronous = options.pop("synchronous", "full")
    if synchronous not in ("full", "normal"):
        raise _wrong_url(url, f"synchronous is {synchronous!r}; give full or normal")
    busy_seconds = _seconds(url, options.pop("busy_seconds", str(BUSY_SECONDS)))
    if options:
        raise _wrong_url(url, f"unknown option {sorted(options)[0]!r}; there are synchronous and busy_seconds")
    return Location(path, synchronous, busy_seconds)


def _seconds(url: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 60:
        raise _wrong_url(url, f"busy_seconds is {text!r}; give a number from 0 to 60")
    return seconds


def _wrong_url(url: str, why: str) -> InvalidSetting:
    return InvalidSetting(f"store URL {url!r}: {why}", field="store")


def connect(location: Location) -> apsw.Connection:
    """A connection in WAL mode. The file is made if there is none."""
    _create(location.path)
    connection = apsw.Connection(location.path, flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        milliseconds = round(location.busy_seconds * 1000)
        connection.set_busy_timeout(milliseconds)
        _enter_wal(connection)
        connection.setlk_timeout(milliseconds, 0)
        connection.pragma("synchronous", location.synchronous)
        connection.pragma("wal_autocheckpoint", WAL_PAGES)
        connection.pragma("journal_size_limit", WAL_BYTES_KEPT)
        connection.pragma("mmap_size", 0)
        # The plan must not depend on bound values: otherwise every call with another value prepares again (50 us).
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    except BaseException:
        connection.close()
        raise
    return connection


def undo_in_memory(connection: apsw.Connection) -> None:
    """Keep in memory what undoing a savepoint or a statement takes: with each batch whole pages of it went to a
    temporary file, more than to the database. Not for a connection that sorts or indexes much, which would do that in
    memory, too."""
    connection.pragma("temp_store", 2)


def _create(path: str) -> None:
    """Make the file if there is none. A file that is there is never opened here: closing a descriptor of it would drop
    the locks that this process holds on it, and other programs would take its log away (How To Corrupt, 2.2)."""
    try:
        with _CREATING:
            os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    except FileExistsError:
        if os.path.isdir(path) or not os.access(path, os.R_OK | os.W_OK):
            why = os.strerror(EISDIR if os.path.isdir(path) else EACCES)
            raise StoreRefused(f"SQLite file {path}: {why}; it must be a readable and writable file") from None
    except FileNotFoundError:
        folder = Path(path).parent
        why = f"no file can be made in {folder}" if folder.is_dir() else f"there is no directory {folder}; create it"
        raise StoreRefused(f"SQLite file {path}: {why}") from None
    except (NotADirectoryError, PermissionError) as error:
        raise StoreRefused(f"SQLite file {path}: {error.strerror}; it must be a readable and writable file") from error
    except OSError as error:
        raise StoreUnavailable(f"SQLite file {path}: {error.strerror}; it must be readable and writable") from error


class Held:
    """The database and its log, by the names and numbers that they had when they were opened. To be asked after each
    commit: SQLite goes on writing to files that have lost their names, and all of that is gone with the process."""

    def __init__(self, path: str) -> None:
        self._files = [(name, _number(name)) for name in (path, f"{path}-wal")]

    def check(self) -> None:
        """Raises StoreRefused if one of them is not there any more, or is another file."""
        for name, number in self._files:
            if _number(name) != number:
                raise StoreRefused(
                    f"SQLite file {name} was removed or replaced by another program while this process had it open; "
                    "nothing more is written to it. Stop every process that has it open, look at the files, start again"
                )


def _number(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _enter_wal(connection: apsw.Connection) -> None:
    for attempt in range(WAL_MODE_TRIES):
        try:
            mode = connection.pragma("journal_mode", "wal")
        except apsw.BusyError:
            if attempt + 1 == WAL_MODE_TRIES:
                raise
            continue
        if mode != "wal":
            raise StoreUnavailable(
                f"SQLite file {connection.filename}: its file system can't share memory, which the write-ahead log "
                "needs; put it on a local disk"
            )
        return


def explain(error: BaseException, path: str) -> BaseException:
    """Our error for an error of SQLite; any other error as it is."""
    if not isinstance(error, apsw.Error):
        return error
    for kind, why in _PASSING:
        if isinstance(error, kind):
            return _because(StoreUnavailable(f"SQLite file {path}: {why} ({error})"), error)
    if isinstance(error, apsw.NotADBError):
        message = f"SQLite file {path}: this is not a SQLite database; give another path, or move the file away"
        return _because(InvalidSetting(message, field="store"), error)
    if isinstance(error, apsw.CorruptError):
        message = f"SQLite file {path}: the database is damaged; stop, and restore a backup ({error})"
        return _because(BrokenInvariant(message), error)
    return _because(BrokenInvariant(f"SQLite file {path}: {type(error).__name__}: {error}"), error)


def _because(error: HorariumError, cause: BaseException) -> HorariumError:
    error.__cause__ = cause
    return error
