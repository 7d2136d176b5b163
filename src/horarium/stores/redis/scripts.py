"""The scripts: one file each, named as the queries of the other stores, loaded once."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files

from msgspec import Struct

_USES = "-- uses: "


class Script(Struct, frozen=True):
    """A script's whole text, and the digest under which a server remembers it."""

    text: bytes
    digest: str


@cache
def script(name: str) -> Script:
    """The script of this name, behind what its first line says that it uses."""
    whole = "\n".join(_with_used(name, {}).values()).encode()
    return Script(whole, sha1(whole, usedforsecurity=False).hexdigest())


def _with_used(name: str, read: dict[str, str]) -> dict[str, str]:
    """The texts read so far, and behind them this one: those that it uses come first, each once."""
    text = files("horarium.stores.redis").joinpath("scripts", f"{name}.lua").read_text(encoding="utf-8")
    head = text.partition("\n")[0]
    for used in head.removeprefix(_USES).split(", ") if head.startswith(_USES) else ():
        if used not in read:
            _with_used(used, read)
    read[name] = text
    return read
