"""How much of what a caller sends is kept."""

from __future__ import annotations

from horarium.errors import InvalidRequest


def check_size(field: str, text: bytes | None, limit: int) -> None:
    """Raises InvalidRequest for text that is too long."""
    if text is not None and len(text) > limit:
        raise InvalidRequest(f"{field}: {len(text):,} bytes; at most {limit:,} are kept", field=field)
