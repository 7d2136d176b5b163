"""Whether the server of this container is ready: what the image's HEALTHCHECK asks.

    python -m horarium.server.healthcheck

It finds the server by the settings in its environment, as the server itself does, so that another port or TLS needs no
other check. It asks this machine and nothing else: through no proxy, and with any name on the certificate. What
keeps the server from being ready is printed, for `docker inspect`. Exit status: 0 if it is ready, 1 if not.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection

from horarium.errors import InvalidSetting
from horarium.server.sources import load_settings

SECONDS_MAX = 4.0
SHOWN_BYTES_MAX = 1_000
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}


def check(env: Mapping[str, str]) -> str | None:
    """Why the server with these settings is not ready; None if it is."""
    try:
        settings = load_settings({}, env)
    except InvalidSetting as error:
        return str(error)
    if "api" not in settings.roles:
        return None  # it listens nowhere; one that can't go on ends
    host = ANY_ADDRESS.get(settings.host, settings.host)
    connection: HTTPConnection = (
        HTTPSConnection(host, settings.port, timeout=SECONDS_MAX, context=_any_certificate())
        if settings.tls_cert
        else HTTPConnection(host, settings.port, timeout=SECONDS_MAX)
    )
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        said = answer.read(SHOWN_BYTES_MAX).decode(errors="replace")
    except (OSError, HTTPException) as error:
        return f"{host}:{settings.port} does not answer: {str(error) or type(error).__name__}"
    finally:
        connection.close()
    return None if answer.status == 200 else f"{answer.status}: {said}"


def _any_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


if __name__ == "__main__":
    wrong = check(os.environ)
    if wrong is not None:
        print(wrong)
    sys.exit(0 if wrong is None else 1)
