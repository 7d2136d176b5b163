"""Secrets by reference: a definition names where a secret is, and never holds it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

SECRET_HIDDEN = "********"


class SecretRef(Struct, frozen=True, forbid_unknown_fields=True):
    """A secret that is read where it is used: `env:NAME`, a variable of the process, behind the prefix of the setting
    `secrets_env_prefix`; or `file:NAME`, a file in the folder of the setting `secrets_dir`."""

    secret: Annotated[str, Meta(max_length=200, pattern=r"^(env|file):[A-Za-z0-9_][A-Za-z0-9_.-]*(?!\n)$")]


MaybeSecret = str | SecretRef


def plain(value: MaybeSecret) -> str:
    """The text itself; asterisks in place of a secret that was not read."""
    return value if isinstance(value, str) else SECRET_HIDDEN
