"""`horarium mcp`: the same tools on standard input and output, for a server elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mcp.server.stdio import stdio_server

from horarium.agents.server import agent_server
from horarium.agents.tools import Request

Blocking = Callable[[str, str, Any], tuple[int, Any]]
"""Asks a server: method, target and body; status and answer."""


async def serve_stdio(ask: Blocking) -> None:
    """Serve one agent until it closes our standard input."""

    async def asked(request: Request, caller: Any) -> tuple[int, Any]:
        return await asyncio.to_thread(ask, request.method, request.target, request.body)

    server = agent_server(asked)
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())
