"""What one request may ask for at most: the limits of the API alone, each with its unit in its name."""

from __future__ import annotations

BODY_BYTES_MAX = 1024 * 1024
REPORT_BYTES_MAX = 64 * 1024
"""The body of one heartbeat, complete or fail."""
JSON_DEPTH_MAX = 64
"""How deep arrays and objects may be nested; `{}` has depth 1."""
RULE_BYTES_MAX = 8 * 1024
"""UTF-8 bytes of any one text in a trigger."""
PAGE_DEFAULT = 50
QUEUES_MAX = 100
"""Queues named in one claim."""
FIRES_DEFAULT = 10
KEY_CHARS_MAX = 200
"""Characters of an Idempotency-Key."""
REASON_CHARS_MAX = 1_000
WORKER_CHARS_MAX = 200
STREAM_CHARS_MAX = 50
LOG_BODY_BYTES_MAX = 512 * 1024
"""The body of one report of lines."""
QUERY_FIELDS_MAX = 100
RETRY_AFTER_SECONDS = 1
"""How long a client is asked to wait when something that the server depends on is down."""
