"""What a flood of connections took is given back once they are gone, and all that lies about once a minute."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from horarium.server.memory import ARENAS, MANY, TICKS, Memory


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


def test_once_a_minute_all_that_lies_about_is_given_back() -> None:
    given_back: list[int] = []

    def trim(keep: int) -> int:
        given_back.append(keep)
        return 1

    memory = Memory(trim)
    for _ in range(3 * TICKS - 1):
        memory.tick(5)
    assert given_back == [0, 0]
    memory.tick(5)
    assert given_back == [0, 0, 0]


ARENAS_OF_THREADS = """
import ctypes, sys, tempfile, threading
from horarium.server.memory import share_arenas
library = ctypes.CDLL(None)
if not hasattr(library, "malloc_info"):
    print("-")
    sys.exit()
share_arenas()
ready, over = threading.Barrier(9), threading.Event()
def work():
    kept = [bytes(2_000) for _ in range(100)]
    ready.wait()
    over.wait()
for _ in range(8):
    threading.Thread(target=work).start()
ready.wait()
library.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(library.fopen(file.name.encode(), b"w"))
    library.malloc_info(0, stream)
    library.fclose(stream)
    print(file.read().decode().count("<heap nr="))
over.set()
"""


@pytest.mark.parametrize(("environment", "shared"), [({}, True), ({"MALLOC_ARENA_MAX": "6"}, False)])
def test_threads_share_their_parts_of_memory(environment: dict[str, str], shared: bool) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ARENAS_OF_THREADS], env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True
    )
    arenas = ran.stdout.decode().strip()
    assert arenas == "-" or (int(arenas) <= ARENAS) is shared  # "-": another C library
