"""A server in the test's own process leaves nothing behind for a later test to be blamed for."""

from __future__ import annotations

import socket
import threading

import pytest

from tests.servers.live import live_server
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow


def test_a_connection_that_comes_while_the_server_stops_is_closed() -> None:
    entered, released = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        released.wait(PATIENCE)

    with live_server() as server:
        server.loop.call_soon_threadsafe(hold)
        assert entered.wait(PATIENCE)
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as caller:
            server.begin_to_stop()
            released.set()
            assert caller.recv(1) == b""
