"""Keys with which an HTTP endpoint that took a run over may report on it, and do nothing else.

The API may ask for a key of its callers (`--api-key`), which an endpoint should not need to hold. So the request
carries a key made for this one run: an HMAC of the run's id under the API key. Nothing is stored: any node that knows
the API key can make and check it. It is valid as long as the API key; what it can do ends with the run,
since every report names the lease's token too.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from hashlib import sha256

PREFIX = "hrk_"
PURPOSE = b"horarium report key\n"


def key_digest(api_key: str) -> bytes:
    """The cached part of an API key."""
    return sha256(api_key.encode()).digest()


def report_key(digest: bytes, run_id: str) -> str:
    """The key for reports on this run, made of an API key's digest."""
    mac = hmac.digest(digest, PURPOSE + run_id.encode("utf-8", "replace"), "sha256")
    return PREFIX + urlsafe_b64encode(mac).decode().rstrip("=")
