"""The names of uvicorn's protocol on which limits and single writes stand: a version that lacks one fails here by name.
Versions between the bounds of `pyproject.toml` were run with all tests of this folder."""

from __future__ import annotations

import asyncio
import inspect
import tomllib

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tests.tidy.source import ROOT

from .conftest import Running

OVERRIDDEN = {
    "connection_lost": ["exc"], "connection_made": ["transport"], "data_received": ["data"], "on_body": ["body"],
    "on_header": ["name", "value"], "on_headers_complete": [], "on_message_begin": [], "on_message_complete": [],
    "on_response_complete": [], "on_url": ["url"],
}  # fmt: skip
OF_A_CONNECTION = ("cycle", "flow", "loop", "parser", "pipeline", "server_state", "transport")
OF_A_CYCLE = ("disconnected", "keep_alive", "message_event", "response_complete", "response_started", "transport")
OF_THE_STATE = ("connections", "total_requests")
OF_THE_FLOW = ("read_paused", "resume_reading")


def test_the_callbacks_are_there_with_their_arguments() -> None:
    for name, arguments in OVERRIDDEN.items():
        assert list(inspect.signature(getattr(HttpToolsProtocol, name)).parameters)[1:] == arguments, name


async def test_the_attributes_are_there(running: Running) -> None:
    client = await running.connect()
    await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await client.answer())[0] == 200
    (connection,) = running.server.server_state.connections
    assert isinstance(connection, HttpToolsProtocol)
    assert isinstance(connection.cycle, RequestResponseCycle)
    assert isinstance(connection.cycle.message_event, asyncio.Event)
    for thing, names in (
        (connection, OF_A_CONNECTION), (connection.cycle, OF_A_CYCLE), (connection.flow, OF_THE_FLOW),
        (running.server.server_state, OF_THE_STATE),
    ):  # fmt: skip
        assert [name for name in names if not hasattr(thing, name)] == []


def test_the_version_is_bounded_from_above() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["server"]
    assert [each for each in wanted if each.startswith("uvicorn") and "<" in each]
