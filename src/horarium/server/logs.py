"""Logging of the server and of `horarium worker`: the library only logs to `horarium`; here the lines get their shape,
text or JSON. Lines of other libraries get the same one."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

DUMB = ("aiormq",)
"""These log an error for each try to connect; the bus says it once, and when it works again."""
QUIET = ("asyncio", "uvicorn.access", "uvicorn.error")
NOT_EXTRA = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
"""What every record has; all else was given to the line by its author."""
EVENT_CHARS = 30
LEVEL_CHARS = 9
COLORS = {"debug": "\x1b[32m", "info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
DIM, BOLD, PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"


class Lines(logging.Formatter):
    """One line an event. `node`: which of several processes that share one stderr says it."""

    def __init__(self, *, as_json: bool, colors: bool, node: str = "") -> None:
        super().__init__()
        self._as_json = as_json
        self._colors = colors
        self._node = {"node": node} if node else {}

    def format(self, record: logging.LogRecord) -> str:
        """The line, and in text its traceback below it."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        extra = {name: value for name, value in vars(record).items() if name not in NOT_EXTRA} | self._node
        raised = self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else None
        if self._as_json:
            fields = {"event": record.getMessage(), **extra, "level": record.levelname.lower(), "timestamp": at}
            return json.dumps(fields | ({"exception": raised} if raised else {}), default=repr)
        return "\n".join([self._text(record, at, extra), *map(_one_line, (raised or "").splitlines())])

    def _text(self, record: logging.LogRecord, at: str, extra: dict[str, Any]) -> str:
        level, event = record.levelname.lower(), _one_line(record.getMessage())
        words = [f"{name}={_one_line(str(value))}" for name, value in sorted(extra.items())]
        if words:
            event = event.ljust(EVENT_CHARS)
        if self._colors:
            color = COLORS.get(level, "")
            return " ".join(
                [f"{DIM}{at}{PLAIN} [{color}{level.ljust(LEVEL_CHARS)}{PLAIN}] {BOLD}{event}{PLAIN}", *words]
            )
        return " ".join([f"{at} [{level.ljust(LEVEL_CHARS)}] {event}", *words])


def _one_line(text: str) -> str:
    """What a name or an error holds neither begins a line nor controls a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c in "\r\n\t" else "\ufffd" for c in text)


def lines_to_stderr(*, as_json: bool, node: str = "") -> logging.Handler:
    """Writes `Lines`, in colors on a terminal."""
    handler = logging.StreamHandler()
    handler.setFormatter(Lines(as_json=as_json, colors=not as_json and sys.stderr.isatty(), node=node))
    return handler


def configure_logging(format: str = "text", level: str = "info", node: str = "") -> None:
    """Log to stderr, one line an event: `text` for people, `json` for machines. `node`: which of several processes
    that share one stderr says it."""
    root = logging.getLogger()
    root.handlers[:] = [lines_to_stderr(as_json=format == "json", node=node)]
    root.setLevel(level.upper())
    for name in DUMB:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
