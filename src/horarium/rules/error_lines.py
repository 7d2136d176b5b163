"""The line of an error that says it, and what errors of one kind have in common."""

from __future__ import annotations

import re
from hashlib import sha256

VARYING = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8}[0-9a-f-]{4,}\b|\d+", re.ASCII | re.IGNORECASE)


def first_line(text: str | None, most: int = 160) -> str:
    """How an error begins."""
    line = (text or "").strip().partition("\n")[0]
    return line if len(line) <= most else line[: most - 1] + "\u2026"


def error_line(text: str | None, most: int = 160) -> str:
    """The line of an error that says it: the last of a traceback, else the first."""
    lines = [line for line in (text or "").strip().splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].lstrip().startswith(("Traceback (most recent call last)", 'File "')):
        return first_line(lines[-1].strip(), most)
    return first_line(text, most)


def error_sort(error: str | None) -> str:
    """Tells errors of one kind: the line that says it, without numbers and ids."""
    return sha256(VARYING.sub("#", error_line(error, 500)).encode("utf-8", "replace")).hexdigest()[:12]
