"""How large the parts of a job and of a run may be."""

from __future__ import annotations

NAME_LENGTH_MAX = 200
TITLE_CHARS_MAX = 200
LABELS_MAX = 64
LABEL_TEXT_MAX = 200
NAMESPACE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"
PAYLOAD_BYTES_MAX = 256 * 1024
RESULT_BYTES_MAX = 64 * 1024
ERROR_CHARS_MAX = 4_000
TRACE_CHARS_MAX = 8_192
TRACES_MAX = 3
"""Attempts of a run whose tracebacks are kept: the last ones."""
HEADERS_MAX = 50
HEADER_CHARS_MAX = 4_096
URL_CHARS_MAX = 2_048
ARGUMENTS_MAX, ARGUMENT_CHARS_MAX, PATH_CHARS_MAX = 1_024, 128 * 1024 - 1, 4_096
"""Of a program: its arguments, and its variables, and how long each of them may be (as on Linux)."""
PRIORITY_MIN, PRIORITY_MAX = -1_000, 1_000
DELAY_SECONDS_MAX = 10 * 366 * 86_400
"""How far ahead a one-off run may be due."""
HISTORY_MAX = 250
JITTER_SECONDS_MAX = 24 * 3600
