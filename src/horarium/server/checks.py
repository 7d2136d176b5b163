"""Settings that are right in themselves but wrong together."""

from __future__ import annotations

import sys
from ipaddress import ip_network

from horarium.api.hosts import address_of
from horarium.errors import InvalidSetting
from horarium.server.config import Settings

KEY_CHARS_MIN = 16
"""The shortest API key of a server that other machines reach."""


def check_settings(settings: Settings) -> None:
    """Refuse values that are right in themselves but wrong together. Raises InvalidSetting."""
    if settings.processes != 1:
        _check_shareable(settings)
    _ = settings.buses
    if (settings.tls_cert is None) != (settings.tls_key is None):
        given, missing = ("tls_cert", "tls_key") if settings.tls_cert else ("tls_key", "tls_cert")
        raise InvalidSetting(f"{missing}: is missing; {given} needs it beside it", field=missing)
    if settings.oidc_issuer is not None and settings.oidc_audience is None:
        raise InvalidSetting(
            "oidc_audience: is missing; say what `aud` of an access token must hold, or `any` to accept every "
            "token of the issuer",
            field="oidc_audience",
        )
    if "simple-scheduler" in settings.doors and settings.oidc_issuer is None:
        raise InvalidSetting(
            "oidc_issuer: is missing; the door for simple-scheduler's clients takes the access tokens of an issuer",
            field="oidc_issuer",
        )
    for each in settings.trusted_proxies:
        try:
            ip_network(each, strict=False)
        except ValueError:
            raise InvalidSetting(f"trusted_proxies: {each!r} is no network", field="trusted_proxies") from None
    if "api" in settings.roles and not is_loopback(settings.host):
        _check_keys(settings)


def _check_shareable(settings: Settings) -> None:
    alone = [url for url in (settings.store, *settings.buses.values()) if url.startswith("memory:")]
    if alone:
        raise InvalidSetting(
            f"processes: {settings.processes} processes can't share {alone[0]}, which is in the memory of one; give a "
            "store or bus that is outside, or leave processes out",
            field="processes",
        )
    if sys.platform == "win32":
        raise InvalidSetting("processes: on Windows there is one process; leave it out", field="processes")


def _check_keys(settings: Settings) -> None:
    if not settings.api_keys and settings.oidc_issuer is None:
        raise InvalidSetting(
            f"host: {settings.host!r} lets other machines in, but no API key is set; add --api-key KEY "
            "(or HORARIUM_API_KEYS), or listen on 127.0.0.1",
            field="host",
        )
    if any(len(key) < KEY_CHARS_MIN for key in settings.api_keys):
        raise InvalidSetting(
            f"api_keys: a key has fewer than {KEY_CHARS_MIN} characters, and {settings.host!r} lets other machines "
            "in; give a long one, e.g. from `openssl rand -hex 32`",
            field="api_keys",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener on that address."""
    address = address_of(host)
    return host.lower() == "localhost" if address is None else address.is_loopback
