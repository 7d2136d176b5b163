"""Where messages leave: one way for each type of channel, and the allowed fields of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horarium.delivery.addresses import check_url, parse_url
from horarium.delivery.apprising import Apprising, check_service
from horarium.delivery.letters import check_template, linked, request_of
from horarium.delivery.mailing import Mailing
from horarium.delivery.secrets import MissingSecret, Secrets
from horarium.delivery.signing import check_secret
from horarium.errors import CallerError, InvalidJob, InvalidRequest
from horarium.model import Failed, Outcome
from horarium.model.channels import AnyChannel, AppriseChannel, EmailChannel, Letter, WebhookChannel
from horarium.model.secrets import MaybeSecret, SecretRef

if TYPE_CHECKING:
    from horarium.delivery.http import HttpDelivery


def check_channel(channel: AnyChannel, allow_private: bool) -> None:
    """Raises InvalidRequest, with the field."""
    if channel.template is not None:
        check_template(channel.template)
    match channel:
        case WebhookChannel():
            try:
                if isinstance(channel.url, str):
                    check_url(channel.url, allow_private, field="url")
            except InvalidJob as error:
                raise InvalidRequest(error.message, field=error.field) from None
            if isinstance(channel.signing_secret, str):
                check_secret(channel.signing_secret, error=InvalidRequest)
        case AppriseChannel():
            if isinstance(channel.url, str):
                check_service(channel.url, allow_private)
        case EmailChannel():
            pass


class Post:
    """Sends messages to channels of every type. `http`: the client, with its guard against private addresses, which
    `allow_private` lifts for what opens its own connections. `public_url`: of the dashboard, for links."""

    def __init__(
        self,
        http: HttpDelivery,
        smtp_url: str | None,
        signing_secret: str | None,
        *,
        allow_private: bool = False,
        public_url: str | None = None,
    ) -> None:
        self._public_url = public_url
        self._http = http
        self._mailing = Mailing(smtp_url)
        self._apprising = Apprising(allow_private=allow_private)
        self._secret = signing_secret

    async def send(self, channel: AnyChannel, letter: Letter) -> Outcome:
        """Send one message. Every failure is an outcome."""
        letter, secrets = linked(letter, self._public_url), self._http.secrets
        try:
            match channel:
                case WebhookChannel():
                    template, own, url = channel.template, channel.signing_secret, _address(secrets, channel.url)
                    secret = secrets.signing(own) if own else self._secret
                    return await self._http.post(url, lambda path, now: request_of(letter, path, now, secret, template))
                case EmailChannel():
                    return await self._mailing.send(channel, letter)
                case AppriseChannel():
                    return await self._apprising.send(secrets.read(channel.url), letter, channel.template)
        except MissingSecret as missing:
            return Failed(str(missing))


def _address(secrets: Secrets, value: MaybeSecret) -> str:
    """The URL to ask. Raises MissingSecret for a secret that is none: what is wrong with it is not said of that."""
    text = secrets.read(value)
    if isinstance(value, SecretRef):
        try:
            parse_url(text, field="url")
        except CallerError:
            why = "no URL that can be asked (one that begins with http:// or https://)"
            raise MissingSecret(f"the secret {value.secret} is {why}") from None
    return text
