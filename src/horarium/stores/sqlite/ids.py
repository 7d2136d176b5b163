"""Ids as blobs: the 16 bytes of a UUID, which sort as its text does.

Ids of ours are canonical UUIDs. Any other text is kept too, behind seventeen zero bytes, so that nothing that the port
allows is refused; only its place among UUIDs of the same instant is then another than that of its text.
"""

from __future__ import annotations

_PREFIX = bytes(17)
_UUID_CHARS, _UUID_DIGITS = 36, 32
_from_hex = bytes.fromhex


def encode_id(text: str) -> bytes:
    """The blob of an id."""
    if len(text) == _UUID_CHARS:
        try:
            return _from_hex(text.replace("-", ""))
        except ValueError:
            pass
    return _PREFIX + text.encode("utf-8", "surrogatepass")


def decode_id(digits: str) -> str:
    """The id whose blob has these lower-case hexadecimal digits."""
    if len(digits) == _UUID_DIGITS:
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    return _from_hex(digits)[len(_PREFIX) :].decode("utf-8", "surrogatepass")
