"""What a flood of connections took is given back once they are gone, not at every turn."""

from __future__ import annotations

from horarium.server.memory import MANY, Memory


def test_memory_is_given_back_once_most_of_many_connections_are_gone() -> None:
    given_back: list[int] = []

    def trim(keep: int) -> int:
        given_back.append(keep)
        return 1

    memory = Memory(trim)
    for open_now in (0, 10, MANY - 1, 0, 10):
        memory.tick(open_now)
    assert given_back == [], "few connections are no flood"
    for open_now in (4 * MANY, 3 * MANY, 2 * MANY, MANY + 1):
        memory.tick(open_now)
    assert given_back == [], "most of them are still there"
    for open_now in (MANY, MANY - 1, 3, 0, 0):
        memory.tick(open_now)
    assert given_back == [0, 0], "of what was left over, too, and then no more"


def test_it_works_with_the_c_library_that_is_there() -> None:
    memory = Memory()
    memory.tick(MANY)
    memory.tick(0)
