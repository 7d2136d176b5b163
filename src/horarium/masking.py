"""What of a target is secret: shown as asterisks, which keep what is stored when they are sent back.

Owns which fields and headers count as secret. A mask must never be stored in the place of what it hides: where nothing
is stored that it could stand for, it is refused.
"""

from __future__ import annotations

from msgspec.structs import replace

from horarium.errors import InvalidJob
from horarium.model import HttpTarget, Target

SECRET_SHOWN = "********"
"""What stands in place of a secret. Sent back in an update, it keeps the secret that is stored."""

SECRET_WORDS = ("authorization", "cookie", "token", "secret", "password", "api-key", "apikey")
"""A header whose name holds one of these is secret."""


def is_secret_header(name: str) -> bool:
    """Whether a header's value is shown to nobody."""
    return any(word in name.lower() for word in SECRET_WORDS)


def shown_target(target: Target) -> Target:
    """A target without its secrets."""
    if not isinstance(target, HttpTarget):
        return target
    headers = {name: SECRET_SHOWN if is_secret_header(name) else text for name, text in target.headers.items()}
    return replace(target, headers=headers, signing_secret=target.signing_secret and SECRET_SHOWN)


def keep_secrets(target: Target, stored: Target | None) -> Target:
    """The target with the stored secrets in place of their masks. Raises InvalidJob for a mask of nothing."""
    if not isinstance(target, HttpTarget):
        return target
    known = stored if isinstance(stored, HttpTarget) else HttpTarget(target.url)
    values = {name.lower(): text for name, text in known.headers.items()}
    headers = {name: _kept(name, text, values) for name, text in target.headers.items()}
    masked = target.signing_secret == SECRET_SHOWN
    if masked and known is not stored:
        raise InvalidJob(
            "target.signing_secret is masked, as exports are; put the secret in its place",
            field="target.signing_secret",
        )
    return replace(target, headers=headers, signing_secret=known.signing_secret if masked else target.signing_secret)


def _kept(name: str, text: str, stored: dict[str, str]) -> str:
    if text != SECRET_SHOWN or not is_secret_header(name):
        return text
    if name.lower() not in stored:
        raise InvalidJob(
            f"target.headers: {name!r} is masked, and no value of it is stored; give the value", field="target.headers"
        )
    return stored[name.lower()]
