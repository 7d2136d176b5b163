"""The Model Context Protocol, by the official SDK, over any way to ask the API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeAlias

import mcp_types as types
import msgspec
from jsonschema import Draft202012Validator
from mcp.server import Server, ServerRequestContext

from horarium.agents.tools import INSTRUCTIONS, TOOLS, Request, Tool, answer_text, fewer, printable
from horarium.errors import HorariumError
from horarium.model.version import release

Ask = Callable[[Request, Any], Awaitable[tuple[int, bytes]]]
"""Asks the API on behalf of the caller of an HTTP request (None where there is none): status, and answer."""
ARGUMENT_FAULTS_MAX = 5
EXPECTED = {
    "enum": "one of {}", "type": "of the type {}", "minimum": "at least {}", "maximum": "at most {}",
    "minLength": "{} or more characters", "maxLength": "at most {} characters", "maxItems": "at most {} of them",
}  # fmt: skip
"""What each check asks for, by its word in JSON Schema."""
Context: TypeAlias = ServerRequestContext[Any, Any]

_TOOLS = {tool.name: tool for tool in TOOLS}
CHECKS = {tool.name: Draft202012Validator(tool.schema) for tool in TOOLS}


def agent_server(ask: Ask) -> Server[Any]:
    """A server of all tools."""

    async def list_tools(context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(tool) for tool in TOOLS])

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        if params.name not in _TOOLS:
            return _result(f"There is no such tool. There are: {', '.join(_TOOLS)}.", is_error=True)
        faults = list(dict.fromkeys(_fault(error) for error in CHECKS[params.name].iter_errors(arguments)))
        if faults:
            said = "; ".join(faults[:ARGUMENT_FAULTS_MAX])
            return _result(f"The arguments are wrong: {said}. Mend them, and call again.", is_error=True)
        tool, asked = _TOOLS[params.name], arguments
        while True:
            try:
                status, body = await ask(tool.request(asked), context.request)
            except HorariumError as error:
                return _result(f"The server can't be asked: {printable(error.message)}", is_error=True)
            answer = None
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                answer = msgspec.json.decode(body)
            if "limit" not in tool.properties or (limit := fewer(answer)) is None:
                break
            asked = {**arguments, "limit": limit}
        return _result(answer_text(status, answer), is_error=status >= 300)

    return Server(
        "horarium", version=release(), instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


async def serve_stdio(ask: Callable[[Request], tuple[int, bytes]]) -> None:
    """Serve one agent on standard input and output, until it closes the first. `ask`: asks a server, and waits for
    it."""
    from mcp.server.stdio import stdio_server

    server = agent_server(lambda request, caller: asyncio.to_thread(ask, request))
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


def _described(tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(
        read_only_hint=not tool.writes, destructive_hint=False, idempotent_hint=not tool.writes, open_world_hint=False
    )
    return types.Tool(name=tool.name, description=tool.description, input_schema=tool.schema, annotations=hints)


def _result(text: str, *, is_error: bool) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)


def _fault(error: Any) -> str:
    """The place and the expected type, without the value: it may be of any length."""
    where = ".".join(str(part) for part in error.absolute_path) or "they"
    if not error.absolute_path and error.validator in ("required", "additionalProperties"):
        missing = [name for name in error.schema["required"] if name not in error.instance]
        names = missing if error.validator == "required" else error.schema["properties"]
        return f"{'missing are' if error.validator == 'required' else 'there are only'} {', '.join(names)}"
    known = error.validator_value
    expected = EXPECTED[error.validator].format(", ".join(known) if isinstance(known, list) else known)
    return f"{where} must be {expected}: {error.schema.get('description', '')}".rstrip(": .")
