"""Who is signed in where: tokens in the user's configuration folder, in a file that only the user can read.

A token that is about to end is refreshed when it is needed. Of several commands at once one does so, since many issuers
take a refresh token only once; the file is written as a whole, so a command that is killed leaves the old one
or the new.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.client.sign_in import ClientAtIssuer, Discovery, SignInRefused, Tokens, refresh

EARLY_SECONDS = 30.0
"""So long before its end a token is refreshed."""
FILE = "tokens.json"


class SignedIn(Struct, frozen=True, kw_only=True):
    """The sign-in at one server."""

    client: ClientAtIssuer
    issuer: Discovery
    tokens: Tokens


Kept = dict[str, SignedIn]


def folder() -> Path:
    """Where it lies: `XDG_CONFIG_HOME` counts."""
    return Path(click.get_app_dir("horarium"))


def server_key(url: str) -> str:
    """A server, as it is named in the file."""
    return url.rstrip("/").lower()


def keep(url: str, signed_in: SignedIn) -> Path:
    """Remember a sign-in at this server. Where it lies."""
    with _locked():
        return _write({**_read(), server_key(url): signed_in})


def forget(url: str) -> SignedIn | None:
    """Delete it. What it was."""
    if not (folder() / FILE).exists():
        return None
    with _locked():
        kept = _read()
        found = kept.pop(server_key(url), None)
        if found is not None:
            _write(kept)
        return found


def access_token(url: str) -> str | None:
    """A token for this server that is good for a while, if someone is signed in. Raises SignInRefused, Outage."""
    if not (folder() / FILE).exists():
        return None
    found = _read().get(server_key(url))
    if found is None or _is_fresh(found):
        return None if found is None else found.tokens.access_token
    with _locked():
        found = _read().get(server_key(url))
        if found is None or _is_fresh(found):
            return None if found is None else found.tokens.access_token
        if found.tokens.refresh_token is None:
            raise SignInRefused("your sign-in is over; sign in again with `horarium login`")
        try:
            tokens = refresh(found.client, found.issuer.token_endpoint, found.tokens.refresh_token)
        except SignInRefused as error:
            raise SignInRefused(f"your sign-in is over ({error}); sign in again with `horarium login`") from None
        _write({**_read(), server_key(url): replace(found, tokens=tokens)})
        return tokens.access_token


def _is_fresh(found: SignedIn) -> bool:
    return time.time() < found.tokens.expires_at - EARLY_SECONDS


def _read() -> Kept:
    try:
        return msgspec.json.decode((folder() / FILE).read_bytes(), type=Kept)
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def _write(kept: Kept) -> Path:
    path = folder() / FILE
    handle, name = tempfile.mkstemp(dir=folder(), prefix=f"{FILE}.")  # readable for the user alone
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(kept))
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    return path


@contextmanager
def _locked() -> Iterator[None]:
    """One command at a time."""
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(folder() / f"{FILE}.lock", "w", opener=_private) as lock:
        with suppress(ImportError):  # Windows, where two commands at once may ask for a sign-in too many
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
