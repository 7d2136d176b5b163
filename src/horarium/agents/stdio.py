"""`horarium mcp`: the same tools on standard input and output, for a server elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mcp.server.stdio import stdio_server

from horarium.agents.server import agent_server
from horarium.agents.tools import Request


async def serve_stdio(ask: Callable[[Request], tuple[int, bytes]]) -> None:
    """Serve one agent until it closes our standard input. `ask`: asks a server, and waits for it."""

    async def asked(request: Request, caller: Any) -> tuple[int, bytes]:
        return await asyncio.to_thread(ask, request)

    server = agent_server(asked)
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())
