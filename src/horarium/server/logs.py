"""Logging of the server: the library only logs to `horarium`; here the lines get their shape, text or JSON. Lines of
other libraries get the same one."""

from __future__ import annotations

import logging
import sys
from typing import Any

DUMB = ("aiormq",)
"""These log an error for each try to connect; the bus says it once, and when it works again."""
QUIET = ("aiohttp", "asyncio", "uvicorn.access", "uvicorn.error", "litestar")


def configure_logging(format: str = "text", level: str = "info", node: str = "") -> None:
    """Log to stderr, one line an event: `text` for people, `json` for machines. `node`: which of several processes
    that share one stderr says it."""
    import structlog

    def add_node(logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "node": node} if node else event

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        add_node,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in DUMB:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
