"""Ids as bytes: the 16 bytes of a UUID, which sort as its text does.

Ids of ours are canonical UUIDs. Any other text is kept too, behind seventeen zero bytes, so that nothing that the port
allows is refused; only its place among UUIDs of the same instant is then another than that of its text.
"""

from __future__ import annotations

_PREFIX = bytes(17)
_UUID_CHARS, _UUID_BYTES = 36, 16
_from_hex = bytes.fromhex


def encode_id(text: str) -> bytes:
    """The bytes of an id."""
    if len(text) == _UUID_CHARS and text[8] == text[13] == text[18] == text[23] == "-" and text == text.lower():
        try:
            blob = _from_hex(text.replace("-", ""))
        except ValueError:
            blob = b""
        if len(blob) == _UUID_BYTES:
            return blob
    return _PREFIX + text.encode("utf-8", "surrogatepass")


def decode_id(blob: bytes) -> str:
    """The id of these bytes."""
    if len(blob) == _UUID_BYTES:
        digits = blob.hex()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    return blob[len(_PREFIX) :].decode("utf-8", "surrogatepass")
