"""Secrets of a target: shown as asterisks, which keep the stored value when they are sent back.

Owns which fields, headers, query parameters and variables count as secret. Three rules make a mask safe. It is never
stored in the place of what it hides: where nothing is stored that it could hide, it is refused. It keeps a secret
only where the secret already goes: with another scheme, host or port, or another command or queue, the secret must be
given again, or a caller who may change a job could have its secrets sent to themselves. And a text that is masked in
part is kept whole or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from horarium.errors import InvalidJob
from horarium.model import CommandTarget, HttpTarget, Target
from horarium.model.secrets import MaybeSecret

SECRET_SHOWN = "********"
"""The text in place of a secret. Sent back in an update, it keeps the secret that is stored."""

_SECRET_NAME = re.compile(
    r"token|secret|passw|passphrase|pwd|signature|credential|cookie|private|jwt|(api|access)[-_]?key|auth(?!ors?([-_]|$))"
    r"|(^|[-_])(key|pass|pat|sig)$",
    re.IGNORECASE,
)
"""A header, a parameter of a URL or a variable with such a name is secret."""

_QUERY = re.compile(r"([?&])([^=&#]*)=([^&#]*)")
_PASSWORD = re.compile(r"(://[^/?#:@\s]*:)[^/@\s]+(@)")
_PROBE = "\0"
"""Put where a text has asterisks: the rest of it was part of no secret."""

DEFAULT_PORTS = {"http": 80, "https": 443}


def is_secret_header(name: str) -> bool:
    """Whether a header's value is never shown."""
    return _SECRET_NAME.search(name) is not None


# ---- shown ------------------------------------------------------------------------------------------------------


def shown_target(target: Target) -> Target:
    """A target without its secrets."""
    if isinstance(target, HttpTarget):
        secret = target.signing_secret
        return replace(
            target,
            headers=_shown_pairs(target.headers),
            params=_shown_pairs(target.params),
            signing_secret=SECRET_SHOWN if isinstance(secret, str) and secret else secret,
            url=shown_url(target.url),
            cancel_url=target.cancel_url and shown_url(target.cancel_url),
        )
    if isinstance(target, CommandTarget):
        return replace(
            target,
            env={
                name: _shown_variable(name, text) if isinstance(text, str) else text
                for name, text in target.env.items()
            },
        )
    return target


def _shown_pairs(pairs: Mapping[str, MaybeSecret]) -> dict[str, MaybeSecret]:
    """A reference is shown as it is: it says where a secret is, and is none."""
    return {
        name: SECRET_SHOWN if isinstance(value, str) and is_secret_header(name) else value
        for name, value in pairs.items()
    }


def shown_url(url: str) -> str:
    """A URL without its password, and without the values of parameters that are named like secrets."""

    def shown(found: re.Match[str]) -> str:
        mark, name, _ = found.groups()
        return f"{mark}{name}={SECRET_SHOWN}" if _SECRET_NAME.search(name) else found[0]

    return _PASSWORD.sub(rf"\1{SECRET_SHOWN}\2", _QUERY.sub(shown, url))


def _shown_variable(name: str, text: str) -> str:
    """Secret by its name, or a URL with a secret."""
    if text and _SECRET_NAME.search(name):
        return SECRET_SHOWN
    return shown_url(text) if "://" in text else text


# ---- kept -------------------------------------------------------------------------------------------------------


def keep_secrets(target: Target, stored: Target | None) -> Target:
    """The target with the stored secrets in place of their masks. Raises InvalidJob for a mask of nothing, and for one
    whose secret would go elsewhere."""
    if isinstance(target, HttpTarget):
        return _keep_http(target, stored if isinstance(stored, HttpTarget) else None)
    if isinstance(target, CommandTarget):
        return _keep_command(target, stored if isinstance(stored, CommandTarget) else None)
    return target


