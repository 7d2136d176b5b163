"""What connections took is given back once they are gone, and threads share their parts of memory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from horarium.server import http
from horarium.server.memory import ARENAS, give_back
from tests.waiting import until

from .conftest import Running


async def test_what_connections_took_is_given_back_when_none_is_left(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back = 0

    def count() -> None:
        nonlocal given_back
        give_back()
        given_back += 1

    monkeypatch.setattr(http, "give_back", count)
    monkeypatch.setattr(http, "LATER_SECONDS", 0.0)
    client = await running.connect()
    await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await client.answer())[0] == 200
    assert given_back == 0
    client.writer.close()
    await until(lambda: given_back == 2)  # and once more, of what threads were still at


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


async def test_threads_of_a_server_hand_the_interpreter_over_soon() -> None:
    program = "import sys; from horarium.server.process import *; take_short_turns(); print(sys.getswitchinterval())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) <= 0.001
