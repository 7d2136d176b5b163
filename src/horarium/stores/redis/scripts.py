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
    text = _read(name)
    head = text.partition("\n")[0]
    used = head.removeprefix(_USES).split(", ") if head.startswith(_USES) else []
    whole = "\n".join([*map(_read, used), text]).encode()
    return Script(whole, sha1(whole, usedforsecurity=False).hexdigest())


def _read(name: str) -> str:
    return files("horarium.stores.redis").joinpath("scripts", f"{name}.lua").read_text(encoding="utf-8")
