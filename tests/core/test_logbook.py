"""How a run's log grows, and what is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from horarium.model.logs import LOG_BYTES_MAX, LOG_LINE_BYTES_MAX, LogBook, LogLine
from horarium.rules.logbook import (
    CHUNK_BYTES,
    CHUNKS_MAX,
    CUT,
    clipped_line,
    first_after,
    size_of,
    size_of_book,
    write,
)


def line(text: str) -> LogLine:
    return LogLine(0, "stdout", text)


def test_a_few_lines_stay_in_the_book() -> None:
    written = write(LogBook("r", 0), [line("a"), line("b")])
    assert ([each.text for each in written.book.tail], written.book.lines, written.sealed) == (["a", "b"], 2, [])


def test_lines_are_cut_where_they_are_too_long_or_cannot_be_kept() -> None:
    long = clipped_line(line("ä" * LOG_LINE_BYTES_MAX))
    assert len(long.text.encode()) <= LOG_LINE_BYTES_MAX
    assert long.text.endswith("ä [truncated]")
    assert clipped_line(line("a\0b\ud800")).text == "a\N{REPLACEMENT CHARACTER}b?"


def left_out(count: int) -> LogLine:
    return LogLine(0, CUT, f"[{count:,} lines left out]")


def test_lines_that_were_left_out_before_count() -> None:
    """They are a gap between two chunks, which no later cut can forget."""
    book, sealed, _ = write(LogBook("r", 0), [line("a"), left_out(1_200), line("b")])
    assert (book.lines, [each.text for each in book.tail]) == (1_202, ["b"])
    assert [(chunk.first, chunk.count) for chunk, _ in sealed] == [(0, 1)]
    assert first_after(book, 1) == 1_201
    last = write(book, [left_out(3)]).book
    assert last.tail[-1] == left_out(3), "with nothing behind it, it is a line"
    own = write(LogBook("r", 0), [LogLine(0, "stdout", left_out(3).text), line("b")]).book
    assert (own.lines, len(own.tail)) == (2, 2), "what a program prints is what it prints"


@given(st.lists(st.lists(st.integers(0, 6_000), max_size=40), max_size=30))
def test_the_beginning_and_the_end_are_kept_and_nothing_is_larger_than_it_may_be(groups: list[list[int]]) -> None:
    book, kept, count = LogBook("r", 0), dict[int, tuple[LogLine, ...]](), 0
    all_lines: list[LogLine] = []
    for sizes in groups:
        lines = [line(f"{count + index} ".ljust(size, ".")) for index, size in enumerate(sizes)]
        count += len(lines)
        all_lines += lines
        book, sealed, dropped = write(book, lines)
        kept.update({chunk.number: texts for chunk, texts in sealed})
        for chunk in dropped:
            del kept[chunk.number]
    assert set(kept) == {chunk.number for chunk in book.chunks}
    assert book.lines == len(all_lines)
    assert size_of_book(book) <= LOG_BYTES_MAX
    assert len(book.chunks) <= CHUNKS_MAX
    for chunk in book.chunks:
        assert chunk.size == sum(map(size_of, kept[chunk.number])) <= CHUNK_BYTES
        assert list(kept[chunk.number]) == all_lines[chunk.first : chunk.first + chunk.count]
    assert list(book.tail) == all_lines[len(all_lines) - len(book.tail) :]
    if all_lines:
        assert not book.chunks or book.chunks[0].first == 0
