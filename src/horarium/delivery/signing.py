"""Signatures of requests, after the Standard Webhooks specification (version 1.0.0, "Signature scheme").

A signature is `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`: the exact bytes that are sent. A secret is
`whsec_` and the base64 of its 24 to 64 bytes. During a rotation several secrets are in one setting, separated by
spaces: each signs, and a receiver accepts any. This module reads no clock and draws no chance; it never puts a secret
into a message.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from functools import lru_cache

from horarium.errors import CallerError, InvalidSetting

PREFIX = "whsec_"
VERSION = "v1"
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64
SECRETS_MAX = 8
SIGNATURES_MAX = 32
TOLERANCE_SECONDS = 300


def new_secret(entropy: bytes) -> str:
    """A secret made of these random bytes (24 to 64 of them, from a cryptographic source)."""
    if not SECRET_BYTES_MIN <= len(entropy) <= SECRET_BYTES_MAX:
        raise InvalidSetting(
            f"a signing secret needs {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} random bytes, {len(entropy)} were given"
        )
    return PREFIX + b64encode(entropy).decode()


def check_secret(text: str, *, field: str = "signing_secret", error: type[CallerError] = InvalidSetting) -> None:
    """Raise `error` unless the text is one secret, or up to 8 of them separated by spaces."""
    parts = text.split()
    if not 1 <= len(parts) <= SECRETS_MAX:
        raise error(f"{field} holds {len(parts)} secrets; give 1 to {SECRETS_MAX}, separated by spaces", field=field)
    for part in parts:
        if _key(part) is None:
            raise error(
                f"{field} is not a signing secret; give {PREFIX} followed by the base64 of "
                f"{SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} random bytes",
                field=field,
            )


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`: one signature for each secret. `timestamp`: seconds since the Unix epoch."""
    signed = b"%b.%d.%b" % (message_id.encode(), timestamp, body)
    if " " not in secret:
        return f"{VERSION},{b64encode(_digest(secret, signed)).decode()}"
    return " ".join(f"{VERSION},{b64encode(_digest(part, signed)).decode()}" for part in secret.split())


def verify(secret: str, message_id: str, timestamp: str | int, body: bytes, signature: str, *, now: int) -> bool:
    """Whether any of the signatures is by any of the secrets, and the timestamp within five minutes of `now` (both in
    seconds since the Unix epoch). Takes the same time whichever byte differs."""
    seconds = _seconds(timestamp)
    if seconds is None or abs(now - seconds) > TOLERANCE_SECONDS:
        return False
    expected = [part.encode() for part in sign(secret, message_id, seconds, body).split()]
    given = [part.encode() for part in signature.split(maxsplit=SIGNATURES_MAX)[:SIGNATURES_MAX]]
    matches = [hmac.compare_digest(ours, theirs) for ours in expected for theirs in given]
    return any(matches)


def _seconds(timestamp: str | int) -> int | None:
    text = str(timestamp)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else None


def _digest(secret: str, signed: bytes) -> bytes:
    mac = _keyed(secret).copy()
    mac.update(signed)
    return mac.digest()


@lru_cache(maxsize=256)
def _keyed(secret: str) -> hmac.HMAC:
    """Keyed once for each secret: setting the key up costs more than signing a small body."""
    key = _key(secret)
    if key is None:
        raise InvalidSetting("a signing secret can't be read; it was not checked when it was set")
    return hmac.new(key, digestmod="sha256")


def _key(secret: str) -> bytes | None:
    if not secret.startswith(PREFIX):
        return None
    try:
        key = b64decode(secret.removeprefix(PREFIX).encode("ascii"), validate=True)
    except (NotBase64, UnicodeEncodeError):
        return None
    return key if SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX else None
