"""Ids that ascend with time, and chance that is the same on every node."""

from __future__ import annotations

import re
from hashlib import blake2b
from urllib.parse import quote, unquote

from horarium.clock import MICROSECOND, Instant
from horarium.errors import InvalidRequest

KEY_BYTES_MAX = 200
"""The length of a caller's unique key."""
RETRY_KEY = "retry/"
"""How the unique key of a retry begins; the id of the run that it repeats follows."""
_PLAIN_KEY = re.compile(rf"[\x21-\x7e]{{1,{KEY_BYTES_MAX}}}")
"""Those that are stored as they are."""
_RUN_ID = re.compile(r"[0-9a-fA-F-]{1,64}", re.ASCII)

_VARIANT = {digit: "89ab"[int(digit, 16) & 0b11] for digit in "0123456789abcdef"}
"""The digit that says which layout it is (0b10), with the two lower bits of the one that was there."""


def uuid7(instant: Instant, entropy: bytes) -> str:
    """A version 7 UUID (RFC 9562, 5.7): milliseconds of `instant`, then 74 bits of `entropy` (10 bytes or more)."""
    millis = max(instant // (1000 * MICROSECOND), 0) & 0xFFFF_FFFF_FFFF
    head, tail = f"{millis:012x}", entropy[:10].hex()
    return f"{head[:8]}-{head[8:]}-7{tail[:3]}-{_VARIANT[tail[4]]}{tail[5:8]}-{tail[8:]}"


def uuid7s(instant: Instant, entropy: bytes, count: int) -> list[str]:
    """Version 7 UUIDs that ascend (RFC 9562, 6.2, method 2): the first is random, each next one lies 2**42 further on.
    A batch so made is appended to an index, not scattered over it. `count`: up to 2**31."""
    head = f"{max(instant // (1000 * MICROSECOND), 0) & 0xFFFF_FFFF_FFFF:012x}"
    first = int.from_bytes(entropy[:5], "big") & ((1 << 33) - 1)
    form = f"{head[:8]}-{head[8:]}-7%03x-%04x-%02x{entropy[5:10].hex()}"  # the low bits are the same in all
    return [
        form % (high >> 22 & 0xFFF, 0b10 << 14 | high >> 8 & 0x3FFF, high & 0xFF)
        for high in range(first, first + (count << 2), 1 << 2)
    ]


ENCODED = "name@"
"""What the names of jobs begin with that stand for a text which is no name here."""
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-")


def name_for(text: str) -> str:
    """The name of the job that any text names elsewhere: itself, if it is one."""
    raw = text.encode()
    if raw[:1].isalnum() and _PLAIN.issuperset(raw.replace(b"@", b"")) and not text.startswith(ENCODED):
        return text
    return ENCODED + "".join(chr(byte) if byte in _PLAIN else f"@{byte:02x}" for byte in raw)


def text_of(name: str) -> str:
    """The text that `name_for` made this name for."""
    if not name.startswith(ENCODED):
        return name
    head, *rest = name.removeprefix(ENCODED).split("@")
    try:
        return (head.encode() + b"".join(bytes([int(part[:2], 16)]) + part[2:].encode() for part in rest)).decode()
    except ValueError:
        return name


def callers_key(key: str, field: str = "unique_key") -> str:
    """The unique key that a caller chose for a one-off run, as it is stored: any text of up to `KEY_BYTES_MAX`. By its
    first character each kind of unique key has a name space of its own, so that no caller writes one of another kind:
    those of retries and follow-ups begin with a letter or a digit. As stored it holds no space. Raises
    InvalidRequest."""
    if _PLAIN_KEY.fullmatch(key):
        return f"={key}"
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"{field}: it holds half of a surrogate pair, which is no text", field=field) from None
    if not 0 < size <= KEY_BYTES_MAX:
        raise InvalidRequest(f"{field}: must be 1 to {KEY_BYTES_MAX} bytes of text, not {size}", field=field)
    return f"%{quote(key, safe='')}"


def request_key(key: str) -> str:
    """That of a one-off run made under an Idempotency-Key."""
    return f"/{key}"


def is_request_key(key: str | None) -> bool:
    """Whether a stored unique key is one of these."""
    return key is not None and key.startswith("/")


def trigger_key(job: str, key: str) -> str:
    """That of a run of this job which a caller triggers under a key."""
    return f"@{job}/{key}"


def retry_key(run_id: str, key: str = "") -> str:
    """That of the run which repeats this one: the one of a request about many, or of a caller who asks under a key."""
    return f"{RETRY_KEY}{run_id}/{key}" if key else f"{RETRY_KEY}{run_id}"


def key_as_given(key: str | None) -> str | None:
    """A stored unique key as its caller knows it."""
    if key is None or key[0] not in "%=@":
        return key
    given = key[1:].partition(" ")[0]
    return unquote(given) if key[0] == "%" else given


def run_id(job_id: str, fire_at: Instant, cause: str = "") -> str:
    """The id of the run that a job owes for a fire time: the same on every node, ordered by fire time."""
    return uuid7(fire_at, blake2b(f"{job_id}/{fire_at}/{cause}".encode(), digest_size=10).digest())


def is_run_id(text: str) -> bool:
    """Whether a run can have this id."""
    return _RUN_ID.fullmatch(text) is not None


def fraction(*parts: object) -> float:
    """A reproducible number in [0, 1) from the parts: our chance, wherever chance must be the same on every node."""
    digest = blake2b("/".join(map(str, parts)).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") / (1 << 56)
