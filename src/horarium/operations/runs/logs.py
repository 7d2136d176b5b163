"""The logs of runs: written by what performs them, read while they grow, and bounded.

A log is a book (one record) and its full chunks. Several processes may write to one book; the book's version lets one
at a time through. Books and chunks are named by when the run was made, so old ones are dropped by name. How much there
is in total is kept by the hour, and the oldest hours go where it is too much.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from horarium.clock import HOUR, Instant, to_micros
from horarium.errors import Outage
from horarium.model import Run
from horarium.model.logs import Chunk, LogBook, LogLine
from horarium.model.records import Record, RecordChange, RecordFilter, instant_key
from horarium.operations.bounds.listing import pages_of
from horarium.operations.settling.settling import lease_lost
from horarium.operations.writing.context import RACES_MAX, Context, contended, pause_after
from horarium.operations.writing.named import run_of_id
from horarium.ports import BATCH_MAX, PAGE_MAX
from horarium.rules.logbook import first_after, said_of_cut, size_of_book, write

BOOKS, TEXTS, SIZES = "log/", "logtext/", "logsize/"
BOOKS_REMEMBERED = 1_000
BOOKS_BYTES_MAX = 4 * 1024 * 1024
"""Of the books that are remembered, together: some are nearly empty, some hold 16 KiB."""
ENDS_AT_ONCE = 100
"""Logs whose ends are read together: a few MB at most."""
LOOK_SECONDS = 0.5
"""How often the store is asked while a reader waits: lines may be written by another process."""
WAIT_SECONDS_MAX = 20.0
READERS_MAX = 500
"""Readers that wait at one time in this process; one more is answered at once."""
LINES_MAX = 1_000


class LogPage(NamedTuple):
    """Lines, and the number of the line after them; None: the run is over, and there will be no more."""

    lines: list[LogLine]
    next_line: int | None


class _Unsure(NamedTuple):
    """Lines, and the book with them, of which it is not known whether the store took it. `book`: what it was before;
    `grown`: by how many bytes it grows."""

    lines: tuple[LogLine, ...]
    record: Record
    book: LogBook
    dropped: Sequence[Chunk]
    grown: int


class Books:
    """The books that were written to last, by run."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, Record] = OrderedDict()
        self._bytes = 0

    def get(self, run_id: str) -> Record | None:
        return self._records.get(run_id)

    def remember(self, run_id: str, record: Record) -> None:
        self.forget(run_id)
        self._records[run_id] = record
        self._bytes += len(record.body)
        while len(self._records) > BOOKS_REMEMBERED or self._bytes > BOOKS_BYTES_MAX:
            self.forget(next(iter(self._records)))

    def forget(self, run_id: str) -> None:
        """Read it again when it is needed."""
        if (known := self._records.pop(run_id, None)) is not None:
            self._bytes -= len(known.body)


