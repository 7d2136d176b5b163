"""Lines of a handler: `run.log(...)` and the methods of `run.log`, and standard `logging` where that is asked for.

Every line goes to the run's log, which all can read while it grows; lines of `run.log` go to the logger
`horarium.handler` too, so that the program's own log has them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

LOGGER = "horarium.handler"
STREAM = "log"
Keep = Callable[[str, str], None]
"""Takes a stream and a text. Never waits, never fails."""

log = logging.getLogger(LOGGER)
_keep: ContextVar[Keep | None] = ContextVar("horarium_keep", default=None)


class RunLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines name the run, and are kept with it. May be called: `run.log("half of it is done")`."""

    def __init__(self, named: dict[str, Any], keep: Keep) -> None:
        super().__init__(log, named)
        self._keep = keep

    def __call__(self, message: object, *values: object) -> None:
        """A line of the level INFO."""
        self.log(logging.INFO, message, *values, stacklevel=2)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """A line of this level."""
        if level >= logging.INFO or self.logger.isEnabledFor(level):
            record = logging.LogRecord(LOGGER, level, "", 0, msg, args, _raised(kwargs.get("exc_info")))
            self._keep(STREAM, text_of(record))
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        super().log(level, msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        named = self.extra or {}
        return f"{named['handler']} {named['run']} attempt {named['attempt']}: {msg}", {
            **kwargs, "extra": {**named, **(kwargs.get("extra") or {})},
        }  # fmt: skip


def _raised(given: Any) -> Any:
    """The meaning of `exc_info`: an exception, or the one that is being handled."""
    if isinstance(given, BaseException):
        return type(given), given, given.__traceback__
    return sys.exc_info() if given is True else given or None


def text_of(record: logging.LogRecord) -> str:
    """The line as it is kept: a line above plain information says its level."""
    try:
        message = record.getMessage()
    except (TypeError, ValueError):
        message = f"{record.msg} {record.args}"
    text = message if record.levelno == logging.INFO else f"{record.levelname}: {message}"
    if record.exc_info and record.exc_info[0] is not None:
        text += "\n" + logging.Formatter().formatException(record.exc_info)
    return text


class Captured(logging.Handler):
    """Keeps what standard `logging` says inside a handler with its run. It is no place to which a program logs: where
    there is no other, warnings go to standard error all the same."""

    def emit(self, record: logging.LogRecord) -> None:
        keep, last = _keep.get(), logging.lastResort
        if keep is not None and record.name != LOGGER:
            keep(record.name, text_of(record))
        if last is not None and record.levelno >= last.level and self._is_only(logging.getLogger(record.name)):
            last.handle(record)

    def _is_only(self, logger: logging.Logger | None) -> bool:
        """True if no handler but those of this kind takes what this logger says, and this is the first of them."""
        handlers: list[logging.Handler] = []
        while logger is not None:
            handlers += logger.handlers
            logger = logger.parent if logger.propagate else None
        return handlers[:1] == [self] and all(isinstance(handler, Captured) for handler in handlers)


def speaks_for(keep: Keep) -> None:
    """From now on, in this task and the threads that it starts, standard `logging` speaks for this run."""
    _keep.set(keep)
