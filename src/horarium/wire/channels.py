"""A channel as its owner writes it and as it is shown: secrets masked, and masks kept safe as those of targets are."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from horarium.errors import InvalidRequest
from horarium.model.channels import AnyChannel, AppriseChannel, EmailChannel, WebhookChannel
from horarium.model.secrets import SecretRef, plain
from horarium.wire.masking import SECRET_SHOWN, origin_of, shown_url


def shown_channel(name: str, channel: AnyChannel) -> dict[str, Any]:
    """A channel without its secrets, every default written out."""
    masked = _masked(channel)
    values = {field: getattr(masked, field) for field in masked.__struct_fields__}
    fields = {
        name: {"secret": value.secret} if isinstance(value, SecretRef) else value for name, value in values.items()
    }
    return {"name": name, "type": channel.kind, **fields}


def _masked(channel: AnyChannel) -> AnyChannel:
    match channel:
        case WebhookChannel():
            url, secret = channel.url, channel.signing_secret
            return replace(
                channel,
                url=shown_url(url) if isinstance(url, str) else url,
                signing_secret=SECRET_SHOWN if isinstance(secret, str) and secret else secret,
            )
        case AppriseChannel():
            return replace(channel, url=_shown_service(channel.url) if isinstance(channel.url, str) else channel.url)
        case EmailChannel():
            return channel


def _shown_service(url: str) -> str:
    return f"{urlsplit(url).scheme}://{SECRET_SHOWN}"


def keep_channel_secrets(channel: AnyChannel, stored: AnyChannel | None) -> AnyChannel:
    """The channel with the stored secrets in place of their masks. Raises InvalidRequest for a mask of nothing, and
    for one whose secret would go elsewhere."""
    match channel:
        case WebhookChannel():
            return _keep_webhook(channel, stored if isinstance(stored, WebhookChannel) else None)
        case AppriseChannel(url=url) if isinstance(url, str) and SECRET_SHOWN in url:
            if not isinstance(stored, AppriseChannel) or _shown_service(plain(stored.url)) != url:
                raise _nothing("url")
            return replace(channel, url=stored.url)
        case _:
            return channel


def _keep_webhook(channel: WebhookChannel, stored: WebhookChannel | None) -> WebhookChannel:
    if isinstance(channel.url, str) and SECRET_SHOWN in channel.url:
        if stored is None or shown_url(plain(stored.url)) != channel.url:
            raise _nothing("url")
        channel = replace(channel, url=stored.url)
    if channel.signing_secret != SECRET_SHOWN:
        return channel
    if stored is None or stored.signing_secret is None:
        raise _nothing("signing_secret")
    if _place(stored) != _place(channel):
        raise InvalidRequest(
            "signing_secret: the secret is masked, and the scheme, host or port are others than those it was given "
            "for; give it again",
            field="signing_secret",
        )
    return replace(channel, signing_secret=stored.signing_secret)


def _place(channel: WebhookChannel) -> object:
    """Where its secret goes."""
    return origin_of(channel.url) if isinstance(channel.url, str) else channel.url


def _nothing(field: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: it is masked, and nothing is stored for it; give the secret", field=field)