class Logs:
    """Raises the errors of `errors`, nothing else."""

    def __init__(self, context: Context) -> None:
        self._store, self._clock, self._entropy = context.store, context.clock, context.entropy
        self._books = Books()
        self._unsure: OrderedDict[str, _Unsure] = OrderedDict()
        self._grown: Counter[int] = Counter()
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._readers = 0
        self._closed = False

    # ---- written

    async def report(self, run_id: str, token: int, lines: Sequence[LogLine]) -> None:
        """Lines from the worker that holds this token, or held it last. Raises NotFound, LeaseLost."""
        run = await run_of_id(self._store, run_id)
        if run.token != token or token == 0:  # no claim has given that
            raise lease_lost(run, token)
        await self.append(run, lines)

    async def append(self, run: Run, lines: Sequence[LogLine]) -> None:
        """Add lines to the log of a run. After an outage, in which they may have been written all the same, the same
        lines may be given again: they are written once."""
        if not lines or await self._were_written(run, lines):
            return
        for race in range(RACES_MAX):
            if race:
                await pause_after(race, self._entropy)
            stored = self._books.get(run.id) or await self._find(run)
            book = LogBook(run.id, run.created_at) if stored is None else _book(stored)
            written = write(book, lines)
            version = 0 if stored is None else stored.version
            record = _record(written.book, version + 1)
            texts = tuple(_text(book, chunk, kept) for chunk, kept in written.sealed)
            grown = size_of_book(written.book) - size_of_book(book)
            unsure = _Unsure(tuple(lines), record, book, written.dropped, grown)
            try:
                (done,) = await self._store.put_records([RecordChange(record, version, records=texts)])
            except BaseException:
                self._doubt(run.id, unsure)
                raise
            if done:
                await self._wrote(run.id, unsure)
                return
            self._books.forget(run.id)
        raise contended(f"the log of {run.id}")

    async def _were_written(self, run: Run, lines: Sequence[LogLine]) -> bool:
        unsure = self._unsure.get(run.id)
        if unsure is None:
            return False
        stored = await self._find(run)
        there = stored is not None and unsure.lines == tuple(lines) and await self._is_in(_book(stored), unsure)
        self._unsure.pop(run.id, None)
        if stored is None or not there:
            return False
        await self._wrote(run.id, unsure._replace(record=stored))
        return True

    async def _is_in(self, book: LogBook, unsure: _Unsure) -> bool:
        """Whether the book has those lines, others after them perhaps: it has the last of them in its place."""
        wanted = _book(unsure.record)
        number, kept, start = wanted.lines - 1, book.tail, book.lines - len(book.tail)
        if number < start:
            chunk = next((each for each in book.chunks if each.first <= number < each.first + each.count), None)
            if chunk is None:
                return False  # never there, or cut since
            start = chunk.first
            kept = _lines((await self._store.get_records([_text_name(book, chunk)]))[0])
        return kept[number - start : number - start + 1] == wanted.tail[-1:]

    def _doubt(self, run_id: str, unsure: _Unsure) -> None:
        self._books.forget(run_id)
        self._unsure[run_id] = unsure
        if len(self._unsure) > BOOKS_REMEMBERED:
            self._unsure.popitem(last=False)

    async def _wrote(self, run_id: str, done: _Unsure) -> None:
        self._books.remember(run_id, done.record)
        self._grown[done.book.begun_at // HOUR] += done.grown
        self._wake(run_id)
        try:
            await self._drop(done.book, done.dropped)
        except Outage:
            pass  # they go with the log, when it is old
        except asyncio.CancelledError:
            self._doubt(run_id, done._replace(grown=0))
            raise

    async def _drop(self, book: LogBook, chunks: Sequence[Chunk]) -> None:
        if chunks:
            await self._store.put_records([_text(book, chunk, ()).removal() for chunk in chunks])

    async def _find(self, run: Run) -> Record | None:
        return (await self._store.get_records([_name(run.created_at, run.id)]))[0]

    # ---- read

    async def read(self, run_id: str, after: int, limit: int, wait_seconds: float = 0.0) -> LogPage:
        """Lines from number `after` on. Where there are none yet and the run goes on, wait for some."""
        elapsed = asyncio.get_running_loop().time
        deadline = elapsed() + min(wait_seconds, WAIT_SECONDS_MAX)
        while True:
            run = await run_of_id(self._store, run_id)
            page = await self._page(run, after, limit)
            left = deadline - elapsed()
            if page.lines or page.next_line is None or left <= 0 or self._closed or self._readers >= READERS_MAX:
                return page
            await self._wait(run_id, min(left, LOOK_SECONDS))

    async def _page(self, run: Run, after: int, limit: int) -> LogPage:
        stored = await self._find(run)
        if stored is None:
            return LogPage([], None if run.finished else after)
        book = _book(stored)
        lines: list[LogLine] = []
        first = first_after(book, after)
        chunks = [chunk for chunk in book.chunks if chunk.first + chunk.count > first]
        texts = await self._store.get_records([_text_name(book, chunk) for chunk in chunks]) if chunks else []
        number = after
        for start, kept in [
            *((chunk.first, _lines(text)) for chunk, text in zip(chunks, texts, strict=True)),
            (book.lines - len(book.tail), book.tail),
        ]:
            new = kept[max(number - start, 0) :] if start + len(kept) > number else ()
            begins = max(start, number)
            if new and begins > number:
                lines.append(said_of_cut(begins - number, new[0]))
            for line in new:
                if len(lines) >= limit:
                    return LogPage(lines, begins)
                lines.append(line)
                begins += 1
            number = max(number, begins) if new else number
        return LogPage(lines, None if run.finished else max(number, after))

    async def end_of(self, run_id: str, chars_max: int) -> str:
        """The last whole lines of a log, of `chars_max` characters together; the end of the last one if it has more."""
        runs = [run for run in await self._store.get_runs([run_id]) if run is not None]
        return "".join(await self.ends_of(runs, chars_max))

    async def ends_of(self, runs: Sequence[Run], chars_max: int) -> list[str]:
        """The same of the logs of several runs, in their order."""
        found: list[str] = []
        for start in range(0, len(runs), ENDS_AT_ONCE):
            some = runs[start : start + ENDS_AT_ONCE]
            stored = await self._store.get_records([_name(run.created_at, run.id) for run in some])
            books = [None if record is None else _book(record) for record in stored]
            short = {
                place: _text_name(book, book.chunks[-1])
                for place, book in enumerate(books)
                if book is not None and book.chunks and sum(len(line.text) for line in book.tail) < chars_max
            }
            texts = await self._store.get_records(list(short.values())) if short else []
            before = dict(zip(short, map(_lines, texts), strict=True))
            for place, book in enumerate(books):
                lines = () if book is None else (*before.get(place, ()), *book.tail)
                found.append(_end_of_text("\n".join(line.text for line in lines), chars_max))
        return found

    async def _wait(self, run_id: str, seconds: float) -> None:
        grown = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, []).append(grown)
        self._readers += 1
        try:
            await asyncio.wait([grown], timeout=seconds)
        finally:
            self._readers -= 1
            grown.cancel()
            waiting = self._waiting.get(run_id, [])
            if grown in waiting:
                waiting.remove(grown)
            if not waiting:
                self._waiting.pop(run_id, None)

    def _wake(self, run_id: str) -> None:
        for grown in self._waiting.get(run_id, []):
            if not grown.done():
                grown.set_result(None)

    def close(self) -> None:
        """Let no reader wait any more: the node stops."""
        self._closed = True
        for run_id in list(self._waiting):
            self._wake(run_id)

    # ---- bounded

    async def account(self) -> None:
        """Write down how much was added, by the hour in which the logs began."""
        for hour, size in list(self._grown.items()):
            name = SIZES + instant_key(hour * HOUR)
            (stored,) = await self._store.get_records([name])
            total = size + (0 if stored is None else int(stored.body))
            version = 0 if stored is None else stored.version
            record = Record(name=name, body=b"%d" % max(total, 0), version=version + 1)
            if (await self._store.put_records([RecordChange(record, version)]))[0]:
                self._grown[hour] -= size
                if not self._grown[hour]:
                    del self._grown[hour]

    async def prune(self, now: Instant, keep_seconds: float, bytes_max: int) -> int:
        """Drop logs that began longer ago than `keep_seconds`, and the oldest where there are more than `bytes_max`
        in total. How many records went; as many as a batch: there may be more."""
        until = now - to_micros(keep_seconds)
        sizes = await self._sizes()
        total = sum(sizes.values())
        for hour in sorted(sizes):
            if total <= bytes_max:
                break
            until = max(until, (hour + 1) * HOUR)
            total -= sizes[hour]
        key = instant_key(until)
        gone = await self._store.prune_records(TEXTS, key, BATCH_MAX)
        gone += await self._store.prune_records(BOOKS, key, BATCH_MAX)
        if gone < BATCH_MAX:
            await self._store.prune_records(SIZES, key, BATCH_MAX)
        return gone

    async def _sizes(self) -> dict[int, int]:
        sizes: dict[int, int] = {}
        async for page in pages_of(lambda after: self._store.list_records(RecordFilter(SIZES), after, PAGE_MAX)):
            for record in page:
                sizes[int(record.name.removeprefix(SIZES).partition("-")[0], 16) // HOUR] = int(record.body)
        return sizes


_BOOK: msgspec.msgpack.Decoder[LogBook] = msgspec.msgpack.Decoder(LogBook)
_LINES: msgspec.msgpack.Decoder[tuple[LogLine, ...]] = msgspec.msgpack.Decoder(tuple[LogLine, ...])


def _book(record: Record) -> LogBook:
    return _BOOK.decode(record.body)


def _lines(record: Record | None) -> tuple[LogLine, ...]:
    """The lines of a chunk; none of one that was cut since its book was read."""
    return () if record is None else _LINES.decode(record.body)


def _end_of_text(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else text[-chars_max:].partition("\n")[2] or text[-chars_max:]


def _name(begun_at: Instant, run_id: str) -> str:
    return BOOKS + instant_key(begun_at, run_id)


def _record(book: LogBook, version: int) -> Record:
    return Record(name=_name(book.begun_at, book.run_id), body=msgspec.msgpack.encode(book), version=version)


def _text_name(book: LogBook, chunk: Chunk) -> str:
    return f"{TEXTS}{instant_key(book.begun_at, book.run_id)}/{chunk.number:08x}"


def _text(book: LogBook, chunk: Chunk, lines: Sequence[LogLine]) -> Record:
    return Record(name=_text_name(book, chunk), body=msgspec.msgpack.encode(lines))
