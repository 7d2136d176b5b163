"""Secrets by reference, read where a request or a process is made, and nowhere else."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlencode

from msgspec.structs import replace

from horarium.delivery.signing import check_secret
from horarium.errors import CallerError, InvalidRequest
from horarium.model import CommandTarget, HttpTarget, Target
from horarium.model.channels import AnyChannel, AppriseChannel, EmailChannel, WebhookChannel
from horarium.model.secrets import MaybeSecret, SecretRef

ENV_PREFIX_DEFAULT = "HORARIUM_SECRET_"
DIR_DEFAULT = "/run/secrets"
ALLOWED_DEFAULT = ("*",)
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
"""What no header can hold."""


class MissingSecret(Exception):
    """A secret is not there, or can't be used. The message names it, and never holds it."""


class Secrets:
    """Where this process finds secrets."""

    def __init__(
        self,
        env_prefix: str = ENV_PREFIX_DEFAULT,
        directory: str = DIR_DEFAULT,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._env_prefix = env_prefix
        self._directory = Path(directory)
        self._environment = environment

    def read(self, value: MaybeSecret) -> str:
        """The text, or the secret that is meant. Raises MissingSecret."""
        if isinstance(value, str):
            return value
        kind, _, name = value.secret.partition(":")
        if kind == "env":
            variable = self._env_prefix + name
            if variable not in self._environment:
                raise MissingSecret(f"the secret {value.secret} is missing: there is no variable {variable}")
            return self._environment[variable]
        path = self._directory / name
        try:
            return path.read_text("utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            why = (
                "is not UTF-8" if isinstance(error, UnicodeDecodeError) else (error.strerror or "can't be read").lower()
            )
            raise MissingSecret(f"the secret {value.secret} is missing: {path}: {why}") from None

    def target(self, target: HttpTarget) -> HttpTarget:
        """The target with secrets in place of references, and its parameters in its URL. Raises MissingSecret."""
        secret = target.signing_secret
        if not target.params and not [1 for each in (secret, *target.headers.values()) if isinstance(each, SecretRef)]:
            return target
        headers = {name: self._header(value) for name, value in target.headers.items()}
        params = urlencode({name: self.read(value) for name, value in target.params.items()}, errors="surrogateescape")
        mark = "&" if "?" in target.url else "?"
        return replace(
            target,
            url=f"{target.url}{mark}{params}" if params else target.url,
            params={},
            headers=headers,
            signing_secret=None if secret is None else self.signing(secret),
        )

    def _header(self, value: MaybeSecret) -> str:
        text = self.read(value)
        if isinstance(value, SecretRef) and CONTROL.search(text):
            why = "it holds a line break or a control character"
            raise MissingSecret(f"the secret {value.secret} can't be sent in a header: {why}")
        return text

    def signing(self, value: MaybeSecret) -> str:
        """A signing secret. Raises MissingSecret for one that is none."""
        text = self.read(value)
        if isinstance(value, SecretRef):
            try:
                check_secret(text)
            except CallerError:
                raise MissingSecret(f"the secret {value.secret} is no signing secret (whsec_ and base64)") from None
        return text


def references(what: Target | AnyChannel) -> list[tuple[str, str]]:
    """Which secrets are named, each with its field."""
    values: list[tuple[str, MaybeSecret | None]] = []
    match what:
        case HttpTarget():
            values += ((f"target.headers.{name}", value) for name, value in what.headers.items())
            values += ((f"target.params.{name}", value) for name, value in what.params.items())
            values.append(("target.signing_secret", what.signing_secret))
        case CommandTarget():
            values += ((f"target.env.{name}", value) for name, value in what.env.items())
        case WebhookChannel():
            values += (("url", what.url), ("signing_secret", what.signing_secret))
        case AppriseChannel():
            values.append(("url", what.url))
        case EmailChannel() | _:
            pass
    return [(field, value.secret) for field, value in values if isinstance(value, SecretRef)]


def check_allowed(what: Target | AnyChannel, allowed: Sequence[str], error: type[CallerError] = InvalidRequest) -> None:
    """Raises `error` for a secret that no pattern of `secrets_allowed` fits."""
    for field, secret in references(what):
        if not any(fnmatchcase(secret, pattern) for pattern in allowed):
            raise error(f"{field}: the setting secrets_allowed does not let a definition name {secret}", field=field)