def _keep_http(target: HttpTarget, stored: HttpTarget | None) -> HttpTarget:
    url = _keep_text("target.url", target.url, stored and stored.url, shown_url)
    cancel_url = target.cancel_url and _keep_text(
        "target.cancel_url", target.cancel_url, stored and stored.cancel_url, shown_url
    )
    wanted = replace(target, url=url, cancel_url=cancel_url)
    if hidden := [name for name, text in target.params.items() if text == SECRET_SHOWN and is_secret_header(name)]:
        if stored is None or not _goes_where_it_went(wanted, stored) or not stored.params.keys() >= set(hidden):
            raise _nothing("target.params", hidden[0])
        kept = {name: stored.params[name] if name in hidden else text for name, text in target.params.items()}
        wanted = replace(wanted, params=kept)
    masked = [name for name, text in target.headers.items() if text == SECRET_SHOWN and is_secret_header(name)]
    if not masked and target.signing_secret != SECRET_SHOWN:
        return wanted
    field = "target.headers" if masked else "target.signing_secret"
    if stored is None:
        raise _nothing(field, masked[0] if masked else None)
    if not _goes_where_it_went(wanted, stored):
        raise InvalidJob(
            f"{field}: the secret is masked, and the target's scheme, host or port are others than those it was given "
            "for; give it again",
            field=field,
        )
    values = {name.lower(): text for name, text in stored.headers.items()}
    for name in masked:
        if name.lower() not in values:
            raise _nothing("target.headers", name)
    headers = {name: values[name.lower()] if name in masked else text for name, text in target.headers.items()}
    secret = stored.signing_secret if target.signing_secret == SECRET_SHOWN else target.signing_secret
    return replace(wanted, headers=headers, signing_secret=secret)


def _goes_where_it_went(target: HttpTarget, stored: HttpTarget) -> bool:
    known = {origin_of(stored.url), origin_of(stored.cancel_url or stored.url)}
    return origin_of(target.url) == origin_of(stored.url) and origin_of(target.cancel_url or target.url) in known


def origin_of(url: str) -> tuple[str, str | None, int | None] | str:
    """Scheme, host and port; the URL itself where it has none that can be read."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return url


def _keep_command(target: CommandTarget, stored: CommandTarget | None) -> CommandTarget:
    """A mask holds while all else of the target is as it was: any part of it may send the secret elsewhere."""
    if not any(isinstance(text, str) and SECRET_SHOWN in text for text in target.env.values()):
        return target
    known = {} if stored is None else stored.env
    env = {
        name: _keep_variable(name, text, known.get(name)) if isinstance(text, str) else text
        for name, text in target.env.items()
    }
    wanted = replace(target, env=env)
    if stored is not None and wanted != stored:
        raise InvalidJob(
            "target.env: a secret is masked, and the command, its queue or another part of the target is not as it was "
            "when the secret was given; give it again",
            field="target.env",
        )
    return wanted


def _keep_variable(name: str, text: str, stored: MaybeSecret | None) -> str:
    return _keep_text(f"target.env.{name}", text, stored, lambda value: _shown_variable(name, value))


def _keep_text(field: str, text: str, stored: Any, shown: Callable[[str], str]) -> str:
    """The stored text where this one is how it is shown; this one where no secret in it is masked."""
    if shown(text.replace(SECRET_SHOWN, _PROBE)).count(_PROBE) == text.count(SECRET_SHOWN):
        return text
    if isinstance(stored, str) and shown(stored) == text:
        return stored
    if isinstance(stored, str) and shown(stored) != stored:
        raise InvalidJob(
            f"{field}: a secret in it is masked, and another part of it was changed; give the secret again", field=field
        )
    raise InvalidJob(f"{field}: a secret is masked, and no secret is stored for it; give it", field=field)


def _nothing(field: str, header: str | None) -> InvalidJob:
    what = f"{header!r} is masked" if header else "it is masked"
    return InvalidJob(
        f"{field}: {what}, as exports are, and nothing is stored; put the secret in its place", field=field
    )
