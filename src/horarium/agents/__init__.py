"""Tools for agents, by the Model Context Protocol.

    tools    the tools: their names, arguments and descriptions, and the request of the API that each one is
    server   the protocol, by the official SDK: over any way to ask the API; `horarium mcp` asks a server elsewhere
    http     `/mcp` beside the API, in its process

A tool is a request to the API with the caller's own key, so it may do what the key may do, and is audited as that.
"""
