"""Threads that own a connection each, and group commit.

Work handed to a `Lane` is carried out, in order, by its one thread. A lane that writes takes all work that came in
while it was busy, runs each piece in a savepoint of its own (a piece that fails is undone alone), commits once for all,
and only then answers, with one call to the event loop. So fifty callers share one wait for the disk. Nothing is
answered before its commit; if the commit fails, everything in it is undone and every caller gets the error.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import apsw

from horarium.errors import BrokenInvariant, StoreUnavailable
from horarium.stores.sqlite.connect import REOPEN, Held, explain
from horarium.stores.sqlite.session import Session

T = TypeVar("T")

GROUP_MAX = 256
"""How many pieces of work share a commit, at most."""

Work = Callable[[Session], Any]


class Lane:
    """One thread with one session. `begin`: how its transactions start; `group_max`: how many pieces share one."""

    def __init__(self, name: str, path: str, begin: str, group_max: int, connect: Callable[[], Session]) -> None:
        self._name, self._path = name, path
        self._begin, self._group_max = begin, group_max
        self._connect = connect
        self._inbox: SimpleQueue[_Piece[Any] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._held: Held | None = None
        """The files of the session, once it has committed."""
        self._failed = False
        """Whether the last transaction failed, or its files were lost."""
        self.changes = 0
        """How many rows its transactions changed so far, give or take undone ones."""

    async def start(self) -> None:
        """Start the thread and wait until its connection is open. Raises what opening it raised."""
        self._loop, self._pid, self._held = asyncio.get_running_loop(), os.getpid(), None
        opened: asyncio.Future[Any] = self._loop.create_future()
        self._thread = threading.Thread(
            target=self._run, args=(_Piece(_nothing, opened),), name=self._name, daemon=True
        )
        self._thread.start()
        try:
            await opened
        except BaseException:
            await asyncio.shield(self.stop())
            raise

    async def stop(self) -> None:
        """Carry out the work handed over, close the connection, join the thread. May be called twice."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._inbox.put(None)
        await asyncio.get_running_loop().run_in_executor(None, thread.join)

    async def call(self, work: Callable[[Session], T]) -> T:
        """Carry out `work` in a transaction and return what it returned. Cancelling the caller does not undo it."""
        if os.getpid() != self._pid and self._pid:
            raise BrokenInvariant(
                "this store was opened before a fork, and SQLite connections don't survive one; open a new store in "
                "the child process"
            )
        if self._thread is None or self._loop is None:
            raise StoreUnavailable(f"SQLite file {self._path}: the store is not open; await its open() first")
        future: asyncio.Future[T] = self._loop.create_future()
        self._inbox.put(_Piece(work, future))
        return await future

    # -- on the thread

    def _run(self, opening: _Piece[Any]) -> None:
        session: Session | None = None
        pieces: list[_Piece[Any]] | None = [opening]
        while pieces is not None:
            session = self._carry_out(session, pieces)
            self._answer(pieces)
            del pieces
            pieces = self._next_pieces()
        if session is not None:
            session.close()

    def _next_pieces(self) -> list[_Piece[Any]] | None:
        first = self._inbox.get()
        if first is None:
            return None
        pieces = [first]
        while len(pieces) < self._group_max:
            try:
                piece = self._inbox.get_nowait()
            except Empty:
                break
            if piece is None:
                self._inbox.put(None)
                break
            pieces.append(piece)
        return pieces

    def _carry_out(self, session: Session | None, pieces: list[_Piece[Any]]) -> Session | None:
        try:
            if self._held is not None and (session is None or self._failed):
                self._held.check()  # before other files are opened, or more is written to files that are lost
            self._failed = True
            session = session or self._connect()
            before = session.connection.total_changes()
            session.connection.execute(self._begin)
            _run_pieces(session, pieces)
            session.connection.execute("COMMIT")
            if (changed := session.connection.total_changes() - before) or self._held is None:
                self._check_files()
            self._failed = False
            self.changes += changed
        except BaseException as error:
            for piece in pieces:
                piece.fail(explain(error, self._path))
            return _recovered(session, error)
        for piece in pieces:
            if piece.error is not None:
                piece.error = explain(piece.error, self._path)
        return session

    def _check_files(self) -> None:
        """Before anything is said of what a commit wrote. Once refused, always refused: a new connection opens others.
        A transaction that only read says what the files hold that this process writes to, lost or not."""
        self._held = self._held or Held(self._path)
        self._held.check()

    def _answer(self, pieces: list[_Piece[Any]]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(_answer_all, pieces)
        except RuntimeError:
            return  # the loop is closed: no caller waits any longer


class _Piece(Generic[T]):
    """Work, who waits for it, and how it ended."""

    __slots__ = ("error", "future", "value", "work")

    def __init__(self, work: Callable[[Session], T], future: asyncio.Future[T]) -> None:
        self.work, self.future = work, future
        self.value: T | None = None
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        self.value, self.error = None, error


def _nothing(session: Session) -> None:
    """The first piece of a lane: opening the connection is what it waits for."""


def _run_pieces(session: Session, pieces: list[_Piece[Any]]) -> None:
    if len(pieces) == 1:
        pieces[0].value = pieces[0].work(session)
        return
    for piece in pieces:
        session.connection.execute("SAVEPOINT piece")
        try:
            piece.value = piece.work(session)
        except Exception as error:
            if not session.connection.in_transaction:
                raise  # SQLite rolled back the whole transaction, so the pieces before this one are undone too
            session.connection.execute("ROLLBACK TO piece")
            session.forget()
            piece.fail(error)
        session.connection.execute("RELEASE piece")


def _recovered(session: Session | None, error: BaseException) -> Session | None:
    """The session with nothing left of the failed transaction, or None if it takes a new one."""
    if session is None:
        return None
    session.forget()
    try:
        if session.connection.in_transaction:
            session.connection.execute("ROLLBACK")
        if not isinstance(error, REOPEN):
            return session
        session.close()
    except apsw.Error:
        session.close(force=True)
    return None


def _answer_all(pieces: list[_Piece[Any]]) -> None:
    for piece in pieces:
        if piece.future.done():
            continue
        if piece.error is None:
            piece.future.set_result(piece.value)
        else:
            piece.future.set_exception(piece.error)
