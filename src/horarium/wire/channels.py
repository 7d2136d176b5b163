"""A channel as its owner writes it and as it is shown: secrets masked, and masks kept safe as those of targets are."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from horarium.errors import InvalidRequest
from horarium.model.channels import AnyChannel, AppriseChannel, EmailChannel, WebhookChannel
from horarium.wire.masking import SECRET_SHOWN, origin_of, shown_url


def shown_channel(name: str, channel: AnyChannel) -> dict[str, Any]:
    """A channel without its secrets, every default written out."""
    masked = _masked(channel)
    fields = {field: getattr(masked, field) for field in masked.__struct_fields__}
    return {"name": name, "type": channel.kind, **fields}


def _masked(channel: AnyChannel) -> AnyChannel:
    match channel:
        case WebhookChannel():
            secret = channel.signing_secret and SECRET_SHOWN
            return replace(channel, url=shown_url(channel.url), signing_secret=secret)
        case AppriseChannel():
            return replace(channel, url=_shown_service(channel.url))
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
        case AppriseChannel(url=url) if SECRET_SHOWN in url:
            if not isinstance(stored, AppriseChannel) or _shown_service(stored.url) != url:
                raise _nothing("url")
            return replace(channel, url=stored.url)
        case _:
            return channel


def _keep_webhook(channel: WebhookChannel, stored: WebhookChannel | None) -> WebhookChannel:
    if SECRET_SHOWN in channel.url:
        if stored is None or shown_url(stored.url) != channel.url:
            raise _nothing("url")
        channel = replace(channel, url=stored.url)
    if channel.signing_secret != SECRET_SHOWN:
        return channel
    if stored is None or stored.signing_secret is None:
        raise _nothing("signing_secret")
    if origin_of(stored.url) != origin_of(channel.url):
        raise InvalidRequest(
            "signing_secret: the secret is masked, and the scheme, host or port are others than those it was given "
            "for; give it again",
            field="signing_secret",
        )
    return replace(channel, signing_secret=stored.signing_secret)


def _nothing(field: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: it is masked, and nothing is stored for it; give the secret", field=field)
