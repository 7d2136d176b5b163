"""`horarium mcp`: tools for an agent, on standard input and output."""

from __future__ import annotations

import asyncio

import click
from msgspec import UNSET

from horarium.cli.shell import server_options
from horarium.errors import InvalidSetting

MISSING = "mcp: its library is not installed; pip install 'horarium[mcp]'"
ANY_STATUS = tuple(range(300, 600))


@click.command(
    help="""Serve the tools of a server to an agent, by the Model Context Protocol on standard input and output.

\b
The agent may do what the key may do: give it one of its own (horarium key create agent --role viewer). A server with
--mcp has the same tools at /mcp.
\b
Examples:
  horarium mcp --url http://127.0.0.1:8080
  HORARIUM_API_KEY=hk_... horarium mcp --url https://horarium.example.com
"""
)
@server_options
def mcp(url: str, api_key: str | None, as_json: bool) -> None:
    try:
        from horarium.agents.server import serve_stdio
    except ImportError:
        raise InvalidSetting(MISSING, field="mcp") from None
    from horarium.agents.tools import AGENT, Request
    from horarium.cli.signed_in import access_token
    from horarium.client.transport import API, Transport

    transport = Transport(url, api_key or access_token(url))

    def ask(request: Request) -> tuple[int, bytes]:
        sent = UNSET if request.body is None else request.body
        once, path = request.method != "GET", API + request.target
        answer = transport.request(
            request.method, path, body=sent, headers={"User-Agent": AGENT}, repeatable=not once, also=ANY_STATUS
        )
        return answer.status, answer.body

    asyncio.run(serve_stdio(ask))
